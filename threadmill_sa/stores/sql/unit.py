"""The gateway: every transaction of our own is opened here, and only here is one retried."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from datetime import datetime
from threading import Event
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from threadmill_sa.clock import Clock, SystemClock
from threadmill_sa.errors import (
    SchemaMissingError,
    StoreAccessError,
    StoreInvariantError,
    StoreUnavailableError,
)
from threadmill_sa.model import limits
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.faults import Fault, classify, lacks_privilege, lacks_table
from threadmill_sa.stores.sql.frozen import UPGRADE_COMMAND
from threadmill_sa.stores.sql.prepared import OWN_OPTIONS

T = TypeVar("T")

# On a driver's connection: whether a statement outside BEGIN runs at READ COMMITTED there.
_READ_COMMITTED = "threadmill_sa.read_committed"


class Database:
    """Our transactions on the user's engine: READ COMMITTED, or BEGIN IMMEDIATE on SQLite.

    Whatever the engine's default isolation or translation of schemas is, ours stay as they are.
    """

    def __init__(
        self,
        engine: Engine,
        dialect: SqlDialect,
        clock: Clock,
        *,
        tries: int = limits.STORE_TRIES,
        busy_seconds: float | None = None,
    ) -> None:
        self.dialect = dialect
        self._tries = tries
        self._busy_seconds = busy_seconds
        self._clock = clock
        # Waiting for others is real time, also where a test stops the clock.
        self._elapsed = SystemClock().monotonic
        self._pause = Event()  # never set: a wait that a debugger or signal can interrupt
        if dialect.name == "sqlite":
            self._reader = engine.execution_options(**OWN_OPTIONS)
            self._writer = self._reader.execution_options(threadmill_begin="IMMEDIATE")
            self._single = None
        else:
            self._writer = self._reader = engine.execution_options(
                isolation_level="READ COMMITTED", **OWN_OPTIONS
            )
            self._single = engine.execution_options(isolation_level="AUTOCOMMIT", **OWN_OPTIONS)

    def instant(self, now: datetime | None) -> datetime | None:
        """Return what to bind as `now`: null where the server's clock is asked."""
        if now is None and not self.dialect.own_clock:
            return self._clock.now()
        return now

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of ours; run it again on a conflict, which left nothing.

        Raises: StoreUnavailableError when the store stays busy or cannot be reached;
            SchemaMissingError when it was never migrated; StoreAccessError.
        """
        return self._run(self._writer, work)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads, in a transaction of ours.

        Raises: StoreUnavailableError when the store cannot be reached.
        """
        return self._run(self._reader, work)

    def write_one(self, statement: Callable[[Connection], T]) -> T:
        """As `write`, for a single statement, or several that need no common transaction.

        PostgreSQL gives each a transaction without being asked, which saves two of three round
        trips. Source: docs/decisions/0008-round-trips-of-a-wake.md.
        """
        return self._run(self._single or self._writer, statement)

    def read_one(self, statement: Callable[[Connection], T]) -> T:
        """As `read`, for work that executes a single statement."""
        return self._run(self._single or self._reader, statement)

    def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        started, tries = self._elapsed(), 0
        while True:
            try:
                with engine.connect() as connection:
                    if engine is self._single:
                        _pin_isolation(connection)
                    with connection.begin():
                        if engine is self._writer:
                            self._begin_writing(connection)
                        return work(connection)
            except IntegrityError as error:
                raise StoreInvariantError(
                    f"the store refused a row that contradicts another ({_first_line(error)});"
                    " nothing was written: give each job an id of its own, or look for rows"
                    " edited by hand"
                ) from error
            except (DBAPIError, PoolTimeoutError) as error:
                fault = classify(error)
                _explain(error)
                if fault is Fault.OTHER:
                    raise
                tries += 1
                waited = self._elapsed() - started
                if fault is Fault.OUTAGE or self._exhausted(tries, waited):
                    raise StoreUnavailableError(
                        f"the store did not answer after {tries} tries and {waited:.1f} s"
                        f" ({type(error).__name__}: {_first_line(error)}); {self._advice(fault)}",
                        tries=tries,
                    ) from error
            except BaseException as error:
                if not isinstance(error, Exception):
                    # An interrupt: SQLAlchemy has closed the connection, and SQLite keeps its
                    # lock as long as a frame of the traceback holds a cursor of it.
                    traceback.clear_frames(error.__traceback__)
                raise
            self._pause.wait(_pause_seconds(tries))

    def _advice(self, fault: Fault) -> str:
        if self.dialect.name == "sqlite" and fault is Fault.CONFLICT:
            return (
                "another write transaction stays open: end it, or join it with session= where it"
                " is the caller's own"
            )
        return "try again later"

    def _exhausted(self, tries: int, waited: float) -> bool:
        if self.dialect.name == "sqlite":  # busy: the driver itself waits in each try
            longest = self._busy_seconds
            return waited >= (limits.SQLITE_BUSY_SECONDS if longest is None else longest)
        return tries >= self._tries

    def _begin_writing(self, connection: Connection) -> None:
        if self.dialect.name != "sqlite":
            return
        # Take the write lock before anything is read: a read transaction that turns into a
        # write fails at once when another writer committed in between.
        driver: Any = connection.connection.dbapi_connection
        if driver.in_transaction:
            connection.exec_driver_sql(
                "UPDATE main.threadmill_store_identity SET last_epoch = last_epoch WHERE id = 0"
            )
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _pin_isolation(connection: Connection) -> None:
    """Leave AUTOCOMMIT where the server's own default is not READ COMMITTED.

    Asked once per connection of the driver: the default belongs to role, database or session.
    """
    known = connection.info
    if _READ_COMMITTED not in known:
        shown = connection.exec_driver_sql("SHOW default_transaction_isolation").scalar_one()
        connection.commit()
        known[_READ_COMMITTED] = shown == "read committed"
    if not known[_READ_COMMITTED]:
        connection.execution_options(isolation_level="READ COMMITTED")


def _explain(error: Exception) -> None:
    """Raise what the state of the database explains, with the way out."""
    if not isinstance(error, DBAPIError):
        return
    if lacks_table(error):
        raise SchemaMissingError(
            f"the database lacks a table of this release ({_first_line(error)}):"
            f" run `{UPGRADE_COMMAND}`, or tm.schema.migrate()"
        ) from error
    if lacks_privilege(error):
        raise StoreAccessError(
            f"the database role may not do this ({_first_line(error)}): grant it all of our"
            " tables, or to a producer what `threadmill-sa db grants ROLE` prints"
        ) from error


def _pause_seconds(tries: int) -> float:
    longest: float = min(
        limits.STORE_RETRY_MAX_SECONDS, limits.STORE_RETRY_MIN_SECONDS * 2 ** min(tries, 10)
    )
    return longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret


def _first_line(error: BaseException) -> str:
    source = getattr(error, "orig", None) or error
    lines = str(source).strip().splitlines()
    return lines[0][:300] if lines else type(source).__name__
