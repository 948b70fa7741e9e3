"""A store set up for races: a scene that is built once and put back before each schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from tests.races.driver import Driver, Nobody
from tests.races.gates import CallGates, StatementGates
from threadmill_sa import Every, Threadmill
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.declarations import declare_task
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, NodeId, OutcomeKind
from threadmill_sa.model.recurring import CronTask
from threadmill_sa.stores.memory.store import MemoryStore

PUMP, OTHER, MAIL = "pump", "other", "mail"
HANDLERS = ("relay-a", "relay-b", "relay-c")  # of the first, the edited and the renewed task
ALL_HANDLERS = (*HANDLERS, MAIL)
FINISHER = NodeId(UUID(int=1))  # holds what is running when a schedule begins
ROUNDS_MAX = 15  # of the drain; more means that the system does not come to rest
_ids = Uuid7Source()


def new_node() -> NodeId:
    return NodeId(_ids(datetime.now(UTC)))


def definition(handler: str) -> CronTask:
    """The pump, every hour, with `handler`."""
    return declare_task(
        PUMP,
        handler=handler,
        trigger=Every(hours=1),
        payload=None,
        queue="relay",
        priority=0,
        enabled=True,
        missed="drop",
        timeout=None,
        max_attempts=5,
    )


def success(job: ClaimedJob) -> AttemptOutcome:
    return AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)


@dataclass
class Seat:
    """Where one actor works: its own engine and Threadmill, and what it was told."""

    tm: Threadmill
    gates: StatementGates | None
    node: NodeId = field(default_factory=new_node)
    told: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        assert self.gates is not None
        return self.gates.engine


@dataclass(frozen=True, slots=True)
class StoredJob:
    id: UUID
    state: str
    handler: str
    token: int
    task: str | None
    origin: str | None


@dataclass(frozen=True, slots=True)
class StoredTask:
    name: str
    handler: str | None  # None: a schedule state that has no definition
    enabled: bool
    anchor_at: datetime | None
    next_run_at: datetime | None


@dataclass(slots=True)
class Ending:
    """The store after it has come to rest."""

    tasks: list[StoredTask]
    jobs: list[StoredJob]
    counts: dict[str, int]  # of jobs by state, as the store counts them
    depths: dict[str, int]  # of queues that are not empty
    pending: int  # nudges of the registered task
    orders: int | None  # rows that callers committed; None where callers have no table


class Stage:
    """A store, seats for its actors, and the driver that directs them."""

    one_writer = False  # an open write transaction holds up every other writer

    def __init__(self, quiet: Threadmill, driver: Driver) -> None:
        self.quiet = declared(quiet)
        self.driver = driver
        self.seats: list[Seat] = []
        self.running: list[ClaimedJob] = []
        self.scene_jobs: set[UUID] = set()
        self.nudges = 0  # pending when a schedule begins
        self.claims: list[tuple[UUID, int]] = []
        self.needs: frozenset[str] | None = None  # of the scene that stands; None before
        self.lengths: dict[frozenset[str] | None, dict[str, int]] = {}  # see performing.lengths

    @property
    def store(self) -> Any:
        return self.quiet.store

    # The scene.

    def build(self, needs: frozenset[str]) -> None:
        """Set up what the actors need.

        nudged: something to consume, and to compact while an instance is unfinished; due: the
        next fire is overdue; running: an instance that FINISHER holds; queued: an instance that
        is ready; mail: another job that is ready; second: another task that is nudged, so that a
        tick has two of them in one transaction.
        """
        self.needs = None
        self._empty()
        registered = datetime.now(UTC) - timedelta(minutes=90) if "due" in needs else None
        self.store.recurring.register(definition(HANDLERS[0]), now=registered)
        self.running = []
        if "running" in needs:
            self.quiet.trigger(PUMP)
            self.running = self.store.jobs.claim(FINISHER, queues=None, handlers=HANDLERS, limit=9)
            self._start(self.running)
        if "second" in needs:
            self.store.recurring.register(replace(definition(HANDLERS[0]), name=OTHER))
            self.store.recurring.request_cron_nudge(OTHER)
        if "queued" in needs:
            self.quiet.trigger(PUMP)
        if "mail" in needs:
            self.quiet.enqueue(MAIL, 1)
        # Two where an instance is unfinished, so that there is something to compact.
        self.nudges = 2 if needs & {"running", "queued"} else 1
        self.nudges *= "nudged" in needs
        for _ in range(self.nudges):
            self.store.recurring.request_cron_nudge(PUMP)
        self.scene_jobs = {job.id for job in self.store.jobs.list(limit=500)}
        self._save()
        self.needs = needs

    def reset(self) -> None:
        """Put the scene back."""
        self.claims = [(job.id, job.attempt_token) for job in self.running]
        for seat in self.seats:
            seat.told.clear()
            if seat.gates is not None:
                seat.gates.errors.clear()
        self._restore()

    # The ending.

    def drain(self) -> bool:
        """End what the actors hold, then tick and run; False when there is always more to do."""
        store = self.store
        for node, jobs in self._held():
            self._finish(node, jobs)
        reclaimed = any(word == "reclaimed" for seat in self.seats for word, _ in seat.told)
        for _ in range(ROUNDS_MAX):
            if reclaimed:
                store.jobs.promote(limit=100)
            node = new_node()
            claimed = store.jobs.claim(node, queues=None, handlers=ALL_HANDLERS, limit=100)
            self._claimed(claimed)
            self._finish(node, claimed)
            if not self.quiet.tick():
                return True
        return False

    def _held(self) -> Iterator[tuple[NodeId, list[ClaimedJob]]]:
        yield FINISHER, self.running
        for seat in self.seats:
            for word, value in seat.told:
                if word == "claimed":
                    self._claimed(value)
                    yield seat.node, value

    def _claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        self.claims += [(job.id, job.attempt_token) for job in jobs]
        self._start(jobs)

    def _start(self, jobs: Sequence[ClaimedJob]) -> None:
        """Record the start of each run, as a node does where recording is on."""
        if self.store.records is not None:
            for job in jobs:
                if job.cron_task_name is not None:
                    self.store.records.record_run(job.cron_task_name, job.id, job.attempt)

    def _finish(self, node: NodeId, jobs: list[ClaimedJob]) -> None:
        if jobs:
            ends = [success(job) for job in jobs]
            verdicts = self.store.jobs.finish(node, ends)
            self.seats[0].told.append(("ended", list(zip(ends, verdicts, strict=True))))

    def ending(self) -> Ending:
        """Read what is left."""
        store = self.store
        tasks = store.recurring.list()
        jobs = [store.jobs.get(each.id) for each in store.jobs.list(limit=500)]
        return Ending(
            tasks=[
                StoredTask(task.name, task.handler, task.enabled, task.anchor_at, task.next_run_at)
                for task in tasks
            ],
            jobs=[
                StoredJob(
                    job.id,
                    job.state.value,
                    job.handler,
                    job.attempt_token,
                    job.cron_task_name,
                    job.cron_origin,
                )
                for job in jobs
            ],
            counts={state.value: n for state, n in store.jobs.counts().items() if n},
            depths=dict(store.jobs.queue_depths()),
            pending=sum(len(task.nudge_revisions) for task in tasks),
            orders=None,
        )

    def _empty(self) -> None:
        raise NotImplementedError

    def _save(self) -> None:
        raise NotImplementedError

    def _restore(self) -> None:
        raise NotImplementedError


def declared(tm: Threadmill) -> Threadmill:
    """Declare every handler; the tests claim and finish by hand."""

    def work(payload: int | None = None) -> None:
        del payload

    for name in HANDLERS:
        tm.job(name, queue="relay")(work)
    tm.job(MAIL, queue="mail")(work)
    return tm


class MemoryStage(Stage):
    """Gates are calls of the store; a scene is built anew each time."""

    def __init__(self, seats: int) -> None:
        super().__init__(Threadmill.in_memory(), Driver(seats, Nobody()))

    def _empty(self) -> None:
        tm = Threadmill(MemoryStore(self.quiet._clock))
        self.quiet = declared(tm)
        self.seats = [
            Seat(declared(Threadmill(CallGates(tm.store, actor))), None)
            for actor in self.driver.actors
        ]

    def _save(self) -> None:
        pass

    def reset(self) -> None:
        self.build(self.needs or frozenset())
        super().reset()

    def _restore(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def closing(stage: Any) -> Iterator[Any]:
    try:
        yield stage
    finally:
        stage.close()
