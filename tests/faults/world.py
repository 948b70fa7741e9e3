"""One store with two processes at it: one that faults strike, and one that sees and tidies up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.engine.bench import eventually
from tests.faults.striking import FaultyEngine
from threadmill_sa import Every, Threadmill
from threadmill_sa.clock import SystemClock
from threadmill_sa.engine.processing.failures import FailurePath
from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    Job,
    JobId,
    NewJob,
    NodeId,
    OrphanedJob,
    OutcomeKind,
)
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import AFTER_ALL

RELAY, MAIL = "relay", "mail"
ROUNDS = 20
UNFINISHED = {JobState.AWAITING, JobState.SCHEDULED, JobState.ENQUEUED, JobState.PROCESSING}
LATER = timedelta(days=400)  # past every pause between attempts
_names = itertools.count(1)


class Victim(Protocol):
    """The process that faults strike."""

    @property
    def tm(self) -> Threadmill: ...

    def check_idle(self) -> None:
        """Fail when it holds a connection or a transaction that it should have given back."""


@dataclass
class World:
    """A store, seen by a process that nothing strikes."""

    tm: Threadmill
    victim: Victim
    sql: Engine | None = None  # of the observer; None in memory
    business: Engine | None = None  # what the victim's callers write their rows with
    claims: Counter[JobId] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for process in (self.tm, self.victim.tm):
            declare_handlers(process)
        # What happens once per process is over before anything is counted.
        self.victim.tm.list_recurring()
        self.victim.tm.list_jobs(limit=1)
        self.victim.tm.store.nodes.list()
        with self.rows().begin() as connection:
            connection.execute(text("CREATE TABLE orders (note TEXT)"))

    @property
    def store(self) -> JobStore:
        return self.tm.store

    def rows(self) -> Engine:
        engine = self.sql or self.business
        assert engine is not None
        return engine

    # Arranging -------------------------------------------------------------------------------

    def name(self, what: str = "task") -> str:
        return f"{what}-{next(_names):06d}"

    def new_id(self) -> JobId:
        return JobId(self.tm._ids(SystemClock().now()))

    def new_node(self) -> NodeId:
        return NodeId(self.new_id())

    def new_jobs(self, count: int, **fields: Any) -> list[NewJob]:
        given: dict[str, Any] = {"handler": RELAY, **fields}
        return [NewJob(id=self.new_id(), **given) for _ in range(count)]

    def stored_jobs(self, count: int, **fields: Any) -> list[NewJob]:
        jobs = self.new_jobs(count, **fields)
        self.store.jobs.insert(jobs)
        return jobs

    def task(self, name: str | None = None, **options: Any) -> str:
        """Register a task from a process that declares no other."""
        name = name or self.name()
        declaring(self.store, name, **options).register()
        return name

    def order(self, note: str) -> int:
        """How many rows of the caller's own bear `note`."""
        with self.rows().connect() as connection:
            found = connection.scalar(
                text("SELECT count(*) FROM orders WHERE note = :note"), {"note": note}
            )
        return int(found or 0)

    @contextmanager
    def caller(self, note: str) -> Iterator[Session]:
        """A transaction of the victim's caller that has written a row of its own."""
        assert self.business is not None
        with Session(self.business) as session, session.begin():
            session.execute(text("INSERT INTO orders VALUES (:note)"), {"note": note})
            yield session

    # Looking ---------------------------------------------------------------------------------

    def job(self, job_id: JobId) -> Job:
        job = self.store.jobs.get(job_id)
        assert job is not None, f"job {job_id} is lost"
        return job

    def instances(self, name: str) -> list[Job]:
        """The jobs of a task, oldest first."""
        found = self.store.jobs.list(task=name, limit=500)
        return [self.job(each.id) for each in reversed(found)]

    def pending(self, name: str) -> frozenset[int]:
        view = self.store.recurring.get(name)
        return frozenset() if view is None else view.nudge_revisions

    # Tidying up ------------------------------------------------------------------------------

    def claim(self, node: NodeId, limit: int = 100) -> list[ClaimedJob]:
        claimed = self.store.jobs.claim(node, queues=None, handlers=[RELAY, MAIL], limit=limit)
        self.claims.update(job.id for job in claimed)
        return claimed

    def finish(self, node: NodeId, jobs: list[ClaimedJob]) -> None:
        self.store.jobs.finish(node, [success(job) for job in jobs])

    def settle(self) -> None:
        """Do what nodes do, until nothing is left: tick, reclaim, promote, claim and finish."""
        node = self.new_node()
        for _ in range(ROUNDS):
            ticked = self.tm.tick()
            reclaimed = self.store.jobs.reclaim(decide_orphan, silent_since=AFTER_ALL, limit=100)
            promoted = self.store.jobs.promote(limit=100, now=SystemClock().now() + LATER)
            claimed = self.claim(node)
            self.finish(node, claimed)
            if not (ticked or reclaimed or promoted or claimed):
                return
        raise AssertionError(f"still busy after {ROUNDS} rounds")

    def check_consistent(self) -> None:
        """Fail when a job is unfinished, a count is wrong or a connection was not given back."""
        self.victim.check_idle()
        counts = self.store.jobs.counts()
        assert not {state: counts[state] for state in UNFINISHED if counts[state]}
        assert not self.store.jobs.queue_depths()
        if self.sql is None:
            return
        with self.sql.connect() as connection:
            found = connection.execute(
                text("SELECT state, count(*) AS n FROM threadmill_jobs GROUP BY state")
            )
            real = {row.state: row.n for row in found}
        assert {state.value: n for state, n in counts.items() if n} == real


