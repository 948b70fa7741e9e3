"""The machine on every store: a short search by default, a long one in make test-long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from sqlalchemy import Engine

from tests.fixtures.servers import EMBEDDED, postgres_keys
from tests.stateful.callers import JOIN
from tests.stateful.conftest import MEMORY, SQLITE
from tests.stateful.machine import NudgeMachine
from tests.stateful.model import CATCH_UP_MAX, Definition
from tests.stateful.profiles import LONG, SHORT, search
from tests.stateful.timetable import EVERY_10_MINUTES, STARTS
from tests.stateful.world import HANDLERS, MemoryWorld, SqlWorld, World
from threadmill_sa.engine.recurring import materializer, planner
from threadmill_sa.model.job import OutcomeKind
from threadmill_sa.model.recurring import MissedRunPolicy
from threadmill_sa.model.state import JobState

SHORT_EXAMPLES = {MEMORY: 50, SQLITE: 30, EMBEDDED: 30}
LONG_EXAMPLES = {MEMORY: 2000, SQLITE: 800}  # others: 500


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that short examples cross them."""
    monkeypatch.setattr(planner, "CATCH_UP_MAX", CATCH_UP_MAX)
    monkeypatch.setattr(materializer, "MATERIALIZE_BATCH", 2)
    monkeypatch.setattr(materializer, "TICK_PAGE", 2)


def new_world(engine: Engine, name: str, explored: Counter[str]) -> World:
    return (MemoryWorld if name == MEMORY else SqlWorld)(engine, explored)


def explore(engine: Engine, name: str, explored: Counter[str], chosen: settings) -> None:
    world = new_world(engine, name, explored)
    search(lambda: NudgeMachine(world), chosen)


def release_one_job_again_and_again(machine: NudgeMachine) -> None:
    """Claimed and given back three times while the clock stands still."""
    task = Definition(0, HANDLERS[0], EVERY_10_MINUTES, MissedRunPolicy.DROP, "default", 0)
    machine.begin(begin=STARTS[0], first=task, second=task)
    machine.trigger(number=0, name="pump")
    for claim in range(3):
        machine.finish(number=0, rounds=[{claim: OutcomeKind.RELEASED}])
        machine.everything_is_as_promised()


@pytest.mark.timeout(600)  # ten times what it needs
@pytest.mark.parametrize("name", SHORT_EXAMPLES)
def test_every_promise_holds_after_every_step(
    name: str, open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    explore(open_engine(name), name, explored, settings(SHORT, max_examples=SHORT_EXAMPLES[name]))


@pytest.mark.parametrize("name", SHORT_EXAMPLES)
def test_a_job_that_moves_back_within_one_instant_is_seen_to_have_moved(
    name: str, open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    machine = NudgeMachine(new_world(open_engine(name), name, explored))
    release_one_job_again_and_again(machine)
    [run] = machine.model.runs
    assert (run.state, run.attempt, run.token, run.history) == (JobState.ENQUEUED, 0, 3, 6)
    machine.teardown()


def test_an_example_that_is_played_again_makes_the_same_jobs(
    open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    world = new_world(open_engine(MEMORY), MEMORY, explored)
    played = []
    for _ in range(2):
        machine = NudgeMachine(world)
        release_one_job_again_and_again(machine)
        for number in (1, 0, 1, 0):  # of two processes: nothing but chance orders these
            machine.trigger(number=number, name="audit")
        played.append([run.id for run in machine.model.runs])
        machine.teardown()
    assert played[0] == played[1]


def test_serializable_callers_that_only_meet_in_our_tables_all_commit(
    open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    machine = NudgeMachine(new_world(open_engine(EMBEDDED), EMBEDDED, explored))
    release_one_job_again_and_again(machine)
    for names in (["pump"], ["audit"], ["pump", "audit"]):
        caller = machine.open_caller(first="write", isolation="SERIALIZABLE", asks=names, number=0)
        machine.enqueue(
            caller=caller, number=1, mode=JOIN, handler=HANDLERS[0], queue="default", delay=None
        )
    machine.teardown()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [MEMORY, SQLITE, *postgres_keys()])
def test_every_promise_holds_in_a_long_search(
    name: str, open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    examples = LONG_EXAMPLES.get(name, 500)
    explore(open_engine(name), name, explored, settings(LONG, max_examples=examples))
