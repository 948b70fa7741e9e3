"""The same operations in memory: each call of the store fails before or after its effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.faults import caller_scenes, job_scenes, ledger, recurring_scenes
from tests.faults.scenes import STATEMENTS_MAX, Scene, settle
from tests.faults.world import World
from threadmill_sa import Threadmill
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.nodes import Nodes
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.testing.stores import FaultingStore

SCENES = tuple(
    scene
    for scene in (*job_scenes.SCENES, *recurring_scenes.SCENES, *caller_scenes.SCENES)
    if not scene.joins
)
OPERATIONS = [
    f"{role}.{name}"
    for role, protocol in (("jobs", Jobs), ("recurring", Recurring), ("nodes", Nodes))
    for name in vars(protocol)
    if not name.startswith("_")
]
WHEN = {False: "error before", True: "error after"}


class MemoryVictim:
    """A process whose every call to the store goes through the faults."""

    def __init__(self, store: FaultingStore) -> None:
        self.store = store
        self.tm = Threadmill(store)

    def check_idle(self) -> None:
        """It has neither connections nor transactions."""


@pytest.fixture
def victim() -> MemoryVictim:
    return MemoryVictim(FaultingStore(Threadmill.in_memory().store))


@pytest.fixture
def world(victim: MemoryVictim, tmp_path: Path) -> Iterator[World]:
    # The caller's rows have a database of their own; the store waits for its commits.
    business = create_engine(f"sqlite:///{tmp_path / 'business.db'}", poolclass=NullPool)
    yield World(Threadmill(victim.store.inner), victim, business=business)
    business.dispose()


@pytest.mark.parametrize("after", [False, True], ids=WHEN.get)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_nothing_is_lost_or_doubled_by_a_call_that_fails(
    world: World,
    victim: MemoryVictim,
    scene: type[Scene],
    after: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    for bound, value in scene.limits.items():
        monkeypatch.setattr(limits, bound, value)

    strikes = 0
    for operation in OPERATIONS:
        for number in range(STATEMENTS_MAX):
            if not _strike_once(world, victim, scene(world), operation, number, after=after):
                break
            ledger.note("memory", scene.__name__, WHEN[after])
            strikes += 1

    assert strikes


def _strike_once(
    world: World,
    victim: MemoryVictim,
    scene: Scene,
    operation: str,
    number: int,
    *,
    after: bool,
) -> bool:
    """Let call `number` of `operation` fail; False when there are fewer in the scene."""
    before = victim.store.calls(operation)
    victim.store.fail(operation, skip=number, times=1, after=after)
    error: Exception | None = None
    try:
        scene.act(victim.tm)
    except StoreUnavailableError as failure:
        error = failure
    struck = victim.store.calls(operation) - before > number
    victim.store.mend()
    scene.had = scene.look()
    if error is None:
        assert scene.had is None or scene.had == scene.effect
    else:
        assert struck
        if scene.atomic and scene.had is not None:
            assert scene.had == (scene.effect if after else 0)
        scene.again(victim.tm)
    scene.done = (scene.had or 0) + (1 if error is not None else 0)
    settle(scene)
    return struck
