"""Faults of the database at a chosen boundary: each statement, each commit, each lost answer."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

from tests.fixtures.proxy import LostReply, TcpProxy, commits

COMMIT = "COMMIT"
OUT_OF_DISK, SERIALIZATION = "53100", "40001"
RAISE = """
CREATE FUNCTION public.injected(state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'injected' USING errcode = state;
END $$
"""


class Fault(StrEnum):
    """What happens at the boundary; a commit is one as well as a statement."""

    BEFORE = "error before"
    AFTER = "error after"
    INTERRUPT = "interrupt after"  # as Ctrl-C, which no `except Exception` catches
    REFUSED = "refused by database"  # a full disk on PostgreSQL, an interrupt on SQLite
    CONFLICT = "serialization error"
    LOCKED = "database is locked"  # SQLite: another writer is there first
    FULL = "disk is full"  # SQLite: the file may not grow
    KILLED = "backend killed"  # before the server has read what is sent
    KILLED_AFTER = "killed afterwards"
    LOST = "answer lost"  # applied by the server, and the client never hears of it


# At each statement and commit; an answer is lost anywhere, which is counted otherwise.
_EVERYWHERE = (Fault.BEFORE, Fault.AFTER, Fault.INTERRUPT, Fault.REFUSED)
ON_SQLITE = (*_EVERYWHERE, Fault.LOCKED, Fault.FULL)
ON_POSTGRES = (*_EVERYWHERE, Fault.CONFLICT, Fault.KILLED)


AFTERWARDS = {Fault.AFTER, Fault.INTERRUPT, Fault.KILLED_AFTER, Fault.LOST}


class InjectedError(Exception):
    """Not one of the database's: nothing may take it for a conflict and try again."""


class InjectedInterrupt(BaseException):
    """What ends a call from outside."""


class FaultyEngine:
    """Counts the boundaries of `engine` and lets a fault strike at one of them.

    Made before any copy of the engine is: copies share its listeners.

    Args:
        admin_url: of the same PostgreSQL server, past any proxy; None on SQLite.
        proxy: what the engine's connections pass through; only LOST on PostgreSQL needs it.
    """

    def __init__(
        self, engine: Engine, admin_url: str | None = None, proxy: TcpProxy | None = None
    ) -> None:
        self.engine = engine
        self._admin_url = admin_url
        self._proxy = proxy
        self._guard = threading.Lock()
        self._at: int | None = None
        self._kind = Fault.BEFORE
        self._lost: LostReply | None = None
        self.seen = 0
        self.at_commit = False  # whether the fault struck at a commit
        self.alone = False  # whether it struck at a statement that is a transaction by itself
        event.listen(engine, "before_cursor_execute", self._before, retval=True)
        event.listen(engine, "after_cursor_execute", self._after)
        event.listen(engine, "handle_error", self._failed)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "checkout", self._grow)
        self._writer: sqlite3.Connection | None = None
        dialect: Any = engine.dialect
        self._do_commit: Callable[[Any], None] = dialect.do_commit
        dialect.do_commit = self._commit

    def strike(self, at: int, kind: Fault) -> None:
        """Let the fault strike at boundary `at`, counted from 0, and only once.

        An answer that is lost on its way is counted by what the client sends, so that the first
        words of a connection, BEGIN and ROLLBACK are boundaries as well.
        """
        self.seen, self._kind, self.at_commit, self.alone = 0, kind, False, False
        if kind is Fault.LOST and self._proxy is not None:
            self._lost = self._proxy.drop_reply_after(self._numbered(at))
        else:
            self._at = at

    def _numbered(self, at: int) -> Callable[[bytes], bool]:
        numbers = itertools.count()
        begun = False

        def chosen(sent: bytes) -> bool:
            nonlocal begun
            begun = begun or _says(sent, b"BEGIN")
            if next(numbers) == at:
                self.alone = not begun
                return True
            begun = begun and not commits(sent) and not _says(sent, b"ROLLBACK")
            return False

        return chosen

    @property
    def struck(self) -> bool:
        return self._at is None and (self._lost is None or self._lost.happened.is_set())

    def mend(self) -> None:
        if self._lost is not None:
            self.at_commit = any(map(commits, self._lost.sent))
        self._at = self._lost = None
        self._unlock()
        if self._proxy is not None:
            self._proxy.keep_replies()

    def _before(
        self, conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
    ) -> tuple[str, Any]:
        if self._strikes_before(conn.connection.dbapi_connection):
            nothing: Any = [()] if many else ()
            state = SERIALIZATION if self._kind is Fault.CONFLICT else OUT_OF_DISK
            return f"SELECT public.injected('{state}')", nothing
        return statement, parameters

    def _strikes_before(self, driver: Any) -> bool:
        """Strike before a statement; True when the server shall answer it with an error."""
        if self._kind in AFTERWARDS or not self._due(self.seen):
            return False
        match self._kind:
            case Fault.BEFORE:
                raise InjectedError("before the statement")
            case Fault.KILLED:
                self._kill(driver)
            case Fault.LOCKED:
                self._lock()
            case Fault.FULL:
                driver.execute("PRAGMA max_page_count = 1")  # as many as there are
            case Fault.REFUSED if self._admin_url is None:
                driver.set_progress_handler(lambda: 1, 1)  # until the statement has failed
            case _:
                return True
        return False

    def _due(self, boundary: int) -> bool:
        """True once: at the chosen boundary, or behind it where threads have counted past it."""
        with self._guard:
            if self._at is None or boundary < self._at:
                return False
            self._at = None
            return True

    def _lock(self) -> None:
        """Be the one writer, unless the victim is that already, until one statement has failed."""
        other = sqlite3.connect(str(self.engine.url.database), timeout=0, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            other.close()
        else:
            self._writer = other

    def _unlock(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _after(self, conn: Any, *_rest: Any) -> None:
        if self._kind is Fault.LOST:
            return  # without a wire only the answer of a commit can be lost: those are counted
        self.seen += 1
        if self._kind in AFTERWARDS and self._due(self.seen - 1):
            driver = conn.connection.dbapi_connection
            self.alone = _commits_alone(driver)
            self._strike_after(driver)

    def _failed(self, context: Any) -> None:
        if self._admin_url is None and context.connection is not None:
            driver = context.connection.connection.dbapi_connection
            driver.set_progress_handler(None, 0)
        self._unlock()

    def _grow(self, driver: Any, *_: Any) -> None:
        driver.execute("PRAGMA max_page_count = 1000000000")

    def _strike_after(self, driver: Any) -> None:
        match self._kind:
            case Fault.AFTER:
                raise InjectedError("after the boundary")
            case Fault.INTERRUPT:
                raise InjectedInterrupt("after the boundary")
            case Fault.KILLED_AFTER:
                self._kill(driver)
            case Fault.LOST:
                raise self._driver_error("the answer was lost")
            case other:
                raise AssertionError(f"{other} should have struck before")

    def _commit(self, connection: Any) -> None:
        driver = connection.dbapi_connection
        if _commits_alone(driver):
            self._do_commit(connection)  # of nothing, and nothing is sent
            return
        if self._kind not in AFTERWARDS and self._due(self.seen):
            self.at_commit = True
            self._strike_before_commit(driver)
        self._do_commit(connection)
        self.seen += 1
        if self._kind in AFTERWARDS and self._due(self.seen - 1):
            self.at_commit = True
            self._strike_after(driver)

    def _strike_before_commit(self, driver: Any) -> None:
        match self._kind:
            case Fault.BEFORE:
                raise InjectedError("before the commit")
            case Fault.KILLED:
                self._kill(driver)
            case Fault.REFUSED | Fault.CONFLICT:
                # What the server does with a commit that it refuses.
                driver.rollback()
                raise self._driver_error("injected at the commit")
            case _:
                pass  # a lock or a full disk stops statements, and no commit in a log

    def _driver_error(self, message: str) -> Exception:
        dbapi: Any = self.engine.dialect.loaded_dbapi
        if self._kind is Fault.CONFLICT:
            return dbapi.errors.SerializationFailure(message)  # type: ignore[no-any-return]
        if self._kind is Fault.REFUSED and self._admin_url is not None:
            return dbapi.errors.DiskFull(message)  # type: ignore[no-any-return]
        return dbapi.OperationalError(message)  # type: ignore[no-any-return]

    def _kill(self, driver: Any) -> None:
        assert self._admin_url is not None
        admin = create_engine(self._admin_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            # Waits until it is really gone, for at most ten seconds.
            ended = text("SELECT pg_catalog.pg_terminate_backend(:pid, 10000)")
            assert connection.scalar(ended, {"pid": driver.info.backend_pid}) is True


@contextmanager
def answer_of_commit_lost(engine: Engine) -> Iterator[list[bool]]:
    """Within the block the first commit happens and its answer is lost."""
    dialect: Any = engine.dialect
    original: Callable[[Any], None] = dialect.do_commit
    lost: list[bool] = []

    def commit(connection: Any) -> None:
        original(connection)
        if not lost:
            lost.append(True)
            raise dialect.loaded_dbapi.OperationalError("the answer was lost")

    dialect.do_commit = commit
    try:
        yield lost
    finally:
        del dialect.do_commit


def _says(sent: bytes, word: bytes) -> bool:
    return sent[:1] == b"Q" and sent[5:].upper().startswith(word)


def _commits_alone(driver: Any) -> bool:
    return getattr(driver, "autocommit", False) is True
