"""Threadmill: what users hold. It chooses the store and wires the engine; it has no logic."""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Engine

from threadmill_sa._util.forks import ChildLock
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.clock import Clock, SystemClock
from threadmill_sa.engine.client import (
    JobFactory,
    manual_instance,
    payload_text,
    upcoming_fires,
)
from threadmill_sa.engine.processing.handlers import (
    HandlerFunction,
    HandlerRegistry,
    declare_handler,
)
from threadmill_sa.engine.processing.inline import run_until_idle
from threadmill_sa.engine.processing.node import ProcessingNode
from threadmill_sa.engine.processing.options import NodeOptions
from threadmill_sa.engine.recurring.coalescer import NudgeCoalescer
from threadmill_sa.engine.recurring.declarations import TaskDeclarations, declare_task
from threadmill_sa.engine.recurring.materializer import Materializer
from threadmill_sa.errors import InvalidValueError, UnknownTaskError, UnsupportedStoreError
from threadmill_sa.keeping import Keeping
from threadmill_sa.leading import Leading
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.names import check_instant, check_name
from threadmill_sa.model.nudge import EnqueueMode, NudgeOutcome, NudgeReceipt
from threadmill_sa.model.recurring import (
    CronTaskView,
    FlipOutcome,
    MissedRunPolicy,
    RegisterOutcome,
)
from threadmill_sa.model.retention import DEFAULT_RETENTION, Retention, check_retention
from threadmill_sa.model.retry import DEFAULT_BACKOFF, Backoff
from threadmill_sa.model.trigger import Trigger
from threadmill_sa.session.boundary import SessionBoundary
from threadmill_sa.session.refusals import parse_mode
from threadmill_sa.spi.recurring import TaskOutcome
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.choice import choose_store
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.modes import SchemaMode

if TYPE_CHECKING:
    from redis import Redis
    from sqlalchemy.ext.asyncio import AsyncEngine

F = TypeVar("F", bound=HandlerFunction)

_log = logging.getLogger("threadmill_sa")


