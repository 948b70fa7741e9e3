"""Joining a caller's transaction: which handles can carry our writes, and the writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import Executable

from threadmill_sa.errors import (
    AutocommitError,
    ForeignSessionError,
    SavepointError,
    UnsupportedSessionError,
)
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.lease import FenceVerdict, Lease
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict
from threadmill_sa.stores.sql.writing import ProducerWrites


class SqlJoinedWrites:
    """`spi.JoinedWrites` on one connection whose transaction belongs to the caller.

    No exception is caught here: a failed statement of ours would doom the caller's transaction,
    so the statements are made such that they cannot fail.
    """

    def __init__(
        self, connection: Connection, carrier: Engine | Connection, writes: ProducerWrites
    ) -> None:
        self._connection = connection
        self.carrier = carrier
        self._writes = writes

    def task_verdicts(
        self, names: Sequence[str], *, writing: bool = False
    ) -> Mapping[str, NudgeVerdict]:
        return self._writes.task_verdicts(self._connection, names, writing=writing)

    def request_cron_nudge(self, name: str, *, now: datetime | None = None) -> NudgeOutcome:
        # Only a transaction that its holder ends elsewhere is watched by its slot.
        telling = isinstance(self.carrier, Connection)
        return self._writes.accept_nudge(self._connection, name, telling=telling, now=now)

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> None:
        if jobs:
            self._writes.insert_jobs(self._connection, jobs, now=now)

    def expect_nudges(
        self, names: Sequence[str], *, now: datetime | None = None
    ) -> Mapping[str, int]:
        return self._writes.expect_nudges(self._connection, names, now=now)

    def fence(self, lease: Lease) -> FenceVerdict:
        return self._writes.fence(self._connection, lease)


class Joining:
    """Decides whether a handle's transaction is one of ours to join."""

    def __init__(self, engines: Sequence[Engine], describe: Callable[[], str]) -> None:
        self._engines = tuple(engines)
        self._describe = describe

    def connection_of(
        self, handle: object, clause: Executable
    ) -> tuple[Connection, Engine | Connection]:
        """Return the connection of the transaction of `handle`, and what the handle is bound to.

        Args:
            clause: our write, so that a session that routes by statement sees a write.
        Raises: UnsupportedSessionError, ForeignSessionError, AutocommitError, SavepointError;
            in each case no SQL of ours was sent.
        """
        if isinstance(handle, Session):
            bind = self._bind_of(handle, clause)
            self._require_known(bind.engine, "session")
            connection = handle.connection(bind_arguments={"bind": bind})
        elif isinstance(handle, Connection):
            self._require_known(handle.engine, "connection")
            connection = bind = handle
        else:
            raise UnsupportedSessionError(
                f"cannot join {type(handle).__name__}: pass a sqlalchemy Session or Connection",
                handle=type(handle).__name__,
            )
        _require_transaction(connection)
        return connection, bind

    def _bind_of(self, session: Session, clause: Executable) -> Engine | Connection:
        try:
            return session.get_bind(clause=clause)  # type: ignore[arg-type]
        except UnboundExecutionError as error:
            raise ForeignSessionError(
                "the session knows no engine for Threadmill's tables: give it a bind that serves"
                f" {self._describe()}, or pass its engine to Threadmill(..., also=[engine])",
            ) from error

    def _require_known(self, engine: Engine, what: str) -> None:
        # Compared at the call: dispose() replaces an engine's pool, copies share it.
        pool = engine.pool
        for known in self._engines:
            if known.pool is pool:
                return
        url = engine.url.render_as_string(hide_password=True)
        raise ForeignSessionError(
            f"the {what} uses {url}, which is not the engine of this Threadmill"
            f" ({self._describe()}); if it is another engine of the same database, pass it to"
            " Threadmill(..., also=[engine])",
            url=url,
        )


def _require_transaction(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name != "sqlite":
        if getattr(driver, "autocommit", False):
            raise _autocommit()
        return
    if not connection.in_transaction():
        connection.begin()  # what SQLAlchemy's autobegin would do for the first statement
    managed = driver.isolation_level is None or getattr(driver, "autocommit", -1) in {True, False}
    if managed:
        if not _in_transaction(driver):
            raise _autocommit()
    elif connection.in_nested_transaction():
        raise SavepointError(
            "SQLite's driver opens no transaction for a savepoint, so a joined write inside one"
            " would survive the outer rollback: call threadmill_sa.sqlite.configure(engine) once"
            " after create_engine, or use mode='after_commit'"
        )


def _in_transaction(driver: Any) -> bool:
    state = getattr(driver, "in_transaction", None)
    if state is None:  # SQLAlchemy's adapter of an asynchronous driver
        state = driver.driver_connection.in_transaction
    return bool(state)


def _autocommit() -> AutocommitError:
    return AutocommitError(
        "the connection is in AUTOCOMMIT, so there is no transaction to join: use a session with"
        " transactions, or mode='immediate'"
    )
