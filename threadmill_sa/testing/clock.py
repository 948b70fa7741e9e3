"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model.names import check_instant


class ManualClock:
    """Stands still between calls, so a test decides every instant. Safe to share by threads.

    `advance` lets time pass: the wall clock and elapsed time move together. `set` is what an
    operator or a time server does: the wall clock jumps, also backwards, and no time passes.
    """

    injected = True

    def __init__(self, start: datetime) -> None:
        self._lock = threading.Lock()
        self._now = check_instant(start, what="start")
        self._elapsed = 0.0

    def now(self) -> datetime:
        """The instant the clock stands at, aware UTC."""
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        """Seconds advanced since the start."""
        with self._lock:
            return self._elapsed

    def advance(self, by: float | timedelta) -> datetime:
        """Let `by` seconds pass and return the new instant.

        Raises: InvalidValueError when `by` is negative: time passes forward, `set` may go back.
        """
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise InvalidValueError(f"clock cannot advance by {by!r}: use set() to go back", by=by)
        with self._lock:
            self._now += step
            self._elapsed += step.total_seconds()
            return self._now

    def set(self, instant: datetime) -> None:
        """Make the wall clock read `instant`; elapsed time stays."""
        moment = check_instant(instant, what="instant")
        with self._lock:
            self._now = moment