class Threadmill(Leading, Keeping):
    """Durable jobs, recurring tasks and nudges on your own engine.

    Declaring jobs and tasks touches no database. Delivery is **at least once**: handlers must
    be idempotent.

    Args:
        engine: a sync `Engine` for PostgreSQL 15+ or a SQLite 3.35+ file; or a `JobStore`.
        also: engines (sync or async) of the same database that producers' sessions use.
        schema: the database schema of our tables (PostgreSQL); None is the connection's own.
        schema_mode: "validate" (default), "migrate", "none" or "drop-and-migrate" (which also
            needs `allow_destructive_reset`): what `node`, the worker and `run_until_idle` do
            once before they start. A producer's call never checks.
        enqueue_mode: the mode of calls with a session; None joins where the store can.
        retention: how long finished jobs are kept; nodes remove them then. `Retention()` is the
            default: 7 days, and 30 for failed and quarantined ones.
        clock: an injected clock, for tests; None is the store's own.
        record_nudges: keep a log of nudges and runs for `assert_every_nudge_covered` of
            `threadmill_sa.testing`; it costs a statement per nudge and run, and grows.
    Raises: UnsupportedStoreError for other dialects and for SQLite in memory; InvalidValueError;
        CannotJoinError when the mode is one that the store cannot serve.
    """

    def __init__(
        self,
        engine: Engine | JobStore,
        *,
        also: Sequence[Engine | AsyncEngine] = (),
        schema: str | None = None,
        schema_mode: SchemaMode | str = SchemaMode.VALIDATE,
        allow_destructive_reset: bool = False,
        enqueue_mode: EnqueueMode | str | None = None,
        retention: Retention = DEFAULT_RETENTION,
        clock: Clock | None = None,
        record_nudges: bool = False,
    ) -> None:
        self._retention = check_retention(retention)
        self._clock = clock or SystemClock()
        self._store, self._manager = choose_store(
            engine, also=also, schema=schema, clock=self._clock, record_nudges=record_nudges
        )
        self._schema_mode = SchemaMode.parse(
            schema_mode, allow_destructive_reset=allow_destructive_reset
        )
        self._ids = Uuid7Source()
        self._handlers = HandlerRegistry()
        self._tasks = TaskDeclarations()
        self._jobs = JobFactory(self._handlers, self._clock, self._ids)
        self._nodes: weakref.WeakSet[ProcessingNode] = weakref.WeakSet()
        self._preparing = ChildLock()
        self._prepared = False
        self._boundary = SessionBoundary(
            self._store,
            immediate_nudge=NudgeCoalescer(self._write_nudge).request,
            immediate_insert=self._write_jobs,
            default_mode=None if enqueue_mode is None else parse_mode(enqueue_mode),
            on_local_wake=self._wake_nodes,
            explain_unknown=self._explain_unknown,
            instant=self._instant,
        )

    @classmethod
    def in_memory(
        cls,
        *,
        retention: Retention = DEFAULT_RETENTION,
        clock: Clock | None = None,
        record_nudges: bool = False,
    ) -> Self:
        """Return a Threadmill that keeps everything in this process: for tests and trials."""
        store = MemoryStore(clock or SystemClock(), record_nudges=record_nudges)
        return cls(store, retention=retention, clock=clock)

    @classmethod
    def redis(
        cls,
        client: Redis,
        prefix: str = "threadmill",
        *,
        trust_memory_policy: bool = False,
        wait_replicas: int = 0,
        enqueue_mode: EnqueueMode | str | None = None,
        retention: Retention = DEFAULT_RETENTION,
        clock: Clock | None = None,
        record_nudges: bool = False,
    ) -> Self:
        """Return a Threadmill on your own Redis 6.2+ or Valkey client; it sends nothing yet.

        Args:
            client: a sync `redis.Redis` with a pool, whatever its decoding and protocol.
            prefix: of every key; one per application.
            trust_memory_policy: accept a server whose maxmemory-policy is hidden or evicts.
            wait_replicas: a nudge or an enqueue waits until so many replicas have confirmed it,
                and raises StoreUnavailableError when they do not.
            retention, record_nudges: as in `Threadmill`.
        Raises: UnsupportedStoreError for other clients, InvalidValueError; CannotJoinError for
            `enqueue_mode="join_transaction"`.
        """
        from threadmill_sa.stores.redis.store import RedisStore  # noqa: PLC0415 - optional extra

        store = RedisStore(
            client,
            prefix=prefix,
            trust_memory_policy=trust_memory_policy,
            wait_replicas=wait_replicas,
            record_nudges=record_nudges,
        )
        return cls(store, enqueue_mode=enqueue_mode, retention=retention, clock=clock)

    @property
    def store(self) -> JobStore:
        """The store, by its contract `threadmill_sa.spi`."""
        return self._store

    @property
    def schema(self) -> SchemaManager:
        """The schema's operations. Raises: UnsupportedStoreError on a store without one."""
        if self._manager is None:
            raise UnsupportedStoreError(
                f"{self._store.describe()} has no schema: there is nothing to migrate"
            )
        return self._manager

    # Declaring -------------------------------------------------------------------------------

    def job(
        self,
        name: str,
        *,
        queue: str = "default",
        priority: int = 0,
        timeout: float | timedelta | None = None,
        max_attempts: int = 5,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> Callable[[F], F]:
        """Declare the decorated function, sync or async, as the handler of jobs named `name`.

        A parameter annotated `JobContext` gets the context; at most one other parameter is the
        payload, decoded to its annotation. The function itself is returned unchanged.

        Args:
            timeout: seconds of one attempt; None is no limit.
            max_attempts: 1..10,000, the first included.
        Raises: DeclarationError, InvalidValueError.
        """

        def declare(function: F) -> F:
            handler = declare_handler(
                function,
                name=name,
                queue=queue,
                priority=priority,
                timeout=timeout,
                max_attempts=max_attempts,
                backoff=backoff,
            )
            self._handlers.add(handler)
            return function

        return declare

    def recurring(
        self,
        name: str,
        handler: HandlerFunction | str,
        trigger: Trigger,
        *,
        payload: object = None,
        enabled: bool = True,
        missed: MissedRunPolicy | str = MissedRunPolicy.DROP,
        queue: str | None = None,
        priority: int = 0,
        timeout: float | timedelta | None = None,
        max_attempts: int | None = None,
    ) -> None:
        """Declare a recurring task; `register` writes it, and nodes do that themselves.

        Args:
            trigger: `Cron(...)` or `Every(...)`.
            enabled: for the first registration only; afterwards it belongs to operators.
            missed: "drop" (one run for a backlog) or "catch_up" (one per missed fire).
            queue, timeout, max_attempts: None takes the handler's.
        Raises: UnknownHandlerError, DeclarationError, ScheduleError, PayloadError,
            InvalidValueError.
        """
        declared = self._handlers.resolve(handler)
        self._tasks.add(
            declare_task(
                name,
                handler=declared.name,
                trigger=trigger,
                payload=payload_text(declared, payload),
                queue=declared.queue if queue is None else queue,
                priority=priority,
                enabled=enabled,
                missed=missed,
                timeout=declared.timeout_seconds if timeout is None else timeout,
                max_attempts=declared.max_attempts if max_attempts is None else max_attempts,
            )
        )

    def register(self, *, now: datetime | None = None) -> dict[str, RegisterOutcome]:
        """Write every declared task, each in a transaction of its own.

        The same timing moves no schedule and clears no nudge; tasks that the code no longer
        declares are left alone. Returns what happened, by name.
        """
        instant = self._instant(now)
        return {
            task.name: self._store.recurring.register(task, now=instant) for task in self._tasks
        }

    # Producing -------------------------------------------------------------------------------

    def nudge(
        self, task: str, session: object = None, *, mode: EnqueueMode | str | None = None
    ) -> NudgeReceipt:
        """Ask for a run of `task` as soon as possible, after this transaction has committed.

        Args:
            session: a Session, scoped_session or Connection whose transaction carries the nudge;
                None writes at once, coalesced with this process's other nudges.
            mode: "join_transaction", "after_commit" or "immediate".
        Raises: UnknownTaskError, TaskDisabledError (both at once, in every mode; the session
            stays usable), JoinError, StoreUnavailableError.
        Atomicity: joined, the nudge shares the fate of the rows, savepoints included.
        """
        names = [check_name(task, kind="recurring task")]
        return self._boundary.nudge(names, session, mode=mode)[0]

    def nudge_many(
        self,
        tasks: Sequence[str],
        session: object = None,
        *,
        mode: EnqueueMode | str | None = None,
    ) -> list[NudgeReceipt]:
        """As `nudge` for each different name; all are checked before anything is written.

        Returns: one receipt per name, in the order of their first mention.
        """
        return self._boundary.nudge(_distinct(tasks), session, mode=mode)

    async def anudge(
        self, task: str, session: object = None, *, mode: EnqueueMode | str | None = None
    ) -> NudgeReceipt:
        """As `nudge`, for AsyncSession, async_scoped_session and AsyncConnection."""
        names = [check_name(task, kind="recurring task")]
        return (await self._boundary.anudge(names, session, mode=mode))[0]

    async def anudge_many(
        self,
        tasks: Sequence[str],
        session: object = None,
        *,
        mode: EnqueueMode | str | None = None,
    ) -> list[NudgeReceipt]:
        """As `nudge_many`, for async sessions and connections."""
        return await self._boundary.anudge(_distinct(tasks), session, mode=mode)

    def enqueue(
        self,
        handler: HandlerFunction | str,
        payload: object = None,
        *,
        session: object = None,
        mode: EnqueueMode | str | None = None,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> JobId:
        """Store one job and return its id.

        Args:
            session, mode: as for `nudge`.
            delay: seconds before it may run; or `run_at`, an aware datetime.
            queue, priority, max_attempts, timeout: None takes the handler's.
        Raises: UnknownHandlerError, PayloadError, InvalidValueError, JoinError,
            StoreUnavailableError; nothing is written then.
        """
        job = self._jobs.make(
            handler,
            payload,
            delay=delay,
            run_at=run_at,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
        )
        self._boundary.insert([job], session, mode=mode)
        return job.id

    def enqueue_many(
        self,
        entries: Sequence[tuple[HandlerFunction | str, object]],
        session: object = None,
        *,
        mode: EnqueueMode | str | None = None,
        **options: Any,
    ) -> list[JobId]:
        """Store one job per (handler, payload), all or none; `options` as for `enqueue`.

        Returns: the ids, in the order of the entries.
        """
        jobs = self._jobs.make_many(entries, **options)
        if jobs:
            self._boundary.insert(jobs, session, mode=mode)
        return [job.id for job in jobs]

    async def aenqueue(
        self,
        handler: HandlerFunction | str,
        payload: object = None,
        *,
        session: object = None,
        mode: EnqueueMode | str | None = None,
        **options: Any,
    ) -> JobId:
        """As `enqueue`, for async sessions and connections."""
        job = self._jobs.make(handler, payload, **options)
        await self._boundary.ainsert([job], session, mode=mode)
        return job.id

    async def aenqueue_many(
        self,
        entries: Sequence[tuple[HandlerFunction | str, object]],
        session: object = None,
        *,
        mode: EnqueueMode | str | None = None,
        **options: Any,
    ) -> list[JobId]:
        """As `enqueue_many`, for async sessions and connections."""
        jobs = self._jobs.make_many(entries, **options)
        if jobs:
            await self._boundary.ainsert(jobs, session, mode=mode)
        return [job.id for job in jobs]

    # Operating -------------------------------------------------------------------------------

    def trigger(self, task: str) -> JobId:
        """Create a manual instance at once and return its id: the operator's force lane.

        It asks neither the pause nor unfinished instances, and moves no schedule.
        Raises: UnknownTaskError.
        """
        check_name(task, kind="recurring task")
        make = partial(manual_instance, job_id=JobId(self._ids(self._clock.now())))
        job = self._store.recurring.trigger(task, make, now=self._instant())
        if job is None:
            raise self._unknown_task(task)
        self._wake_everyone()
        return job.id

    def set_enabled(self, task: str, enabled: bool) -> bool:  # noqa: FBT001 - reads as a sentence
        """Resume or pause a task; False when it was so already. Raises: UnknownTaskError.

        Nudges that were committed before the flip are dropped.
        """
        check_name(task, kind="recurring task")
        outcome = self._store.recurring.set_enabled(task, enabled=enabled, now=self._instant())
        if outcome is FlipOutcome.UNKNOWN_TASK:
            raise self._unknown_task(task)
        return outcome is FlipOutcome.CHANGED

    def delete_recurring(self, task: str) -> None:
        """Remove a task with its schedule and nudges; instances that exist still run.

        Raises: UnknownTaskError.
        """
        check_name(task, kind="recurring task")
        if not self._store.recurring.delete(task):
            raise self._unknown_task(task)

    def get_recurring(self, task: str) -> CronTaskView:
        """Return definition, schedule and pending nudges of one task. Raises: UnknownTaskError."""
        check_name(task, kind="recurring task")
        view = self._store.recurring.get(task)
        if view is None:
            raise self._unknown_task(task)
        return view

    def list_recurring(self) -> list[CronTaskView]:
        """Return every registered task, by name."""
        return self._store.recurring.list()

    def preview(self, task: str, n: int = 5) -> list[datetime]:
        """Return the next `n` (1..1,000) fire times, aware UTC; works for a paused task too.

        Raises: UnknownTaskError, ScheduleError when the stored trigger cannot be evaluated.
        """
        return upcoming_fires(self.get_recurring(task), n, now=self._clock.now())

    # Running ---------------------------------------------------------------------------------

    def node(self, **options: Any) -> ProcessingNode:
        """Return a node that runs jobs in this process: `with tm.node(workers=10): ...`.

        Options are those of `NodeOptions`: workers=10, queues=None (all), tick=1.0, poll=0.5,
        heartbeat=15, heartbeat_timeout=60, grace=30 (seconds), wakes=True.
        Raises: InvalidValueError; SchemaError when it starts.
        """
        node = ProcessingNode(
            self._store,
            self._handlers,
            NodeOptions(**options),
            clock=self._clock,
            ids=self._ids,
            retention=self._retention,
            before_start=self._prepare,
            on_forgotten=self._register_again,
        )
        self._nodes.add(node)
        return node

    def tick(self, *, now: datetime | None = None) -> list[TaskOutcome]:
        """Look once at every due or nudged task; returns what was done, idle tasks left out."""
        return self._materializer.tick(now=self._instant(now))

    def run_until_idle(self, *, now: datetime | None = None) -> int:
        """Tick and run everything that is due, in this thread; returns the attempts run.

        Args:
            now: the instant used for everything, aware; None is the store's clock.
        """
        self._prepare()
        return run_until_idle(
            self._store,
            self._handlers,
            self._materializer,
            now=self._instant(now),
            clock=self._clock,
            ids=self._ids,
            noise=random.random,
        )

    def close(self) -> None:
        """Stop its nodes and leaders and release what it opened; your engine stays open."""
        for node in list(self._nodes):
            node.stop()
        self._stop_leading()
        self._store.close()

    # Wiring ----------------------------------------------------------------------------------

    @cached_property
    def _materializer(self) -> Materializer:
        return Materializer(self._store.recurring, self._ids)

    def _prepare(self) -> None:
        """Check the store and register the declared tasks, once."""
        with self._preparing:
            if self._prepared:
                return
            self._store.check_ready()
            if self._manager is not None:
                self._schema_mode.prepare(self._manager)
            self.register()
            self._prepared = True

    def _register_again(self) -> None:
        """The store was emptied under a running node: do what a restart would."""
        outcomes = self.register()
        lost = sorted(name for name, it in outcomes.items() if it is RegisterOutcome.CREATED)
        _log.warning(
            "recurring tasks that the store had lost are registered again: %s",
            ", ".join(map(repr, lost)) or "none",
        )

    def _instant(self, now: datetime | None = None) -> datetime | None:
        """Return the instant to use, or None for the store's own clock."""
        if now is not None:
            return check_instant(now, what="now")
        return self._clock.now() if self._clock.injected else None

    def _write_nudge(self, name: str) -> NudgeOutcome:
        return self._store.recurring.request_cron_nudge(name, now=self._instant())

    def _write_jobs(self, jobs: Sequence[NewJob]) -> None:
        self._store.jobs.insert(jobs, now=self._instant())

    def _wake_nodes(self) -> None:
        if self._nodes:  # most producers have none
            for node in list(self._nodes):
                node.wake()

    def _wake_everyone(self) -> None:
        self._wake_nodes()
        if self._store.wakes is not None:
            self._store.wakes.notify()

    def _explain_unknown(self, names: Sequence[str]) -> str:
        declared = [name for name in names if name in self._tasks]
        if not declared:
            return ""
        shown = ", ".join(map(repr, declared))
        return f"{shown} is declared here but not registered: call tm.register() first"

    def _unknown_task(self, name: str) -> UnknownTaskError:
        hint = self._explain_unknown([name])
        return UnknownTaskError(
            f"recurring task {name!r} is not registered"
            f"{': ' + hint if hint else '; list_recurring() shows those that are'}",
            task=name,
            tasks=(name,),
        )


def _distinct(tasks: Sequence[str]) -> list[str]:
    if isinstance(tasks, str) or not tasks or not isinstance(tasks, Iterable):
        raise InvalidValueError(
            f"tasks must be a list of names with at least one, found {tasks!r:.200}", value=tasks
        )
    return list(dict.fromkeys(check_name(task, kind="recurring task") for task in tasks))
