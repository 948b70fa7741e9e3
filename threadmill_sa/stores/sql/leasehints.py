"""Hints that a lease may have become free: LISTEN, or SQLite's data version.

One thread and one connection per process, only while somebody waits for a lease.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa._util.hints import HintBoard

logger = logging.getLogger("threadmill_sa.leases")

_LISTEN_SECONDS = 0.25  # one wait for a notification; the end is noticed after it
_REBUILD_SECONDS = 1.0  # pause before a dead listener is built again
_IDLE_SECONDS = 10.0  # the thread outlives the last one who waits by this
_POLL_MIN_SECONDS, _POLL_MAX_SECONDS = 0.005, 0.05  # looks at SQLite's data version
_STOP_SECONDS = 10.0


class LeaseHints:
    """Tells those who wait in this process, whoever released the lease."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine = engine
        self._board = HintBoard()
        digest = hashlib.sha256(schema.encode()).hexdigest()[:24]
        self.channel = f"threadmill_leases_{digest}"  # of fixed length: names are cut at 63 bytes
        self._listens = engine.dialect.name == "sqlite" or engine.dialect.driver == "psycopg"
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin without the thread, which stayed in the parent."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._lost = False

    def watch(self, name: str, on_hint: Callable[[], None]) -> Callable[[], None]:
        """As `Leases.watch`."""
        unwatch = self._board.watch(name, on_hint)
        if self._listens:
            with self._lock:
                if self._thread is None:
                    self._closing = threading.Event()
                    self._thread = threading.Thread(
                        target=self._main,
                        args=(self._closing,),
                        name="threadmill-lease-hints",
                        daemon=True,
                    )
                    self._thread.start()
        return unwatch

    def released(self, name: str) -> None:
        """Tell this process at once; others hear of the commit."""
        self._board.hint(name)

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            self._closing.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _main(self, closing: threading.Event) -> None:
        while not self._ends(closing):
            try:
                with self._connection() as connection:
                    self._hear(connection, closing)
            except Exception as error:  # noqa: BLE001 - the loop must live, a hint is a hint
                if not self._lost:
                    logger.warning("lease hints lost, polling goes on: %s", error)
                self._lost = True
                closing.wait(_REBUILD_SECONDS)

    def _ends(self, closing: threading.Event) -> bool:
        """End the thread when it is told to or nobody waits any more."""
        with self._lock:
            if not closing.is_set() and self._board.names:
                return False
            if self._closing is closing:
                self._thread = None
            return True

    def _hear(self, connection: Any, closing: threading.Event) -> None:
        heard = (
            _changes(connection, self._board, closing)
            if self._engine.dialect.name == "sqlite"
            else _notifications(connection, self.channel)
        )
        idle = 0.0
        for waited in heard:
            if self._lost:
                logger.info("lease hints are back")
                self._lost = False
            for name in waited.names:
                self._board.hint(name)
            if waited.all_names:
                self._board.hint_all()
            idle = 0.0 if self._board.names else idle + waited.seconds
            if closing.is_set() or idle >= _IDLE_SECONDS:
                return

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """A driver connection of our own, made as the engine makes its connections."""
        fairy = self._engine.pool.recreate().connect()
        connection = fairy.dbapi_connection
        fairy.detach()
        try:
            yield connection
        finally:
            connection.close()  # type: ignore[union-attr]


class _Heard:
    """The result of one wait."""

    def __init__(self, *names: str, all_names: bool = False, seconds: float = 0.0) -> None:
        self.names = names
        self.all_names = all_names
        self.seconds = seconds


def _notifications(connection: Any, channel: str) -> Iterator[_Heard]:
    connection.rollback()
    connection.autocommit = True
    connection.execute(f"LISTEN {channel}")
    yield _Heard(all_names=True)  # for whatever was released before
    while True:
        heard = connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1)
        yield _Heard(*(each.payload for each in heard), seconds=_LISTEN_SECONDS)


def _changes(connection: Any, board: HintBoard, closing: threading.Event) -> Iterator[_Heard]:
    # Reads which of the watched names are free, so that the commits of others wake nobody.
    cursor = connection.cursor()
    seen, pause = None, _POLL_MIN_SECONDS
    while True:
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        free: list[str] = []
        if version != seen:
            seen, pause = version, _POLL_MIN_SECONDS
            free = [name for name in board.names if _is_free(cursor, name)]
        else:
            pause = min(_POLL_MAX_SECONDS, pause * 1.5)
        yield _Heard(*free, seconds=pause)
        closing.wait(pause)


def _is_free(cursor: Any, name: str) -> bool:
    found = cursor.execute(
        "SELECT 1 FROM main.threadmill_leases WHERE name = ? AND holder IS NULL", (name,)
    )
    return found.fetchone() is not None
