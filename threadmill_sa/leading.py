"""What `Threadmill` offers for leading: leaders, locks and leader-gated schedules."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from threadmill_sa.engine.leadership.aleader import AsyncLeader
from threadmill_sa.engine.leadership.choices import parse_choice
from threadmill_sa.engine.leadership.decorators import OnBusy, locked
from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.engine.leadership.leader import Leader
from threadmill_sa.engine.leadership.locks import Lock
from threadmill_sa.engine.leadership.scheduler import LeaderScheduler
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.errors import UnsupportedStoreError
from threadmill_sa.model import limits
from threadmill_sa.model.lease import LeaseView, LossReason, check_mutex
from threadmill_sa.model.names import check_seconds
from threadmill_sa.session.fencing import SessionFencing
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.store import JobStore

F = TypeVar("F", bound=Callable[..., Any])


class _Heartbeat(StrEnum):
    THREAD = "thread"
    TASK = "task"


class Leading:
    """The part of `Threadmill` that needs nothing but the store's leases.

    A mutex name has 1 to 128 characters and belongs to the database: every process that uses it
    competes. Making these objects touches no database; `start`, or entering a block, does.
    """

    @property
    def store(self) -> JobStore:
        """The store, by its contract `threadmill_sa.spi`."""
        raise NotImplementedError

    def leader(
        self,
        name: str,
        *,
        timings: Timings | None = None,
        on_acquired: Callable[[Grant], object] | None = None,
        on_released: Callable[[Grant, LossReason], object] | None = None,
    ) -> Leader:
        """Return a contender for the mutex `name`: `with tm.leader("settle") as leader: ...`.

        Args:
            timings: None is `Timings()`, a lease of 15 s.
            on_acquired, on_released: see `Leader`; never on the heartbeat thread.
        Raises: InvalidNameError; DeclarationError for a callback that is a coroutine function;
            UnsupportedStoreError on a store without leases.
        """
        return self._make_leader(name, timings)(on_acquired=on_acquired, on_released=on_released)

    def aleader(
        self,
        name: str,
        *,
        timings: Timings | None = None,
        on_acquired: Callable[[Grant], object] | None = None,
        on_released: Callable[[Grant, LossReason], object] | None = None,
        heartbeat: str = "thread",
    ) -> AsyncLeader:
        """As `leader`, for an event loop; callbacks may be coroutine functions.

        Args:
            heartbeat: "thread" keeps the lease while the loop is blocked; "task" loses it then.
        """
        beat = parse_choice(_Heartbeat, heartbeat, what="heartbeat")
        return AsyncLeader(
            self._make_leader(name, timings),
            on_acquired=on_acquired,
            on_released=on_released,
            in_loop=beat is _Heartbeat.TASK,
        )

    def lock(
        self,
        name: str,
        *,
        timeout: float | timedelta | None = None,
        timings: Timings | None = None,
    ) -> Lock:
        """Return a mutex for a block: `with tm.lock("orders", timeout=5) as grant: ...`.

        `async with` does not block the event loop. Not re-entrant.

        Args:
            timeout: seconds to wait; None waits for ever, 0 makes one attempt.
        Raises: as `leader`; entering raises MutexBusyError.
        """
        chosen = timings or Timings()
        seconds = None
        if timeout is not None:
            longest = limits.DELAY_MAX_SECONDS
            seconds = check_seconds(timeout, what="timeout", minimum=0.0, maximum=longest)
        make = self._make_leader(name, chosen)
        answer_seconds = 2 * chosen.seconds("call_timeout")
        return Lock(make(one_term=True), timeout=seconds, answer_seconds=answer_seconds)

    def locked(
        self,
        name: str,
        *,
        on_busy: OnBusy | str = OnBusy.RAISE,
        timings: Timings | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator: each call of the function, sync or async, holds the mutex.

        Args:
            name: may hold parameters of the function, as in "report:{tenant}".
            on_busy: "raise" MutexBusyError, "skip" and return None, or "wait".
        Raises: DeclarationError, InvalidValueError; each call InvalidNameError, for the name that
            its arguments make.
        """

        def make(mutex: str, choice: OnBusy) -> Lock:
            timeout = None if choice is OnBusy.WAIT else 0.0
            return self.lock(mutex, timeout=timeout, timings=timings)

        return locked(make, name, on_busy)

    def scheduler(self, name: str, *, timings: Timings | None = None) -> LeaderScheduler:
        """Return a scheduler whose works run in the process that leads the mutex `name`.

        Raises: as `leader`.
        """
        scheduler = LeaderScheduler(self._make_leader(name, timings)())
        self._started.add(scheduler)
        return scheduler

    def leases(self) -> list[LeaseView]:
        """Return every mutex that was ever held, by name, with its holder and remaining time."""
        return self._leases.list()

    def _stop_leading(self) -> None:
        """Stop every scheduler, leader and lock of this object that still runs."""
        for each in sorted(self._started, key=lambda each: isinstance(each, Leader)):
            each.stop()

    @cached_property
    def _started(self) -> weakref.WeakSet[Leader | LeaderScheduler]:
        return weakref.WeakSet()

    @property
    def _leases(self) -> Leases:
        found = self.store.leases
        if found is None:
            raise UnsupportedStoreError(
                f"{self.store.describe()} keeps no leases: use a store that does, such as SQL or"
                " Redis"
            )
        return found

    def _make_leader(self, name: str, timings: Timings | None) -> Callable[..., Leader]:
        mutex, leases, chosen = check_mutex(name), self._leases, timings or Timings()

        def make(**options: Any) -> Leader:
            fencing = SessionFencing(self.store)
            leader = Leader(mutex, leases, fencing, timings=chosen, **options)
            self._started.add(leader)
            return leader

        return make
