"""The threads that run sync handlers."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from threadmill_sa.engine.processing.attempts import Attempt
from threadmill_sa.model import limits

_log = logging.getLogger(__name__)


class WorkerPool:
    """Up to `size` daemon threads, started when first needed.

    The caller submits at most `size` attempts that have not ended, so none waits for another.
    Daemons, because a handler that never returns must not keep the interpreter from exiting;
    `concurrent.futures` would join it for ever.
    """

    def __init__(self, size: int, work: Callable[[Attempt], None], *, name: str) -> None:
        self._size = size
        self._work = work
        self._name = name
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that wait, less the attempts on their way to them

    def submit(self, attempt: Attempt) -> None:
        """Run `attempt` in a thread. Raises: RuntimeError when no thread can be started."""
        with self._lock:
            if self._idle <= 0 and len(self._threads) < self._size:
                self._grow()
            self._idle -= 1
            self._inbox.put(attempt)

    def stop(self, timeout: float, monotonic: Callable[[], float]) -> None:
        """End the idle threads and wait for them; a busy one ends when its handler returns."""
        with self._lock:
            threads = list(self._threads)
            for _ in threads:
                self._inbox.put(None)
        deadline = monotonic() + min(timeout, limits.WAIT_MAX_SECONDS)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - monotonic()))

    def _grow(self) -> None:
        thread = threading.Thread(
            target=self._main, name=f"{self._name}-{len(self._threads) + 1}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The host is out of threads, or the interpreter is on its way out. The threads that
            # exist serve the attempt when they are done.
            if not self._threads:
                raise
            return
        self._threads.append(thread)
        self._idle += 1

    def _main(self) -> None:
        while (attempt := self._inbox.get()) is not None:
            try:
                self._work(attempt)
            except BaseException:  # noqa: BLE001  A bug of ours; the slot's thread must live.
                _log.exception("attempt of job %s ended by an error", attempt.job.id)
            attempt = None  # an idle thread must not keep the last job in memory
            with self._lock:
                self._idle += 1
