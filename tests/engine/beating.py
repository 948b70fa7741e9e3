"""A node that beats by hand, on a clock of the store and one of the process."""

from __future__ import annotations

from datetime import datetime

from threadmill_sa.engine.processing.attempts import AttemptBook
from threadmill_sa.engine.processing.heartbeats import Heartbeats
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.testing import ManualClock
from threadmill_sa.testing.suite.tools import T0, claim, new_node, seconds

EVERY, TIMEOUT = 15.0, 60.0


class World:
    """The store in memory and the clock: its own when it jumps, everybody's when time passes."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.store = MemoryStore(self.clock)

    def pass_seconds(self, count: float) -> None:
        self.clock.advance(count)

    def jump(self, count: float) -> None:
        self.clock.set(self.clock.now() + seconds(count))


class Beating:
    """One node; `told` counts how often it learnt that the store has lost it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.node = NodeInfo(new_node(), "host", 1, None, 2)
        self.held: list[HeldJob] = []
        self.told = 0
        self.failing = False
        self._beats = Heartbeats(
            "beats",
            world.store.nodes,
            self.node,
            _Book(self),
            every_seconds=EVERY,
            timeout_seconds=TIMEOUT,
            elapsed=world.clock.monotonic,
            on_lost=lambda _: None,
            on_forgotten=self._tell,
        )

    def _tell(self) -> None:
        self.told += 1
        if self.failing:
            raise RuntimeError("the store is out")

    def claim(self) -> None:
        """Hold whatever is ready."""
        claimed = claim(self._world.store, self.node.id, at=self._world.clock.now())
        self.held = [HeldJob(job.id, job.attempt_token) for job in claimed]

    def beat(self) -> None:
        self._beats._beat()

    def silent_since(self, count: float = TIMEOUT) -> datetime | None:
        return self._beats.silent_since(count)

    def lose(self) -> None:
        self._world.store.nodes.remove(self.node.id)


class _Book(AttemptBook):
    """Tells of the jobs that its node says it holds."""

    def __init__(self, beating: Beating) -> None:
        super().__init__(2)
        self._beating = beating

    def holds(self) -> list[HeldJob]:
        return self._beating.held
