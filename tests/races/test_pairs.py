"""Two at a time on PostgreSQL, every statement, commit and rollback a gate.

The default run takes a seeded hundredth of the schedules; the long one takes all of every pair
that has at most 10,000, and of larger pairs those with at most four switches.
"""

from __future__ import annotations

import pytest

from tests.races.actors import FURTHER, KINDS, PAIRS, TICK, Kind
from tests.races.performing import Performance, lengths, needs_of, prepare, switches_of
from tests.races.schedules import count_all, count_few, sampled, wanted
from tests.races.stages import Stage

# Other scenes for a tick: its fire is due, an instance waits, one runs, two tasks at once.
TICK_SCENES = (
    frozenset({"due"}),
    frozenset({"due", "nudged"}),
    frozenset({"nudged", "queued"}),
    frozenset({"nudged", "running"}),
    frozenset({"nudged", "second"}),
)


def _partners(kind: Kind) -> list[Kind]:
    """The kinds it is paired with, those with an equal scene side by side."""
    own = [second for first, second in PAIRS if first is kind]
    return sorted(own, key=lambda other: sorted(needs_of([kind, other])))


def _sample(
    stage: Stage, pair: list[Kind], label: str, *, one_in: int, needs: frozenset[str] | None = None
) -> None:
    prepare(stage, needs_of(pair) if needs is None else needs)
    n, m = lengths(stage, pair)
    seed = f"{pair[0]} {pair[1]} {sorted(stage.needs or ())}"
    schedules = sampled(wanted(n, m), seed, one_in)
    Performance(stage, pair, label).along(schedules, nominal=len(schedules))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_hundredth_of_the_schedules_of_its_pairs(embedded_stage: Stage, kind: Kind) -> None:
    for other in _partners(kind):
        _sample(embedded_stage, [kind, other], "pairs, a hundredth", one_in=100)


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} x {pair[1]}")
def test_every_schedule_of_a_pair(embedded_stage: Stage, pair: tuple[Kind, Kind]) -> None:
    prepare(embedded_stage, needs_of(pair))
    n, m = lengths(embedded_stage, pair)
    switches = switches_of(n, m)
    nominal = count_all(n, m) if switches is None else count_few(n, m, switches)
    label = "pairs, all" if switches is None else f"pairs, at most {switches} switches"

    Performance(embedded_stage, pair, label).everything(nominal=nominal, switches=switches)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_tenth_of_the_schedules_of_its_pairs_on_the_other_server(
    other_stage: Stage, kind: Kind
) -> None:
    for other in _partners(kind):
        _sample(other_stage, [kind, other], "pairs on the other server, a tenth", one_in=10)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("needs", TICK_SCENES, ids=lambda needs: "+".join(sorted(needs)))
def test_a_tenth_beside_a_tick_in_other_scenes(
    embedded_stage: Stage, kind: Kind, needs: frozenset[str]
) -> None:
    scene = needs | kind.needs
    _sample(embedded_stage, [TICK, kind], "other scenes of a tick", one_in=10, needs=scene)


@pytest.mark.long
@pytest.mark.parametrize("kind", FURTHER, ids=str)
def test_schedules_with_few_switches_beside_what_else_happens(
    embedded_stage: Stage, kind: Kind
) -> None:
    for other in (*KINDS, *FURTHER):
        pair = [kind, other]
        prepare(embedded_stage, needs_of(pair))
        n, m = lengths(embedded_stage, pair)
        Performance(embedded_stage, pair, "further pairs, at most 3 switches").everything(
            nominal=count_few(n, m, 3), switches=3
        )


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_tenth_of_the_schedules_with_records_that_the_shipped_checker_reads(
    recording_stage: Stage, kind: Kind
) -> None:
    for other in _partners(kind):
        _sample(recording_stage, [kind, other], "pairs with records, a tenth", one_in=10)
