"""The same actors on SQLite and in memory, where a gate is a call of the store.

On SQLite the statements of a caller's own transaction are gates too: while it is open and has
written, every other writer waits.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tests.races.actors import CALLERS, OTHERS, Kind
from tests.races.performing import Performance, lengths, needs_of, prepare
from tests.races.schedules import count_all, interleavings, sampled
from tests.races.stages import Stage

ON_SQLITE = tuple(kind for kind in (*CALLERS, *OTHERS) if kind.isolation is None)
SQLITE_PAIRS = sorted(  # those with an equal scene side by side
    combinations_with_replacement(ON_SQLITE, 2), key=lambda pair: sorted(needs_of(pair))
)


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_every_schedule_in_memory(memory_stage: Stage, kind: Kind) -> None:
    for other in OTHERS:
        pair = [kind, other]
        prepare(memory_stage, needs_of(pair))
        n, m = lengths(memory_stage, pair)
        runs = Performance(memory_stage, pair, "memory, calls, all").everything(
            nominal=count_all(n, m)
        )
        assert runs >= 1


def test_some_schedules_on_sqlite(sqlite_stage: Stage) -> None:
    for pair in SQLITE_PAIRS:
        prepare(sqlite_stage, needs_of(pair))
        n, m = lengths(sqlite_stage, pair)
        schedules = sampled(interleavings(n, m), f"{pair[0]} {pair[1]}", 20)
        Performance(sqlite_stage, pair, "sqlite, calls, some").along(
            schedules, nominal=len(schedules)
        )


@pytest.mark.long
@pytest.mark.parametrize("pair", SQLITE_PAIRS, ids=lambda pair: f"{pair[0]} x {pair[1]}")
def test_every_schedule_on_sqlite(sqlite_stage: Stage, pair: tuple[Kind, Kind]) -> None:
    prepare(sqlite_stage, needs_of(pair))
    n, m = lengths(sqlite_stage, pair)
    Performance(sqlite_stage, pair, "sqlite, calls, all").everything(nominal=count_all(n, m))
