"""Faults of the database at a chosen statement of an actor's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.pool import NullPool


class Fault(StrEnum):
    BEFORE = "the statement is not sent"
    AFTER = "the statement has run and then fails"
    KILLED = "the server ends the connection before the statement"
    KILLED_AFTER = "the server ends the connection after the statement"


class InjectedError(Exception):
    """Not one of the database's: nothing may take it for a conflict and try again."""


class FaultyEngine:
    """Counts the statements of `engine` and lets a fault strike at one of them."""

    def __init__(self, engine: Engine, admin_url: str | None = None) -> None:
        self.engine = engine
        self._admin_url = admin_url
        self._at: int | None = None
        self._kind = Fault.BEFORE
        self.seen = 0
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)

    def strike(self, at: int, kind: Fault) -> None:
        """Let the fault strike at statement `at`, counted from 0, and only once."""
        self.seen, self._at, self._kind = 0, at, kind

    @property
    def struck(self) -> bool:
        return self._at is None

    def mend(self) -> None:
        self._at = None

    def _before(self, conn: Any, *_rest: Any) -> None:
        if self.seen != self._at:
            return
        if self._kind is Fault.BEFORE:
            self._at = None
            raise InjectedError("before the statement")
        if self._kind is Fault.KILLED:
            self._at = None
            self._kill(conn)

    def _after(self, conn: Any, *_rest: Any) -> None:
        if self.seen == self._at and self._kind in {Fault.AFTER, Fault.KILLED_AFTER}:
            self._at = None
            self.seen += 1
            if self._kind is Fault.KILLED_AFTER:
                self._kill(conn)
                return
            raise InjectedError("after the statement")
        self.seen += 1

    def _kill(self, conn: Any) -> None:
        assert self._admin_url is not None
        pid = conn.connection.dbapi_connection.info.backend_pid
        admin = create_engine(self._admin_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            # Waits until it is really gone, for at most ten seconds.
            ended = text("SELECT pg_catalog.pg_terminate_backend(:pid, 10000)")
            assert connection.scalar(ended, {"pid": pid}) is True


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
