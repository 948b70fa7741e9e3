"""The world as Hypothesis drives it: two processes, callers' transactions, a clock, operators.

After every step everything that the store shows is compared with the model, and the promises are
read from its logs. Each rule predicts its own answer as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.stateful import laws
from tests.stateful.model import Definition, Model
from tests.stateful.timetable import STARTS, TIMINGS
from tests.stateful.world import HANDLERS, Node, Observer, World, start
from threadmill_sa.model.recurring import MissedRunPolicy
from threadmill_sa.session import hooks
from threadmill_sa.spi.store import JobStore

NODES = st.integers(0, 1)
NAMES = st.sampled_from(("pump", "pump", "pump", "pump", "audit", "audit", "sweep"))
QUEUES = ("default", "bulk")
RANGE = timedelta(days=40)  # the clock stays so close to its start

MOVES = st.sampled_from(
    [
        timedelta(microseconds=1),
        timedelta(seconds=30),
        timedelta(minutes=7),
        timedelta(minutes=10),
        timedelta(hours=1),
        timedelta(hours=26),
        timedelta(days=3),
        timedelta(microseconds=-1),
        timedelta(minutes=-10),
        timedelta(hours=-2),
    ]
)

definitions = st.builds(
    Definition,
    release=st.just(0),
    handler=st.sampled_from(HANDLERS),
    timing=st.sampled_from(TIMINGS),
    missed=st.sampled_from(MissedRunPolicy),
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from((0, 5)),
)


class WorldMachine(RuleBasedStateMachine):
    """What all rules stand on: the processes, the model and the comparison after each step."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model = Model()
        self.clock = world.clock
        self.releases = 0
        self._random = Random(0)
        world.reset()
        self.observer = Observer(world)
        self.nodes: list[Node] = []
        self.seen: laws.Seen | None = None
        self.capabilities = world.connect().capabilities
        self.deferred = {"written": 0, "refused": 0, "discarded": 0, "failed": 0, "faults": 0}
        self._counted = self._hook_counters()

    @initialize(begin=st.sampled_from(STARTS), first=definitions, second=definitions)
    def begin(self, begin: datetime, first: Definition, second: Definition) -> None:
        self.started_at = begin
        self.clock.set(begin)
        self.nodes = [self._start(self.world.connect(), {}) for _ in range(2)]
        self.deploy_on(0, {"pump": first, "audit": second}, cold=False)
        self.world.steps["examples"] += 1

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def free(self) -> bool:
        """Whether a transaction of the engine's own can write now."""
        raise NotImplementedError

    def count(self, what: str, times: int = 1) -> None:
        """Count what was explored, for the summary of the run."""
        self.world.steps[what] += times

    def deploy_on(
        self,
        number: int,
        definitions: dict[str, Definition],
        *,
        cold: bool,
        enabled: bool = True,
    ) -> None:
        """Replace one process by one of a new release, which registers what it declares."""
        old = self.nodes[number]
        declared: dict[str, tuple[Definition, bool]] = {}
        for name, definition in definitions.items():
            self.releases += 1
            declared[name] = (replace(definition, release=self.releases), enabled)
        self.replace_node(number, self.world.connect() if cold else old.store, declared)

    def replace_node(
        self, number: int, store: JobStore, declared: Mapping[str, tuple[Definition, bool]]
    ) -> None:
        """End one process where it stands; another one begins and registers."""
        self.nodes[number] = self._start(store, declared)
        self.register_on(number)

    def _start(self, store: JobStore, declared: Mapping[str, tuple[Definition, bool]]) -> Node:
        return start(store, self.clock, declared, self._random)

    def register_on(self, number: int) -> None:
        """Let a process write what it declares, as each start does."""
        node = self.nodes[number]
        node.tm.register()
        for name, (definition, enabled) in node.declared.items():
            self.model.register(name, definition, enabled=enabled, now=self.now)

    @rule(by=MOVES)
    def move_the_clock(self, by: timedelta) -> None:
        """Time passes, or somebody sets the clock back."""
        if abs(self.now + by - self.started_at) < RANGE:
            self.clock.set(self.now + by)

    @invariant()
    def everything_is_as_promised(self) -> None:
        if not self.nodes:
            return
        self.count("steps")
        seen = self.observer.look()
        laws.check(self.model, self.seen, seen)
        self.seen = seen
        found = {
            name: value - self._counted[name] for name, value in self._hook_counters().items()
        }
        assert found == self.deferred, "what waited for commits"

    def _hook_counters(self) -> dict[str, int]:
        return {name: getattr(hooks.counters, name) for name in self.deferred}
