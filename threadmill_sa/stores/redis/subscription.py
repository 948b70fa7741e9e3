"""One thread that hears the messages of one channel, and builds itself again when it is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from redis import Redis

from threadmill_sa._util.forks import renew_in_child

_LISTEN_SECONDS: Final = 0.25  # one wait for a message; close() is noticed at its end
_REBUILD_SECONDS: Final = 1.0  # pause before a dead listener is built again
_JOIN_SECONDS: Final = 10.0


class Subscription:
    """Keeps one connection of the client's pool while it runs.

    Args:
        what: the listener, as the log calls it; also the name of its thread.
        on_message: called with each message, and with None once it is known to hear.
        wanted: asked between two messages; the thread ends when it is False.
    """

    def __init__(
        self,
        client: Redis,
        channel: bytes,
        *,
        what: str,
        logger: logging.Logger,
        on_message: Callable[[Any], None],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._channel = channel
        self._what = what
        self._logger = logger
        self._on_message = on_message
        self._wanted = wanted
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin without the thread, which stayed in the parent."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = False

    def start(self) -> None:
        """Listen from now on, if it does not already."""
        with self._lock:
            if self._thread is None:
                self._closing = threading.Event()
                self._thread = threading.Thread(
                    target=self._run,
                    args=(self._closing,),
                    name=f"threadmill-{self._what.replace(' ', '-')}",
                    daemon=True,
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread; `start` begins another."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closing.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _run(self, closing: threading.Event) -> None:
        while not self._ends(closing):
            try:
                self._listen(closing)
            except Exception as error:  # noqa: BLE001 - the loop must live, a message is a hint
                if not self._lost:
                    self._logger.warning("%s lost, polling goes on: %s", self._what, error)
                self._lost = True
                closing.wait(_REBUILD_SECONDS)

    def _ends(self, closing: threading.Event) -> bool:
        # Under the lock: whoever starts it meanwhile finds either this thread or none.
        with self._lock:
            if not closing.is_set() and self._wanted():
                return False
            if self._closing is closing:
                self._thread = None
            return True

    def _listen(self, closing: threading.Event) -> None:
        subscription = self._client.pubsub()  # type: ignore[no-untyped-call]
        try:
            subscription.subscribe(self._channel)
            while not closing.is_set() and self._wanted():
                message = subscription.get_message(timeout=_LISTEN_SECONDS)
                if message is None:
                    continue
                if self._lost:
                    self._logger.info("%s is back", self._what)
                self._lost = False
                self._on_message(message["data"] if message["type"] == "message" else None)
        finally:
            subscription.close()
