"""Wakes between processes by publish and subscribe. A tick finds everything without them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from redis import Redis

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.stores.redis.subscription import Subscription

logger = logging.getLogger("threadmill_sa.wakes")

_GAP_SECONDS: Final = (
    0.005  # between two wakes: the first goes at once, a burst costs 200 a second
)
_IDLE_SECONDS: Final = 30.0  # the sending thread ends after so long without a wake
_JOIN_SECONDS: Final = 10.0


class RedisWakes:
    """A sending thread while there is something to send, and a listening one."""

    def __init__(self, client: Redis, channel: str) -> None:
        self._client = client
        self._channel = channel.encode()  # as it is, whatever encoding the client has
        self._on_wake: Callable[[], None] = lambda: None
        self._subscription = Subscription(
            client,
            self._channel,
            what="wake listener",
            logger=logger,
            # The confirmation counts as well: a wake may have been sent before it.
            on_message=lambda _: self._on_wake(),
        )
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin without the sending thread, which stayed in the parent."""
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._sender: threading.Thread | None = None

    def notify(self) -> None:
        with self._lock:
            self._wanted.set()
            if self._sender is None:
                self._sender = threading.Thread(
                    target=self._send_until_idle, name="threadmill-waker", daemon=True
                )
                self._sender.start()

    def notify_when_committed(self, slot: int) -> None:
        """Nothing to wait for: no write of this store rides a transaction."""
        del slot
        self.notify()

    def listen(self, on_wake: Callable[[], None]) -> None:
        self._on_wake = on_wake
        self._subscription.start()

    def close(self) -> None:
        self._subscription.close()
        with self._lock:
            sender, self._sender = self._sender, None
            self._wanted.set()
        if sender is not None and sender is not threading.current_thread():
            sender.join(timeout=_JOIN_SECONDS)

    def _send_until_idle(self) -> None:
        me, pause = threading.current_thread(), threading.Event()
        while True:
            asked = self._wanted.wait(_IDLE_SECONDS)
            with self._lock:
                if self._sender is not me:
                    return  # closed
                if not asked and not self._wanted.is_set():
                    self._sender = None  # idle: whoever asks from now on starts another
                    return
                self._wanted.clear()
            try:
                self._client.publish(self._channel, b"")
            except Exception as error:  # noqa: BLE001 - a wake is a hint, the tick serves instead
                logger.debug("wake not sent: %s", error)
            pause.wait(_GAP_SECONDS)
