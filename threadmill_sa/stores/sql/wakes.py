"""Wakes between processes: NOTIFY from a side connection, or SQLite's data version.

Correctness never rests on them: a tick finds everything by itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.pool import Pool

from threadmill_sa.clock import Clock

logger = logging.getLogger("threadmill_sa.wakes")

_IDLE_SECONDS = 30.0  # the notifying connection is closed after so long without a wake
_LISTEN_SECONDS = 1.0  # one wait for a notification; close() is noticed at its end
_REBUILD_SECONDS = 1.0  # pause before a dead listener is built again
_STATUS_MIN_SECONDS, _STATUS_MAX_SECONDS = 0.002, 1.0  # growing pauses between status polls
_STATUS_GIVE_UP_SECONDS = 300.0  # a longer transaction is left to the tick
_STATUS_MAX = 1000  # transactions watched at once; more are left to the tick
_WATCH_MIN_SECONDS, _WATCH_MAX_SECONDS = 0.002, 0.02  # polls of SQLite's data version


class _Threads:
    """What both channels share: one listening thread, ended by an event, fresh after a fork."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._closing = threading.Event()
        self._pid = os.getpid()

    def _side_connection(self) -> Any:
        """Return a driver connection of our own, made as the engine makes its connections."""
        # A pool of its own kind: the application's pool may be exhausted exactly now.
        pool: Pool = self._engine.pool.recreate()
        fairy = pool.connect()
        connection = fairy.dbapi_connection
        fairy.detach()
        return connection

    def listen(self, on_wake: Callable[[], None]) -> None:
        with self._lock:
            self._forget_parent()
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

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():  # threads do not survive a fork
            self._pid, self._listener = os.getpid(), None

    def close(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            self._closing.set()
        if listener is not None and listener is not threading.current_thread():
            listener.join(timeout=10.0)

    def _listen_for_ever(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        failures = 0
        while not closing.is_set():
            try:
                self._listen_once(on_wake, closing)
                failures = 0
            except Exception as error:  # the loop must live: a wake is only a hint
                if closing.is_set():
                    return
                failures += 1
                if failures == 1:
                    logger.warning("wake listener lost, polling goes on: %s", error)
                closing.wait(_REBUILD_SECONDS)

    def _listen_once(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        raise NotImplementedError


class PostgresWakes(_Threads):
    """LISTEN and NOTIFY on connections of our own, always after the commit.

    NOTIFY inside the caller's transaction would take a lock that serializes all commits.
    """

    def __init__(self, engine: Engine, schema: str, clock: Clock) -> None:
        super().__init__(engine)
        digest = hashlib.sha256(schema.encode()).hexdigest()[:24]
        self.channel = f"threadmill_{digest}"  # fixed length: names are cut at 63 bytes
        self._clock = clock
        self._wanted = threading.Event()
        self._slots: dict[int, float] = {}
        self._waker: threading.Thread | None = None

    @property
    def listens(self) -> bool:
        """True when the driver can wait for notifications."""
        return self._engine.dialect.driver == "psycopg"

    def listen(self, on_wake: Callable[[], None]) -> None:
        if self.listens:
            super().listen(on_wake)

    def _listen_once(self, on_wake: Callable[[], None], closing: threading.Event) -> None:
        connection = self._side_connection()
        try:
            connection.rollback()
            connection.autocommit = True
            connection.execute(f"LISTEN {self.channel}")
            on_wake()  # whatever was sent before the LISTEN
            while not closing.is_set():
                for _ in connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1):
                    on_wake()
        finally:
            connection.close()

    def notify(self) -> None:
        self._wanted.set()
        self._start_waker()

    def notify_when_committed(self, slot: int) -> None:
        with self._lock:
            if len(self._slots) >= _STATUS_MAX:
                return
            self._slots[slot] = self._clock.monotonic()
        self.notify()

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            self._waker = None
            self._slots.clear()
        super()._forget_parent()

    def _start_waker(self) -> None:
        if self._waker is not None and self._pid == os.getpid():
            return
        with self._lock:
            self._forget_parent()
            if self._waker is None:
                self._waker = threading.Thread(
                    target=self._wake_until_idle, name="threadmill-waker", daemon=True
                )
                self._waker.start()

    def _wake_until_idle(self) -> None:
        """Send wakes on one connection; close it, and end, after a while without any."""
        connection: Any = None
        pause = _IDLE_SECONDS
        try:
            while True:
                wanted = self._wanted.wait(pause)
                if not wanted and not self._slots and self._end_waker():
                    return
                self._wanted.clear()
                connection = connection or self._side_connection()
                waiting = self._settle_slots(connection)
                if wanted or self._settled:
                    self._send(connection)
                    self._settled = False
                pause = _IDLE_SECONDS if not waiting else self._next_pause()
        except Exception as error:  # a wake is only a hint; the next one starts a new thread
            logger.warning("wake not sent, polling goes on: %s", error)
            with self._lock:
                self._waker = None
                self._slots.clear()
        finally:
            if connection is not None:
                _close_quietly(connection)

    _settled = False
    _status_pause = _STATUS_MIN_SECONDS

    def _next_pause(self) -> float:
        pause = self._status_pause
        self._status_pause = min(_STATUS_MAX_SECONDS, pause * 2)
        return pause

    def _end_waker(self) -> bool:
        with self._lock:
            if self._wanted.is_set():
                return False
            self._waker = None
            return True

    def _send(self, connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"NOTIFY {self.channel}")
        cursor.close()
        connection.commit()

    def _settle_slots(self, connection: Any) -> bool:
        """Forget the watched transactions that have ended; True while some are still open."""
        with self._lock:
            watched = dict(self._slots)
        if not watched:
            self._status_pause = _STATUS_MIN_SECONDS
            return False
        cursor = connection.cursor()
        numbers = ",".join(f"('{slot:d}'::xid8)" for slot in watched)  # our own integers
        cursor.execute(
            "SELECT v.slot::text::bigint, pg_xact_status(v.slot)"  # noqa: S608
            f" FROM (VALUES {numbers}) AS v(slot)"
        )
        now = self._clock.monotonic()
        ended = set()
        for slot, status in cursor.fetchall():
            if status != "in progress" or now - watched[slot] > _STATUS_GIVE_UP_SECONDS:
                ended.add(slot)
                self._settled = self._settled or status == "committed"
        cursor.close()
        connection.commit()
        with self._lock:
            for slot in ended:
                self._slots.pop(slot, None)
            return bool(self._slots)

    def close(self) -> None:
        super().close()
        with self._lock:
            self._slots.clear()


class SqliteWakes(_Threads):
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
            seen, pause = None, _WATCH_MIN_SECONDS
            while not closing.wait(pause):
                version = cursor.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    seen, pause = version, _WATCH_MIN_SECONDS
                    on_wake()
                else:
                    pause = min(_WATCH_MAX_SECONDS, pause * 1.5)
        finally:
            connection.close()


def _close_quietly(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # it was broken already
        logger.debug("closing the waking connection failed: %s", error)