class SqlVictim:
    """A process on an engine with few connections, so that one that is leaked is missed."""

    def __init__(self, faulty: FaultyEngine, observer: Engine) -> None:
        self.faulty = faulty
        self.tm = Threadmill(faulty.engine)
        self.tm.store.__dict__["wakes"] = _Quiet()  # its side connection would be struck as well
        self._observer = observer
        self.watch: Callable[[], None] = self._watch_postgres
        if observer.dialect.name == "sqlite":
            self.watch = self._watch_sqlite

    def check_idle(self) -> None:
        pool: Any = self.faulty.engine.pool
        assert pool.checkedout() == 0, "a connection was not given back"
        self.watch()

    def _watch_postgres(self) -> None:
        eventually(lambda: not self._open_transactions(), "the end of the victim's transactions")

    def _open_transactions(self) -> list[Any]:
        with self._observer.connect() as connection:
            found = connection.execute(
                text(
                    "SELECT state, query FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
                    " AND backend_type = 'client backend'"
                )
            )
            return list(found)

    def _watch_sqlite(self) -> None:
        with self._observer.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            before = driver.execute("PRAGMA busy_timeout").fetchone()[0]
            driver.execute("PRAGMA busy_timeout = 0")
            driver.rollback()
            driver.execute("BEGIN IMMEDIATE")  # at once, or somebody still writes
            driver.rollback()
            driver.execute(f"PRAGMA busy_timeout = {before}")


def sql_world(observer: Engine, faulty: FaultyEngine) -> World:
    """A world of one database, seen through two engines."""
    victim = SqlVictim(faulty, observer)
    return World(Threadmill(observer), victim, sql=observer, business=faulty.engine)


class _Quiet:
    """A channel with nobody at its other end."""

    def notify(self) -> None:
        pass

    def notify_when_committed(self, slot: int) -> None:
        pass

    def listen(self, on_wake: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


def declare_handlers(process: Threadmill) -> None:
    process.job(RELAY)(_relay)
    process.job(MAIL, queue=MAIL)(_mail)


def declaring(store: JobStore, name: str, **options: Any) -> Threadmill:
    """A process that declares one task and has not registered it."""
    process = Threadmill(store)
    declare_handlers(process)
    trigger = options.pop("trigger", None) or Every(hours=1)
    process.recurring(name, RELAY, trigger, **options)
    return process


def success(job: ClaimedJob) -> AttemptOutcome:
    return AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)


def decide_orphan(orphan: OrphanedJob) -> AttemptOutcome:
    return FailurePath(lambda: 0.5)(orphan, None, reason=failure.ORPHAN, message="worker lost")


def _relay() -> None:
    """The tests claim and finish by hand."""


def _mail(payload: int) -> None:
    """Any other work."""
