"""One thread that notices attempts whose time is over."""

from __future__ import annotations

import threading
from collections.abc import Callable

from threadmill_sa.engine.processing.attempts import Attempt
from threadmill_sa.engine.service import Service
from threadmill_sa.model import limits


class Watchdog(Service):
    """Calls `expire` once for each watched attempt whose deadline passes.

    Unwatching removes the entry itself, so a finished job is never kept in memory by a deadline
    that lies far ahead.
    """

    def __init__(
        self, name: str, *, expire: Callable[[Attempt], None], monotonic: Callable[[], float]
    ) -> None:
        super().__init__(name)
        self._expire = expire
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._deadlines: dict[Attempt, float] = {}
        self._next = float("inf")

    def watch(self, attempt: Attempt, seconds: float) -> None:
        """Expire `attempt` in `seconds` unless it is unwatched before."""
        deadline = self._monotonic() + seconds
        with self._lock:
            self._deadlines[attempt] = deadline
            sooner = deadline < self._next
        if sooner:
            self.wake()

    def unwatch(self, attempt: Attempt) -> None:
        with self._lock:
            self._deadlines.pop(attempt, None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            now = self._monotonic()
            with self._lock:
                over = [each for each, at in self._deadlines.items() if at <= now]
                for attempt in over:
                    del self._deadlines[attempt]
                self._next = min(self._deadlines.values(), default=float("inf"))
                wait = min(self._next - now, limits.WAIT_MAX_SECONDS)
            for attempt in over:
                self._expire(attempt)
            if not over:
                self._wait(wait)
