"""A shop with a recurring pump, and actors that stop after each of their statements."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from threadmill_sa import Every, Threadmill
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, JobId, NodeId, OutcomeKind
from threadmill_sa.model.nudge import NudgeReceipt
from threadmill_sa.model.recurring import CronTaskView
from threadmill_sa.spi.recurring import TaskOutcome
from threadmill_sa.spi.store import JobStore

WAIT_SECONDS = 20.0  # an actor that is not there by then hangs
PUMP, OTHER = "pump", "other"
_nodes = itertools.count(1)


@dataclass
class Shop:
    """One store with its Threadmill; a joining one has business rows beside it."""

    tm: Threadmill
    engine: Engine | None = None
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.tm.job("relay", queue="relay")(_relay)
        self.tm.job("mail", queue="mail")(_mail)
        for name in (PUMP, OTHER):
            self.tm.recurring(name, "relay", Every(hours=1))
        self.tm.register()
        if self.engine is not None:
            with self.engine.begin() as connection:
                connection.execute(text("CREATE TABLE orders (note TEXT)"))

    @property
    def store(self) -> JobStore:
        return self.tm.store

    @property
    def sql(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def fresh_task(self) -> str:
        """Register a task of its own for one scenario."""
        name = f"task-{next(self.names):04d}"
        self.declare(name)
        return name

    def declare(self, name: str, *, through: JobStore | None = None) -> None:
        """Register `name` from a process that knows only this task."""
        process = Threadmill(through or self.store)
        process.job("relay", queue="relay")(_relay)
        process.recurring(name, "relay", Every(hours=1))
        process.register()

    def nudge(self, name: str = PUMP) -> NudgeReceipt:
        """Nudge in a transaction of its own."""
        return self.tm.nudge(name)

    def view(self, name: str = PUMP) -> CronTaskView:
        return self.tm.get_recurring(name)

    def pending(self, name: str = PUMP) -> bool:
        return bool(self.view(name).nudge_revisions)

    def tick(self, *, later: timedelta | None = None) -> list[TaskOutcome]:
        now = None if later is None else datetime.now(UTC) + later
        return self.tm.tick(now=now)

    def instances(self, name: str = PUMP) -> list[Any]:
        """Every job of the task, oldest first."""
        return list(reversed(self.tm.list_jobs(task=name, limit=500)))

    def claim(self, limit: int = 100) -> tuple[NodeId, list[ClaimedJob]]:
        """Start whatever is ready, on a node of its own."""
        node = NodeId(JobId(self.tm._ids(datetime.now(UTC))))
        found = self.store.jobs.claim(node, queues=None, handlers=["relay", "mail"], limit=limit)
        return node, found

    def finish(self, node: NodeId, jobs: list[ClaimedJob]) -> None:
        ends = [
            AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)
            for job in jobs
        ]
        self.store.jobs.finish(node, ends)

    def run_all(self) -> int:
        """Run everything that is ready to its end."""
        node, jobs = self.claim()
        self.finish(node, jobs)
        return len(jobs)

    def settle(self, *, rounds: int = 10) -> int:
        """Tick and run until nothing happens; returns how many runs that took."""
        runs = 0
        for _ in range(rounds):
            done = self.tick()
            ran = self.run_all()
            runs += ran
            if not done and not ran:
                return runs
        raise AssertionError(f"still busy after {rounds} rounds")

    @contextmanager
    def transaction(self, isolation: str | None = None) -> Iterator[Session]:
        """A caller's transaction that has written a business row; committed at the end."""
        engine = self.sql
        if isolation is not None:
            engine = engine.execution_options(isolation_level=isolation)
        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            yield session


def _relay() -> None:
    """The pump's work; these tests claim and finish by hand."""


def _mail(payload: int) -> None:
    """Any other work."""


class Stepped:
    """Runs `action` in a thread and stops it after each statement sent through `engine`.

    It stands at boundary 0, before its first statement, until it is stepped.
    """

    def __init__(self, engine: Engine, action: Callable[[], Any]) -> None:
        self._engine = engine
        self._arrived = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._free = False
        self.statements: list[str] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        event.listen(engine, "after_cursor_execute", self._stop)
        self._thread.start()

    def _run(self, action: Callable[[], Any]) -> None:
        try:
            self._pass()
            self.result = action()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self.error = error
        finally:
            self._free = True
            self._arrived.release()

    def _stop(self, _conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if threading.current_thread() is self._thread:
            self.statements.append(statement)
            if not self._free:
                self._arrived.release()
                self._pass()

    def _pass(self) -> None:
        assert self._go.acquire(timeout=WAIT_SECONDS), "nobody stepped the actor"

    def step(self) -> bool:
        """Let one more statement run; False when the action has come to its end."""
        if self._free:
            return False
        self._go.release()
        assert self._arrived.acquire(timeout=WAIT_SECONDS), f"blocked after {self.statements}"
        return not self._free

    def advance(self, boundary: int) -> bool:
        """Step until `boundary` statements have run; False when there are fewer."""
        while len(self.statements) < boundary:
            if not self.step():
                return False
        return True

    def end(self) -> Any:
        """Let it run to its end and return its result."""
        self._free = True
        self._go.release()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), f"blocked after {self.statements}"
        event.remove(self._engine, "after_cursor_execute", self._stop)
        if self.error is not None:
            raise self.error
        return self.result


def in_thread(action: Callable[[], Any]) -> Callable[[], Any]:
    """Start `action` in a thread; the returned call waits for its end."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["result"] = action()
        except BaseException as error:  # noqa: BLE001 - raised again below
            box["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "the action did not come back"
        if "error" in box:
            raise box["error"]
        return box.get("result")

    return wait


@contextmanager
def background(*actions: Callable[[], Any]) -> Iterator[None]:
    """Each action again and again, in a thread of its own, within the block."""
    over = threading.Event()

    def repeat(action: Callable[[], Any]) -> None:
        while not over.is_set():
            action()

    waits = [in_thread(partial(repeat, action)) for action in actions]
    try:
        yield
    finally:
        over.set()
        for wait in waits:
            wait()


def impatient(engine: Engine, milliseconds: int = 1000) -> Engine:
    """An engine of the same PostgreSQL database that gives up waiting for a lock.

    A wait that should not be shows as an error instead of a test that hangs.
    """
    options = {"options": f"-c lock_timeout={milliseconds}"}
    return create_engine(engine.url, connect_args=options)
