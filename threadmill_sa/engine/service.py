"""Starting and stopping the long-lived threads, with every edge case in one place."""

from __future__ import annotations

import logging
import threading

from threadmill_sa.model import limits

_log = logging.getLogger(__name__)


class Service:
    """One named thread that can be started, woken and stopped.

    Start: again while it runs is nothing; after a stop it runs anew; a start that raises leaves
    nothing behind. Stop: before a start and a second time is nothing. A thread that does not end
    in time is left to end by itself, and a start is refused until it has.

    Threads are daemons: a stuck one must not keep the interpreter from exiting.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._signal = threading.Event()

    @property
    def running(self) -> bool:
        """True from start until a stop is asked for or the thread has ended."""
        thread = self._thread
        return thread is not None and thread.is_alive() and not self._stopping.is_set()

    def start(self) -> None:
        """Begin. Raises: whatever `_open` raises, and RuntimeError while an old thread lives."""
        with self._guard:
            if self._thread is not None and self._thread.is_alive():
                if not self._stopping.is_set():
                    return
                raise RuntimeError(f"service {self._name!r} has not ended yet: stop it first")
            self._stopping.clear()
            self._signal.clear()
            self._open()
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            try:
                self._thread.start()
            except BaseException:
                self._thread = None
                raise

    def wake(self) -> None:
        """End the current wait, or the next one; any number of wakes count once."""
        self._signal.set()

    def ask_to_stop(self) -> None:
        """Tell the thread to end and return at once."""
        self._stopping.set()
        self._signal.set()

    def stop(self, timeout: float) -> bool:
        """Ask to stop and wait up to `timeout` seconds; True when no thread is left."""
        self.ask_to_stop()
        thread = self._thread
        if thread is None or not thread.is_alive():
            return True
        if thread is threading.current_thread():
            return False
        thread.join(max(0.0, timeout))
        return not thread.is_alive()

    def _open(self) -> None:
        """Do what must have worked before the thread exists."""

    def _run(self) -> None:
        """Work until `_stopping` is set."""
        raise NotImplementedError

    def _wait(self, seconds: float) -> None:
        """Wait for a wake, a stop or the time to pass.

        The signal is cleared before the work that follows, so a wake during that work causes
        one more turn and is never lost.
        """
        self._signal.wait(min(max(seconds, 0.0), limits.WAIT_MAX_SECONDS))
        self._signal.clear()

    def _rest(self, seconds: float) -> None:
        """Wait for the time to pass or a stop; wakes do not shorten it."""
        self._stopping.wait(min(max(seconds, 0.0), limits.WAIT_MAX_SECONDS))

    def _main(self) -> None:
        try:
            self._run()
        except BaseException:  # noqa: BLE001  Loops guard their turns; a bug must be seen.
            _log.exception("service %r ended by an error", self._name)
