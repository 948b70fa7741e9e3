"""Three at a time on PostgreSQL, along seeded random schedules."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.races.actors import KINDS, Kind
from tests.races.performing import Performance, lengths, needs_of, prepare
from tests.races.schedules import shuffled
from tests.races.stages import Stage

GROUPS, SCHEDULES = 12, 2  # of the default run
LONG_GROUPS, LONG_SCHEDULES = 200, 8


def _groups(count: int) -> list[list[Kind]]:
    source = random.Random("triples")
    return [source.choices(KINDS, k=3) for _ in range(count)]


def _perform(stage: Stage, kinds: list[Kind], schedules: int, label: str) -> None:
    prepare(stage, needs_of(kinds))
    seed = " ".join(map(str, kinds))
    steps = lengths(stage, kinds)
    chosen = list(islice(shuffled(steps, seed), schedules))
    Performance(stage, kinds, label).along(chosen, nominal=len(chosen))


def test_some_schedules_of_some_triples(embedded_stage: Stage) -> None:
    for kinds in _groups(GROUPS):
        _perform(embedded_stage, kinds, SCHEDULES, "triples, some")


@pytest.mark.long
def test_random_schedules_of_random_triples(embedded_stage: Stage) -> None:
    for kinds in _groups(LONG_GROUPS):
        _perform(embedded_stage, kinds, LONG_SCHEDULES, "triples")


@pytest.mark.long
def test_random_schedules_of_random_triples_on_the_other_server(other_stage: Stage) -> None:
    for kinds in _groups(LONG_GROUPS // 4):
        _perform(other_stage, kinds, LONG_SCHEDULES, "triples on the other server")
