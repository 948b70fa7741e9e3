"""Threads that make one blocking call each, so that a call that hangs holds up nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_IDLE_SECONDS = 30.0  # a thread without work ends after this


class CallRunner:
    """Runs calls on up to `most` daemon threads, one after another while they do not hang."""

    def __init__(self, name: str, *, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0

    def submit(self, call: Callable[[], None]) -> bool:
        """Run `call` soon, which must not raise; False when every thread hangs in a call."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._work.put(call)
                return True
            if self._threads >= self._most:
                return False
            self._threads += 1
        threading.Thread(target=self._main, args=(call,), name=self._name, daemon=True).start()
        return True

    def close(self) -> None:
        """Let the idle threads end; the others end after their call."""
        with self._lock:
            self._most = 0
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0

    def _main(self, call: Callable[[], None] | None) -> None:
        while call is not None:
            call()
            with self._lock:
                if self._most == 0:
                    self._threads -= 1
                    return
                self._idle += 1
            call = self._next()
        with self._lock:
            self._threads -= 1

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._work.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle > 0:  # else something was put for us in this very moment
                        self._idle -= 1
                        return None
