"""The user's callbacks, one after another on a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from threadmill_sa._util.callables import require_done
from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.model.lease import LossReason

_log = logging.getLogger(__name__)

OnAcquired = Callable[[Grant], object]
OnReleased = Callable[[Grant, LossReason], object]


class Callbacks:
    """Tells of terms in their order: acquired, released, acquired, released, each once.

    A term that ends before its `on_acquired` was called is not told at all. The thread starts
    with the first term; without callbacks there is none.

    Args:
        on_failed: called when `on_acquired` of a term has raised.
        on_done: called when nothing is left to be told of an ended term.
    """

    def __init__(
        self,
        name: str,
        on_acquired: OnAcquired | None,
        on_released: OnReleased | None,
        *,
        on_failed: Callable[[Grant], None],
        on_done: Callable[[Grant], None],
    ) -> None:
        self._name = name
        self._on_acquired = on_acquired
        self._on_released = on_released
        self._on_failed = on_failed
        self._on_done = on_done
        self._lock = threading.Lock()
        self._news: deque[tuple[Grant, LossReason | None]] = deque()
        self._working = False
        self._thread: threading.Thread | None = None
        self._running = ""  # the callback that runs now, for reports

    @property
    def running(self) -> str:
        """The callback that runs now, or an empty text."""
        return self._running

    @property
    def calling(self) -> bool:
        """True in code that a callback runs."""
        return threading.current_thread() is self._thread

    def acquired(self, grant: Grant) -> None:
        if self._on_acquired is not None or self._on_released is not None:
            self._tell(grant, None)

    def released(self, grant: Grant, reason: LossReason) -> None:
        if self._on_acquired is None and self._on_released is None:
            self._on_done(grant)
            return
        with self._lock:
            overtaken = (grant, None) in self._news
            if overtaken:
                self._news.remove((grant, None))
        if overtaken:
            self._on_done(grant)
        else:
            self._tell(grant, reason)

    def _tell(self, grant: Grant, reason: LossReason | None) -> None:
        with self._lock:
            self._news.append((grant, reason))
            if self._working:
                return
            self._working = True
        self._thread = threading.Thread(
            target=self._main, name=f"threadmill-leader-{self._name}", daemon=True
        )
        self._thread.start()

    def _main(self) -> None:
        while True:
            with self._lock:
                if not self._news:
                    self._working = False
                    return
                grant, reason = self._news.popleft()
            try:
                self._call(grant, reason)
            finally:
                self._running = ""
                if reason is not None:
                    self._on_done(grant)

    def _call(self, grant: Grant, reason: LossReason | None) -> None:
        try:
            if reason is None:
                self._running = "on_acquired"
                if self._on_acquired is not None:
                    require_done(self._on_acquired(grant), self._running)
            elif self._on_released is not None:
                self._running = "on_released"
                require_done(self._on_released(grant, reason), self._running)
        except BaseException:  # noqa: BLE001  The next term must be told all the same.
            _log.exception("%s of mutex %r failed", self._running, grant.name)
            if reason is None:
                self._on_failed(grant)
