"""`Lock`: a mutex that is held for a block of code."""

from __future__ import annotations

import asyncio
from types import TracebackType

from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.engine.leadership.leader import Leader
from threadmill_sa.engine.leadership.waiting import wait_for_change
from threadmill_sa.errors import (
    LeadershipLostError,
    LockInUseError,
    MutexBusyError,
    StoreUnavailableError,
    ThreadmillError,
)
from threadmill_sa.model.lease import LossReason


class Lock:
    """A mutex that is held for a block: `with tm.lock("orders", timeout=5) as grant: ...`.

    The lease is renewed in the background for as long as the block lasts, and given back at its
    end; a process that dies holds it up for one ttl at most. Not re-entrant: entering while it
    is held raises LockInUseError, and a second object waits like anybody else. `async with`
    waits without blocking the event loop.

    A block is one holding. A lease that is lost on the way is not campaigned for again, and at
    the end of a block that raised nothing it raises LeadershipLostError: somebody else may have
    acted meanwhile.
    """

    def __init__(self, leader: Leader, *, timeout: float | None, answer_seconds: float) -> None:
        self._leader = leader
        self._timeout = timeout
        self._answer_seconds = answer_seconds
        self._grant: Grant | None = None

    @property
    def grant(self) -> Grant | None:
        """The grant of the block that is being executed, lost or not; else None."""
        return self._grant

    def acquire(self) -> Grant:
        """Return the grant once the mutex is held; a timeout of 0 makes one attempt.

        It is renewed until `release`, also when this object is dropped.

        Raises: MutexBusyError; StoreUnavailableError when the store never answered;
            SchemaMissingError, StoreAccessError; LockInUseError.
        """
        self._begin()
        try:
            self._leader.wait_for(self._is_settled, self._patience)
            return self._took()
        finally:
            if self._grant is None:
                self._leader.give_up()

    def try_acquire(self) -> Grant | None:
        """Return the grant when the mutex is free now, else None: one attempt.

        Raises: StoreUnavailableError, LockInUseError.
        """
        waits, self._timeout = self._timeout, 0.0
        try:
            return self.acquire()
        except MutexBusyError:
            return None
        finally:
            self._timeout = waits

    def release(self) -> None:
        """Give it back; nothing when it is not held, and no error when it was lost."""
        self._grant = None
        self._leader.stop()

    async def aacquire(self) -> Grant:
        """As `acquire`, without blocking the event loop."""
        self._begin()
        try:
            await wait_for_change(self._leader, self._is_settled, self._patience)
            return self._took()
        finally:
            if self._grant is None:
                await asyncio.to_thread(self._leader.give_up)

    async def arelease(self) -> None:
        """As `release`, without blocking the event loop."""
        self._grant = None
        self._leader.ask_to_stop()  # first: the next line may be cancelled
        await asyncio.to_thread(self._leader.stop)

    def __enter__(self) -> Grant:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._lost()
        self.release()
        if lost is not None and error is None:
            raise lost

    async def __aenter__(self) -> Grant:
        return await self.aacquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._lost()
        await self.arelease()
        if lost is not None and error is None:
            raise lost

    @property
    def _patience(self) -> float | None:
        return self._answer_seconds if self._timeout == 0 else self._timeout

    def _is_settled(self) -> bool:
        leader = self._leader
        once = self._timeout == 0 and leader.attempts > 0
        over = not leader.running  # lost before it was seen, or released by another thread
        return leader.is_leader or once or over or _will_not_pass(leader.error)

    def _begin(self) -> None:
        held = self._grant is not None and self._grant.reason is not LossReason.FORKED
        if held or self._leader.running:
            raise LockInUseError(
                f"lock {self._leader.name!r} is held or waited for through this object already:"
                " it is not re-entrant; use another object outside of its block",
                name=self._leader.name,
            )
        self._grant = None
        self._leader.start()

    def _took(self) -> Grant:
        leader, waits = self._leader, self._timeout
        self._grant = leader.grant
        if self._grant is not None:
            return self._grant
        if leader.error is not None and _will_not_pass(leader.error):
            raise leader.error
        if leader.error is not None and leader.observed is None:
            raise StoreUnavailableError(
                f"mutex {leader.name!r} could not be asked for ({leader.error}); try again later"
            ) from leader.error
        within = "when it was waited for" if waits is None else f"within {waits:g} s"
        holder = None if leader.observed is None else leader.observed.lease.holder or None
        raise MutexBusyError(
            f"mutex {leader.name!r} was not free {within}, its latest holder was"
            f" {holder or 'unknown'}: try again later, or wait longer",
            name=leader.name,
            holder=holder,
        )

    def _lost(self) -> LeadershipLostError | None:
        if self._grant is None:
            return None
        try:
            self._grant.ensure()
        except LeadershipLostError as error:
            return error
        return None


def _will_not_pass(error: Exception | None) -> bool:
    """True for what waiting does not mend, such as a database that was never migrated."""
    return isinstance(error, ThreadmillError) and not isinstance(error, StoreUnavailableError)
