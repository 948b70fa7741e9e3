"""The sender of wakes on PostgreSQL: one thread and one connection while there is work."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.clock import Clock

logger = logging.getLogger("threadmill_sa.wakes")

_GAP_SECONDS = 0.010  # between two wakes: the first goes at once, a burst costs 100 a second
_IDLE_SECONDS = 30.0  # thread and connection end after so long without a wake
_STATUS_MIN_SECONDS, _STATUS_MAX_SECONDS = 0.002, 1.0  # growing pauses between status polls
_STATUS_GIVE_UP_SECONDS = 300.0  # a longer transaction is left to the tick
_CLOSE_SECONDS = 10.0  # close() waits for a wake under way
_EXIT_SECONDS = 1.0  # so does the end of the interpreter, which would kill the thread
_STATUS_MAX = 1000  # transactions watched at once; more are left to the tick


class Waker:
    """Sends NOTIFY from a side connection, always after the commit, and coalesces bursts.

    Inside the caller's transaction NOTIFY would take a lock that makes all commits queue.

    Args:
        connect: opens a driver's connection in autocommit.
    """

    def __init__(self, channel: str, connect: Callable[[], Any], clock: Clock) -> None:
        self._statement = f"NOTIFY {channel}"
        self._connect = connect
        self._clock = clock
        self.after_fork()
        renew_in_child(self)
        _wakers.add(self)

    def after_fork(self) -> None:
        """Begin without thread and connection, which stayed in the parent."""
        self._lock = threading.Lock()
        self._due: SimpleQueue[None] = SimpleQueue()  # half the price of an Event to the caller
        self._closing = threading.Event()
        self._wanted = False
        self._watched: dict[int, float] = {}  # transaction id -> since when, monotonic seconds
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Ask for a wake; returns at once."""
        if not self._wanted or self._thread is None:  # else it is sent later than now anyway
            self._ask(None)

    def notify_when_committed(self, slot: int) -> None:
        """Ask for a wake once the transaction `slot` has committed; returns at once."""
        self._ask(slot)

    def _ask(self, slot: int | None) -> None:
        with self._lock:
            if slot is None:
                self._wanted = True
            elif len(self._watched) < _STATUS_MAX:
                self._watched[slot] = self._clock.monotonic()
            self._due.put(None)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="threadmill-waker", daemon=True
                )
                self._thread.start()

    def close(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Send what is wanted and end thread and connection; a later wake starts them again."""
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._closing.set()
                self._due.put(None)
        if thread is not None:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        connection: Any = None
        try:
            pause = _STATUS_MIN_SECONDS
            while True:
                wanted, watched = self._next_work(pause)
                if not wanted and not watched:
                    return
                connection, sent = self._serve(connection, watched, wanted=wanted)
                if sent:
                    pause = _STATUS_MIN_SECONDS
                    self._closing.wait(_GAP_SECONDS)
                else:
                    pause = min(_STATUS_MAX_SECONDS, pause * 2)
        except Exception as error:  # noqa: BLE001 - a hint only; the next one starts again
            logger.warning("wake not sent, polling goes on: %s", error)
            with self._lock:
                self._thread = None
                self._watched.clear()
        finally:
            if connection is not None:
                _close_quietly(connection)

    def _next_work(self, pause: float) -> tuple[bool, dict[int, float]]:
        """Wait for work; nothing at all means that this thread ends, and has said so."""
        with self._lock:
            watching = bool(self._watched)
        # Told to end while it worked, it looks once more without a wait: the signal to end may
        # have been the one that it woke up for. Guarded by tests/store_only/test_closing.py.
        if not self._closing.is_set():
            with suppress(Empty):
                self._due.get(timeout=pause if watching else _IDLE_SECONDS)
        with self._lock:
            while not self._due.empty():
                self._due.get()
            wanted, self._wanted = self._wanted, False
            if self._closing.is_set():
                self._watched.clear()  # left to the tick; a wake asked for is still sent
            if not (wanted or self._watched):
                self._closing.clear()
                self._thread = None
                return False, {}
            return wanted, dict(self._watched)

    def _serve(
        self, connection: Any, watched: dict[int, float], *, wanted: bool
    ) -> tuple[Any, bool]:
        """Send a wake that is due; returns the connection in use and whether one was sent.

        A connection that has died since its last use is replaced at once: the first wake after
        a restart of the server is sent as well.
        """
        if connection is not None:
            try:
                return connection, self._send(connection, watched, wanted=wanted)
            except Exception as error:  # noqa: BLE001 - the new one decides
                logger.debug("waking connection is replaced: %s", error)
                _close_quietly(connection)
        connection = self._connect()
        try:
            return connection, self._send(connection, watched, wanted=wanted)
        except BaseException:
            _close_quietly(connection)
            raise

    def _send(self, connection: Any, watched: dict[int, float], *, wanted: bool) -> bool:
        due = self._settle(connection, watched) or wanted
        if due:
            _execute(connection, self._statement)
        return due

    def _settle(self, connection: Any, watched: dict[int, float]) -> bool:
        """Forget the watched transactions that have ended; True when one has committed."""
        if not watched:
            return False
        numbers = ",".join(f"('{slot:d}'::xid8)" for slot in watched)  # our own integers
        found = _execute(
            connection,
            "SELECT v.slot::text::bigint, pg_xact_status(v.slot)"  # noqa: S608
            f" FROM (VALUES {numbers}) AS v(slot)",
        )
        now = self._clock.monotonic()
        committed = False
        with self._lock:
            for slot, status in found:
                late = now - watched[slot] > _STATUS_GIVE_UP_SECONDS
                if status != "in progress" or late:
                    self._watched.pop(slot, None)
                    committed = committed or status == "committed"
        return committed


def _execute(connection: Any, statement: str) -> list[Any]:
    cursor = connection.cursor()
    cursor.execute(statement)
    rows = cursor.fetchall() if cursor.description else []
    cursor.close()
    return list(rows)


def _close_quietly(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # noqa: BLE001 - it was broken already
        logger.debug("closing the waking connection failed: %s", error)


# A script that commits and ends at once would take its wake along.
_wakers: weakref.WeakSet[Waker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for waker in list(_wakers):
        waker.close(_EXIT_SECONDS)
