"""Wakes between processes: LISTEN and NOTIFY, or SQLite's data version.

Correctness never rests on them: a tick finds everything by itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.clock import Clock
from threadmill_sa.stores.sql.silence import notice_silence
from threadmill_sa.stores.sql.waker import Waker

logger = logging.getLogger("threadmill_sa.wakes")

_LISTEN_SECONDS = 0.25  # one wait for a notification; close() is noticed at its end
_REBUILD_SECONDS = 1.0  # pause before a dead listener is built again
_WATCH_MIN_SECONDS, _WATCH_MAX_SECONDS = 0.002, 0.02  # polls of SQLite's data version


class _Listening:
    """What both channels share: one listening thread on a connection of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin without a listener, which stayed in the parent."""
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._closing = threading.Event()
        self._lost = False

    def _side_connection(self) -> Any:
        """Return a driver connection of our own, made as the engine makes its connections."""
        # Not from the engine's pool: the application may have exhausted it exactly now.
        fairy = self._engine.pool.recreate().connect()
        connection = fairy.dbapi_connection
        fairy.detach()
        return connection

    def listen(self, on_wake: Callable[[], None]) -> None:
        with self._lock:
            if self._listener is not None:
                return
            self._closing = threading.Event()
            self._listener = threading.Thread(
                target=self._listen_for_ever,
                args=(on_wake, self._closing),
                name="threadmill-listener",
                daemon=True,
            )
            self._listener.start()

    def close(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            self._closing.set()
        if listener is not None:
            listener.join(timeout=10.0)

    def _listen_for_ever(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        while not closing.is_set():
            try:
                self._listen_once(on_wake, closing)
            except Exception as error:  # noqa: BLE001 - the loop must live, a wake is a hint
                if not self._lost:
                    logger.warning("wake listener lost, polling goes on: %s", error)
                self._lost = True
                closing.wait(_REBUILD_SECONDS)

    def _ready(self) -> None:
        """Note that the listener hears: its next loss is told again."""
        if self._lost:
            logger.info("wake listener is back")
        self._lost = False

    def _listen_once(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        raise NotImplementedError


class PostgresWakes(_Listening):
    """LISTEN and NOTIFY on connections of our own."""

    def __init__(self, engine: Engine, schema: str, clock: Clock) -> None:
        super().__init__(engine)
        digest = hashlib.sha256(schema.encode()).hexdigest()[:24]
        self.channel = f"threadmill_{digest}"  # of fixed length: names are cut at 63 bytes
        self._waker = Waker(self.channel, self._autocommitting, clock)

    def notify(self) -> None:
        self._waker.notify()

    def notify_when_committed(self, slot: int) -> None:
        self._waker.notify_when_committed(slot)

    def _autocommitting(self) -> Any:
        """Return a side connection without transactions: a NOTIFY is one round trip, not three."""
        connection = self._side_connection()
        connection.rollback()
        connection.autocommit = True
        return connection

    def listen(self, on_wake: Callable[[], None]) -> None:
        if self._engine.dialect.driver == "psycopg":
            super().listen(on_wake)
        else:
            logger.info("driver %s cannot listen: wakes by polling", self._engine.dialect.driver)

    def _listen_once(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        connection = self._autocommitting()
        try:
            connection.execute(f"LISTEN {self.channel}")
            notice_silence(connection.fileno())
            self._ready()
            on_wake()  # for whatever was sent before the LISTEN
            while not closing.is_set():
                for _ in connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1):
                    on_wake()
        finally:
            connection.close()

    def close(self) -> None:
        super().close()
        self._waker.close()


class SqliteWakes(_Listening):
    """Watches SQLite's data version, which moves when another connection has committed.

    Nobody has to send anything, so bare connections and other tools wake a node as well.
    """

    def notify(self) -> None:
        """Nothing to send: the commit itself is the signal."""

    def notify_when_committed(self, slot: int) -> None:
        """Nothing to send: the commit itself is the signal."""

    def _listen_once(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        connection = self._side_connection()
        try:
            cursor = connection.cursor()
            self._ready()
            seen, pause = None, _WATCH_MIN_SECONDS
            while not closing.wait(pause):
                (version,) = cursor.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen, pause = version, _WATCH_MIN_SECONDS
                    on_wake()
                else:
                    pause = min(_WATCH_MAX_SECONDS, pause * 1.5)
        finally:
            connection.close()
