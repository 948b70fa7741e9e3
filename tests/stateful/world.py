"""The stores that examples use in turn, the processes on them, and what they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Engine, create_engine, event, inspect, text

from tests.stateful.laws import Seen
from tests.stateful.model import Definition
from tests.stateful.timetable import STARTS, Timing
from threadmill_sa import Cron, Every, Threadmill
from threadmill_sa.model.job import ClaimedJob, Job, NodeId
from threadmill_sa.model.limits import LIST_MAX
from threadmill_sa.model.state import UNFINISHED
from threadmill_sa.spi.store import JobStore
from threadmill_sa.sqlite import configure
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing import ManualClock

HANDLERS = ("relay", "mail")
# What callers read and write beside our tables. Had they both in one table, two SERIALIZABLE
# callers could not both commit, with or without us.
READ, WRITTEN = "business_stock", "business_orders"
KEPT = {"threadmill_alembic_version", "threadmill_schema_history", "threadmill_store_identity"}
LOCK_TIMEOUT_MS = 3000  # a wait that should not be shows as an error


class World(Protocol):
    """One store, emptied for each example, and the engine of the callers' sessions."""

    clock: ManualClock
    engine: Engine
    steps: Counter[str]  # what was explored, over all examples

    def reset(self) -> None:
        """Make everything as new."""
        ...

    def connect(self) -> JobStore:
        """The store as another process has it."""
        ...

    def state_rows(self) -> int | None:
        """How many rows of schedule state there are, where they can be counted."""
        ...


class MemoryWorld:
    """The store in memory; its callers' sessions are on a database that knows nothing of it."""

    def __init__(self, engine: Engine, steps: Counter[str]) -> None:
        self.engine = engine
        self.clock = ManualClock(STARTS[0])
        self.steps = steps
        _create_rows(engine)
        self.reset()

    def reset(self) -> None:
        self._store = MemoryStore()

    def connect(self) -> JobStore:
        return self._store

    def state_rows(self) -> int | None:
        return None


class SilentStore(SqlStore):
    """Sends no wakes: they are hints, and would only start threads."""

    wakes = None  # type: ignore[assignment]


class SqlWorld:
    """A SQL store; callers write business rows in the same database."""

    def __init__(self, engine: Engine, steps: Counter[str]) -> None:
        self.engine = engine
        self.clock = ManualClock(STARTS[0])
        self.steps = steps
        _create_rows(engine)
        tables = [name for name in inspect(engine).get_table_names() if name not in KEPT]
        # Made once, since a store builds all its statements; each has its own block of revisions.
        self._stores = [SilentStore(engine, clock=self.clock) for _ in range(5)]
        self._next = cycle(self._stores)
        # Jobs first: their triggers write deltas.
        self._tables = sorted(tables, key=lambda name: name != "threadmill_jobs")

    def reset(self) -> None:
        with self.engine.begin() as connection:
            for name in self._tables:
                connection.execute(text(f"DELETE FROM {name}"))
        self._next = cycle(self._stores)

    def connect(self) -> JobStore:
        return next(self._next)

    def state_rows(self) -> int | None:
        with self.engine.connect() as connection:
            found = connection.scalar(text("SELECT count(*) FROM threadmill_cron_task_state"))
        return int(found or 0)


def _create_rows(engine: Engine) -> None:
    with engine.begin() as connection:
        for name in (READ, WRITTEN):
            connection.execute(text(f"CREATE TABLE {name} (note TEXT)"))


@dataclass(eq=False)
class Node:
    """One process: what it declares, and the claims it believes to hold."""

    store: JobStore
    tm: Threadmill
    id: NodeId
    declared: Mapping[str, tuple[Definition, bool]]  # with the wish for `enabled`
    claims: list[ClaimedJob] = field(default_factory=list)


def start(
    store: JobStore,
    clock: ManualClock,
    declared: Mapping[str, tuple[Definition, bool]],
    random: Random,
) -> Node:
    """A process that declares these tasks, each with `enabled`; nothing is registered yet.

    Ids are drawn from `random`: jobs of one millisecond are claimed in the order of their ids, and
    an example that is played again has to meet them in the same order.
    """
    tm = Threadmill(store, clock=clock)
    tm._ids._entropy = random.randbytes
    for name in HANDLERS:
        tm.job(name)(_work)
    for name, (definition, enabled) in declared.items():
        tm.recurring(
            name,
            definition.handler,
            trigger(definition.timing),
            payload=definition.release,
            enabled=enabled,
            missed=definition.missed,
            queue=definition.queue,
            priority=definition.priority,
        )
    node_id = NodeId(tm._ids(clock.now()))
    return Node(store, tm, node_id, declared)


def trigger(timing: Timing) -> Cron | Every:
    if timing.seconds is None:
        return Cron(timing.text, zone=timing.zone)
    return Every(seconds=timing.seconds, anchor=timing.anchor)


def _work(payload: int) -> None:
    """What the tasks do; the machines claim and finish by hand."""


class Observer:
    """Reads everything through a connection of its own; ended jobs whole only when they moved."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.connect()
        self._whole: dict[UUID, Job] = {}

    def look(self, *, anew: bool = False) -> Seen:
        """What the store shows now; `anew` reads every job again.

        A line of the listing does not tell whether an unfinished job has moved: released and
        claimed again within one instant it shows what it showed before.
        """
        store = self._store
        listing = store.jobs.list(limit=LIST_MAX)
        assert len(listing) < LIST_MAX, "the example makes more jobs than a listing shows"
        for summary in listing:
            known = self._whole.get(summary.id)
            if anew or known is None or summary.state in UNFINISHED or _moved(known, summary):
                whole = store.jobs.get(summary.id)
                assert whole is not None
                self._whole[summary.id] = whole
        return Seen(
            tasks={view.name: view for view in store.recurring.list()},
            jobs={summary.id: self._whole[summary.id] for summary in listing},
            counts=store.jobs.counts(),
            depths=store.jobs.queue_depths(),
            state_rows=self._world.state_rows(),
        )


def _moved(known: Job, summary: Any) -> bool:
    return any(
        getattr(known, name) != getattr(summary, name)
        for name in ("state", "attempt", "state_at", "started_at", "owner_node_id", "scheduled_at")
    )


@contextmanager
def sqlite_sessions(url: str) -> Iterator[Engine]:
    """An engine with the documented recipe, which does not wait for the disk."""
    engine = create_engine(url)
    configure(engine)
    event.listen(engine, "connect", _careless)
    try:
        yield engine
    finally:
        engine.dispose()


def _careless(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()


@contextmanager
def postgres_sessions(url: str) -> Iterator[Engine]:
    engine = create_engine(
        url, connect_args={"options": f"-c lock_timeout={LOCK_TIMEOUT_MS}"}, pool_size=12
    )
    try:
        yield engine
    finally:
        engine.dispose()
