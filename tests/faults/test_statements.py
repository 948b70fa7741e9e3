"""A fault at every boundary of every write, tried again as the engine or a caller would."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from sqlalchemy.exc import SQLAlchemyError

from tests.faults import caller_scenes, job_scenes, ledger, recurring_scenes
from tests.faults.conftest import Worlds, sql_keys
from tests.faults.scenes import STATEMENTS_MAX, Scene, settle
from tests.faults.striking import (
    ON_POSTGRES,
    ON_SQLITE,
    Fault,
    FaultyEngine,
    InjectedError,
    InjectedInterrupt,
)
from tests.faults.world import SqlVictim, World
from tests.fixtures.sql import SQLITE
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits

SCENES = (*job_scenes.SCENES, *recurring_scenes.SCENES, *caller_scenes.SCENES)
OURS = {
    Fault.BEFORE: InjectedError,
    Fault.AFTER: InjectedError,
    Fault.INTERRUPT: InjectedInterrupt,
}


@pytest.fixture(params=sql_keys())
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SCENES, ids=lambda scene: scene.__name__)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Scene]:
    chosen: type[Scene] = request.param
    for bound, value in chosen.limits.items():
        monkeypatch.setattr(limits, bound, value)
    return chosen


def test_nothing_is_lost_or_doubled_by_a_fault_at_any_boundary(
    store: str, worlds: Worlds, scene: type[Scene]
):
    """One fault after the other at one boundary after the other; the long run has them all."""
    faults = of(store)
    first = SCENES.index(scene)

    with worlds.of(store) as world:
        # SQLite has two statements where PostgreSQL has one.
        half = 2 if store == SQLITE else 1
        at_each = range(first % half, STATEMENTS_MAX, scene.step * half)
        strikes = sweep(
            world, store, scene, at_each, lambda at: faults[(first + at) % len(faults)]
        )
        # A lost answer is counted by what is sent, so its sweep is one of its own.
        at_some = range(0, STATEMENTS_MAX, scene.step * (1 if store == SQLITE else 2))
        strikes += sweep(world, store, scene, at_some, lambda _: Fault.LOST)

    assert strikes


@pytest.mark.long
@pytest.mark.parametrize("fault", list(Fault))
def test_nothing_is_lost_or_doubled_by_any_fault_at_any_boundary(
    store: str, worlds: Worlds, scene: type[Scene], fault: Fault
):
    if fault not in (*of(store), Fault.LOST):
        pytest.skip(f"{store} has no such fault")

    with worlds.of(store) as world:
        strikes = sweep(world, store, scene, range(STATEMENTS_MAX), lambda _: fault)

    assert strikes or fault is Fault.LOST  # a caller that rolls back has no commit to lose


def of(store: str) -> tuple[Fault, ...]:
    """The faults that strike at statements and commits of a store."""
    return ON_SQLITE if store == SQLITE else ON_POSTGRES


def sweep(
    world: World,
    store: str,
    scene: type[Scene],
    boundaries: range,
    choose: Callable[[int], Fault],
) -> int:
    """Let a fault strike at each of `boundaries` that exists; returns how many it was."""
    assert isinstance(world.victim, SqlVictim)
    for strikes, at in enumerate(boundaries):
        fault = choose(at)
        if not strike_once(world, world.victim.faulty, scene(world), fault, at):
            return strikes
        ledger.note(store, scene.__name__, fault)
    raise AssertionError(f"more than {boundaries.stop} boundaries")


def strike_once(world: World, faulty: FaultyEngine, scene: Scene, fault: Fault, at: int) -> bool:
    """Let the fault strike at one boundary, go on until all is well; False when it did not."""
    tm = world.victim.tm
    faulty.strike(at, fault)
    error = caught(lambda: scene.act(tm))
    struck = faulty.struck
    faulty.mend()
    world.victim.check_idle()
    scene.had = scene.look()
    check_first(scene, fault, faulty, error, struck=struck)
    if error is not None:
        scene.again(tm)
        world.victim.check_idle()
        again = scene.look()
        assert again is None or again >= scene.effect
    scene.done = (scene.had or 0) + (1 if error is not None else 0)
    settle(scene)
    return struck


def check_first(
    scene: Scene,
    fault: Fault,
    faulty: FaultyEngine,
    error: BaseException | None,
    *,
    struck: bool,
) -> None:
    """The first call says what happened: no error when all was well, the right one else."""
    had = scene.had
    if error is None:
        assert had is None or had == scene.effect
        return
    assert struck, f"an error without a fault: {error!r}"
    if not scene.callers:
        expected = OURS.get(fault, StoreUnavailableError)
        assert isinstance(error, expected), f"{fault} came out as {error!r}"
        assert not (fault is Fault.CONFLICT and scene.retried)
    applied = fault in {Fault.AFTER, Fault.INTERRUPT, Fault.LOST}
    if had is None or not scene.atomic:
        return
    if faulty.at_commit:
        assert had == (scene.effect if applied else 0)
    elif not (faulty.alone and applied):
        assert had == 0, "an error before the commit left something behind"


def caught(work: Callable[[], None]) -> BaseException | None:
    """Run `work`; returns what a fault of ours made of it, and raises anything else."""
    try:
        work()
    except InjectedInterrupt as error:
        # SQLAlchemy has closed the connection, and SQLite keeps its lock while a frame of the
        # traceback holds a cursor. In a caller's own transaction that is the caller's to end.
        traceback.clear_frames(error.__traceback__)
        return error
    except (InjectedError, StoreUnavailableError, SQLAlchemyError) as error:
        return error
    return None
