"""One term in the hands of those who act for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from threadmill_sa.errors import LeadershipLostError
from threadmill_sa.model.lease import FenceVerdict, Lease, LossReason


class Fencing(Protocol):
    """Holds a lease's term until the transaction of a caller's handle ends."""

    def fence(self, handle: object, lease: Lease) -> FenceVerdict: ...

    async def afence(self, handle: object, lease: Lease) -> FenceVerdict: ...


class Grant:
    """One holding of a mutex. Safe to share by threads; true while it may be acted on.

    It is trusted by the clock of this process until a moment that lies before the store lets
    others in; each renewal moves that moment. Once lost it is lost for ever.
    """

    def __init__(
        self, lease: Lease, trusted_until: float, *, now: Callable[[], float], fencing: Fencing
    ) -> None:
        self._lease = lease
        self._trusted_until = trusted_until
        self._now = now
        self._fencing = fencing
        self._reason: LossReason | None = None
        self._guard = threading.Lock()
        self._on_lost: list[Callable[[], None]] = []
        self.lost = threading.Event()
        """Set when the term has ended: `grant.lost.wait(seconds)`, `grant.lost.is_set()`."""

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def term(self) -> int:
        """The fencing token: larger than that of every earlier holding of the name."""
        return self._lease.term

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def reason(self) -> LossReason | None:
        """Why it was lost, or None while it is not known to be."""
        return self._reason

    def valid_for(self) -> float:
        """Return the seconds for which it may be acted on without a renewal; no I/O."""
        if self.lost.is_set():
            return 0.0
        return max(0.0, self._trusted_until - self._now())

    def __bool__(self) -> bool:
        return self.valid_for() > 0

    def ensure(self, need: float = 0.0) -> int:
        """Return the term when it can be acted on for more than `need` seconds; no I/O.

        Raises: LeadershipLostError.
        """
        left = self.valid_for()
        if left <= need:
            raise self._lost_error() if left <= 0 else self._too_short(left, need)
        return self.term

    def fence(self, session: object) -> int:
        """Let the transaction of `session` commit only while this term holds; return the term.

        The check is a row lock in that transaction: once it has returned, no other term begins
        before the transaction has ended, and a transaction of an older term is refused however
        long its process was paused. Renewals go on meanwhile. At REPEATABLE READ and
        SERIALIZABLE a transaction that began before another term did is refused by the database,
        with a serialization error.

        Args:
            session: a Session, scoped_session or Connection with a transaction.
        Raises: LeadershipLostError, whereupon the transaction must be rolled back; JoinError.
        """
        self.ensure()
        return self._fenced(self._fencing.fence(session, self._lease))

    async def afence(self, session: object) -> int:
        """As `fence`, for AsyncSession, async_scoped_session and AsyncConnection."""
        self.ensure()
        return self._fenced(await self._fencing.afence(session, self._lease))

    async def wait_lost(self) -> LossReason | None:
        """Return once the term has ended, with the reason."""
        loop = asyncio.get_running_loop()
        lost = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(lost.set)

        self.when_lost(tell)
        await lost.wait()
        return self._reason

    def when_lost(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, from any thread, when the term ends; at once when it has."""
        with self._guard:
            if not self.lost.is_set():
                self._on_lost.append(tell)
                return
        tell()

    def _fenced(self, verdict: FenceVerdict) -> int:
        if verdict is FenceVerdict.LOST:
            raise self._lost_error()
        return self.term

    def _too_short(self, left: float, need: float) -> LeadershipLostError:
        return LeadershipLostError(
            f"term {self.term} of mutex {self.name!r} can be acted on for {left:.1f} s, not for"
            f" {need:g} s: do less at a time, or use a longer ttl",
            name=self.name,
            term=self.term,
            reason=None,
        )

    def _lost_error(self) -> LeadershipLostError:
        reason = self._reason or LossReason.EXPIRED
        return LeadershipLostError(
            f"term {self.term} of mutex {self.name!r} is over ({reason}): stop what was begun for"
            " it and roll back",
            name=self.name,
            term=self.term,
            reason=reason,
        )

    # The leader's side -----------------------------------------------------------------------

    def extend(self, trusted_until: float) -> None:
        """Trust it longer; never again once lost."""
        self._trusted_until = max(self._trusted_until, trusted_until)

    def end(self, reason: LossReason) -> bool:
        """End it, once: True when it had not ended; a later reason changes nothing."""
        with self._guard:
            if self.lost.is_set():
                return False
            self._reason = reason
            self.lost.set()
            waiting, self._on_lost = self._on_lost, []
        for tell in waiting:
            tell()
        return True

    def disown(self) -> None:
        """End it in a forked child, where the one who held a lock does not exist."""
        self._guard = threading.Lock()
        self._on_lost.clear()
        self._reason = self._reason or LossReason.FORKED
        self.lost = threading.Event()
        self.lost.set()

    def __repr__(self) -> str:
        state = self._reason or ("valid" if self else "expired")
        return f"<Grant {self.name!r} term {self.term}: {state}>"
