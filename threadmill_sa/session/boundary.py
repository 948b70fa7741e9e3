"""Where a caller's session meets the store: joined, after the commit, or on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from threadmill_sa.errors import CannotJoinError, SavepointError, StoreUnavailableError
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.nudge import EnqueueMode, NudgeOutcome, NudgeReceipt, NudgeVerdict
from threadmill_sa.session import hooks
from threadmill_sa.session.handles import unwrap, unwrap_async
from threadmill_sa.session.promises import expect_write, note_refusal
from threadmill_sa.session.refusals import (
    check_can_wait,
    check_ends_itself,
    check_verdicts,
    name_the_pool,
    parse_mode,
)
from threadmill_sa.spi.store import CannotJoin, JobStore, JoinedWrites

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SessionBoundary:
    """Nudges and inserts jobs the way the caller's transaction asks for.

    Every error is raised at the call, in every mode, and leaves the caller's transaction usable.
    After an accepted write the engine of this process and the store's wake channel are told:
    at once, or when the session's outermost transaction has committed.

    Args:
        immediate_nudge: accepts one nudge in a transaction of its own, coalesced.
        immediate_insert: stores jobs in a transaction of its own.
        default_mode: for calls with a session; None joins where the store can, else waits for
            the commit.
        on_local_wake: tells this process's engine; must return at once.
        explain_unknown: what to add to the error for names that are not registered, or "".
        instant: the injected instant for each write, or None for the store's own clock.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        immediate_nudge: Callable[[str], NudgeOutcome],
        immediate_insert: Callable[[Sequence[NewJob]], None],
        default_mode: EnqueueMode | None = None,
        on_local_wake: Callable[[], None] = lambda: None,
        explain_unknown: Callable[[Sequence[str]], str] | None = None,
        instant: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._store = store
        self._joins = store.capabilities.joins
        if default_mode is EnqueueMode.JOIN_TRANSACTION and not self._joins:
            raise CannotJoinError(
                f"enqueue_mode 'join_transaction' is not possible on {store.describe()}, which"
                " takes no part in a SQL transaction: leave it out for 'after_commit', or name"
                " 'immediate'",
                mode=default_mode.value,
            )
        self._immediate_nudge = immediate_nudge
        self._immediate_insert = immediate_insert
        self._default_mode = default_mode or (
            EnqueueMode.JOIN_TRANSACTION if self._joins else EnqueueMode.AFTER_COMMIT
        )
        self._on_local_wake = on_local_wake
        self._explain_unknown = explain_unknown
        self._instant = instant
        self._hint = self._wake  # bound once: the joined path registers it on every call
        hooks.install()

    def nudge(
        self, names: Sequence[str], handle: object = None, *, mode: EnqueueMode | str | None = None
    ) -> list[NudgeReceipt]:
        """Ask for one run of each task; without a handle in a transaction of its own.

        `names` are valid and differ from each other; each gets one receipt, in their order.
        Raises: UnknownTaskError, TaskDisabledError, JoinError, StoreUnavailableError. Several
            names are all checked before anything is written; a task that is paused between
            check and write still raises, and then those before it in sorted order are written.
        """
        chosen = self._choose(handle, mode)
        if chosen is not EnqueueMode.IMMEDIATE:
            return self._nudge_with(unwrap(handle), names=names, mode=chosen)
        if handle is not None:
            unwrap(handle)
        return self._nudge_now(names)

    async def anudge(
        self, names: Sequence[str], handle: object = None, *, mode: EnqueueMode | str | None = None
    ) -> list[NudgeReceipt]:
        """As `nudge`, for async handles; the event loop is never blocked.

        A commit that is cancelled before it has reached the server nudges nothing. When its
        outcome is unknown a joined nudge shares the fate of the rows and a deferred one is
        dropped.
        """
        chosen = self._choose(handle, mode)
        if chosen is not EnqueueMode.IMMEDIATE:
            work = partial(self._nudge_with, names=names, mode=chosen, asynchronous=True)
            return await unwrap_async(handle).run_sync(work)
        if handle is not None:
            unwrap_async(handle)
        return await asyncio.to_thread(self._nudge_now, names)

    def insert(
        self,
        jobs: Sequence[NewJob],
        handle: object = None,
        *,
        mode: EnqueueMode | str | None = None,
    ) -> None:
        """Store `jobs`, all or none; without a handle in a transaction of its own.

        Raises: JoinError, StoreUnavailableError.
        """
        chosen = self._choose(handle, mode)
        if chosen is not EnqueueMode.IMMEDIATE:
            self._insert_with(unwrap(handle), jobs=jobs, mode=chosen)
            return
        if handle is not None:
            unwrap(handle)
        self._insert_now(jobs)

    async def ainsert(
        self,
        jobs: Sequence[NewJob],
        handle: object = None,
        *,
        mode: EnqueueMode | str | None = None,
    ) -> None:
        """As `insert`, for async handles; the event loop is never blocked."""
        chosen = self._choose(handle, mode)
        if chosen is not EnqueueMode.IMMEDIATE:
            work = partial(self._insert_with, jobs=jobs, mode=chosen, asynchronous=True)
            await unwrap_async(handle).run_sync(work)
            return
        if handle is not None:
            unwrap_async(handle)
        await asyncio.to_thread(self._insert_now, jobs)

    def _choose(self, handle: object, mode: EnqueueMode | str | None) -> EnqueueMode:
        if mode is not None:
            return parse_mode(mode)
        return EnqueueMode.IMMEDIATE if handle is None else self._default_mode

    # In a transaction of its own.

    def _nudge_now(self, names: Sequence[str]) -> list[NudgeReceipt]:
        revisions: dict[str, int | None] = {}
        try:
            if len(names) > 1:
                self._check(self._store.recurring.task_verdicts(names))
            for name in sorted(names):
                outcome = self._immediate_nudge(name)
                self._check({name: outcome.verdict})
                revisions[name] = outcome.revision
        except (StoreUnavailableError, PoolTimeoutError) as error:
            raise name_the_pool(error) from error
        finally:
            if revisions:
                self._wake()
        return [NudgeReceipt(name, EnqueueMode.IMMEDIATE, revisions[name]) for name in names]

    def _insert_now(self, jobs: Sequence[NewJob]) -> None:
        try:
            self._immediate_insert(jobs)
        except (StoreUnavailableError, PoolTimeoutError) as error:
            raise name_the_pool(error) from error
        self._wake()

    # With the caller's transaction. `asynchronous` is true inside an async session's greenlet.

    def _nudge_with(
        self,
        handle: Session | Connection,
        *,
        names: Sequence[str],
        mode: EnqueueMode,
        asynchronous: bool = False,
    ) -> list[NudgeReceipt]:
        if mode is EnqueueMode.JOIN_TRANSACTION:
            return self._nudge_joined(handle, names)
        session, own = self._waiting_on(handle)
        promises = None
        if own is not None:
            # On the session's own connection: a second one would deadlock a pool of one.
            recording = self._store.records is not None
            self._check(own.task_verdicts(names, writing=recording))
            promises = own.expect_nudges(names, now=self._instant())
        else:
            read = partial(self._store.recurring.task_verdicts, names)
            self._check(_run(read, asynchronous=asynchronous))
        engine = _async_engine(own)
        for name in sorted(names):
            write = partial(
                self._write_nudge, name, engine, promises=promises, asynchronous=asynchronous
            )
            hooks.write_after_commit(session, (self, name), write)
        return [NudgeReceipt(name, mode, None) for name in names]

    def _nudge_joined(
        self, handle: Session | Connection, names: Sequence[str]
    ) -> list[NudgeReceipt]:
        writes = self._joined(handle)
        if len(names) > 1:
            self._check(writes.task_verdicts(names, writing=True))
        outcomes: dict[str, NudgeOutcome] = {}
        slot = None
        for name in sorted(names):
            outcomes[name] = outcome = writes.request_cron_nudge(name, now=self._instant())
            if outcome.verdict is not NudgeVerdict.ACCEPTED:
                self._check({name: outcome.verdict})
            slot = outcome.slot
        if outcomes:
            self._wake_when_committed(handle, writes, slot)
        mode = EnqueueMode.JOIN_TRANSACTION
        return [NudgeReceipt(name, mode, outcomes[name].revision) for name in names]

    def _insert_with(
        self,
        handle: Session | Connection,
        *,
        jobs: Sequence[NewJob],
        mode: EnqueueMode,
        asynchronous: bool = False,
    ) -> None:
        if mode is EnqueueMode.JOIN_TRANSACTION:
            writes = self._joined(handle)
            if jobs:
                writes.insert_jobs(jobs, now=self._instant())
                self._wake_when_committed(handle, writes, None)
            return
        session, own = self._waiting_on(handle)
        if jobs:
            work = partial(
                self._write_jobs, tuple(jobs), _async_engine(own), asynchronous=asynchronous
            )
            hooks.write_after_commit(session, (self, jobs[0].id), work)

    def _joined(self, handle: Session | Connection) -> JoinedWrites:
        writes = self._store.joined(handle)
        if isinstance(writes, CannotJoin):
            raise CannotJoinError(
                f"mode 'join_transaction' is not possible here: {writes.reason}",
                reason=writes.reason,
            )
        return writes

    def _waiting_on(self, handle: Session | Connection) -> tuple[Session, JoinedWrites | None]:
        """Return the session whose commit is to be waited for, and the store's view through it.

        Raises: JoinError when its end cannot be known, or its database is another one.
        """
        session = check_can_wait(handle, joins=self._joins)
        if not self._joins:
            return session, None
        try:
            own = self._joined(session)
        except SavepointError:
            return session, None  # nothing is written in here, so its savepoints do no harm
        check_ends_itself(own.carrier, joins=True)
        return session, own

    # After the caller's commit: nothing here reaches the caller, the hooks count and log.

    def _write_nudge(
        self,
        name: str,
        engine: Engine | None,
        *,
        promises: Mapping[str, int] | None,
        asynchronous: bool,
    ) -> None:
        records = self._store.records
        if records is not None and promises is None:
            expect = partial(expect_write, records, name, now=self._instant())
            promises = _run(expect, asynchronous=asynchronous)
        if engine is None:
            accept = partial(self._immediate_nudge, name)
            outcome = _run(accept, asynchronous=asynchronous)
        else:
            with _transaction(engine) as connection:
                writes = self._joined(connection)
                outcome = writes.request_cron_nudge(name, now=self._instant())
        if outcome.verdict is NudgeVerdict.ACCEPTED:
            hooks.counters.add("written")
            self._wake()
            return
        hooks.counters.add("refused")
        logger.warning(
            "the nudge of recurring task %r was dropped after the commit: it is %s by now",
            name,
            "disabled" if outcome.verdict is NudgeVerdict.DISABLED else "deleted",
        )
        if records is not None and promises and name in promises:
            note = partial(note_refusal, records, name, promises[name])
            _run(note, asynchronous=asynchronous)

    def _write_jobs(
        self, jobs: Sequence[NewJob], engine: Engine | None, *, asynchronous: bool
    ) -> None:
        if engine is None:
            _run(partial(self._immediate_insert, jobs), asynchronous=asynchronous)
        else:
            with _transaction(engine) as connection:
                self._joined(connection).insert_jobs(jobs, now=self._instant())
        hooks.counters.add("written")
        self._wake()

    # Verdicts and wakes.

    def _check(self, verdicts: Mapping[str, NudgeVerdict]) -> None:
        check_verdicts(verdicts, self._explain_unknown)

    def _wake_when_committed(
        self, handle: Session | Connection, writes: JoinedWrites, slot: int | None
    ) -> None:
        if isinstance(handle, Session) and isinstance(writes.carrier, Engine):
            hooks.hint_after_commit(handle, self, self._hint)
        elif slot is not None and self._store.wakes is not None:
            self._store.wakes.notify_when_committed(slot)

    def _wake(self) -> None:
        try:
            self._on_local_wake()
            if self._store.wakes is not None:
                self._store.wakes.notify()
        except Exception:
            logger.exception("a wake failed; the next tick serves instead")


def _async_engine(own: JoinedWrites | None) -> Engine | None:
    """Return the engine a deferred write must use, or None when the store's own way serves."""
    carrier = None if own is None else own.carrier
    engine = carrier.engine if isinstance(carrier, Connection) else carrier
    if isinstance(engine, Engine) and engine.dialect.is_async:
        return engine  # usable in the committing greenlet; the store's would block the loop
    return None


def _run(work: Callable[[], T], *, asynchronous: bool) -> T:
    """Run `work`; from an async session's greenlet in a thread, so the event loop goes on."""
    return await_only(asyncio.to_thread(work)) if asynchronous else work()


def _transaction(engine: Engine) -> AbstractContextManager[Connection]:
    """Return a transaction of ours on a host's engine, whatever that engine's own defaults."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(threadmill_begin="IMMEDIATE").begin()
    return engine.execution_options(isolation_level="READ COMMITTED").begin()
