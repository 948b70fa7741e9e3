"""Make a SQLite engine transactional: real BEGIN, savepoints that roll back, WAL, patience.

The standard driver opens its transaction late and by guessing from the statement's first word,
so a savepoint can stand outside any transaction and survive the outer rollback. Here SQLAlchemy
itself says BEGIN, and the driver guesses nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL

from threadmill_sa.errors import InvalidValueError, UnsupportedStoreError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

BUSY_SECONDS_MAX = 86_400.0
WAL_TRIES = 20  # then the file keeps its journal until a later connection succeeds

_BEGIN = {"DEFERRED": "BEGIN", "IMMEDIATE": "BEGIN IMMEDIATE", "EXCLUSIVE": "BEGIN EXCLUSIVE"}


@dataclass(slots=True)
class _Settings:
    wal: bool
    busy_milliseconds: int


_configured: WeakKeyDictionary[Engine, _Settings] = WeakKeyDictionary()


def configure(
    engine: Engine | AsyncEngine, *, wal: bool = True, busy_timeout: float = 30.0
) -> None:
    """Install the transactional recipe on a SQLite file engine, sqlite3 or aiosqlite.

    Call it right after `create_engine`; idle connections of a synchronous engine are closed, those
    of an async one keep their old settings. Calling again only replaces the settings, for
    connections opened from then on. `synchronous` stays as it is, so a commit survives a crash.

    A connection with the execution option `threadmill_begin="IMMEDIATE"` takes the write lock at
    the start of its transaction. One at isolation level AUTOCOMMIT gets no BEGIN.

    Args:
        engine: a copy made by `execution_options` stands for the engine it was made from.
        wal: keep a write-ahead log, so that readers and the one writer do not block each other.
            The file keeps this mode; False leaves it as it is.
        busy_timeout: seconds to wait for another writer, 0 to a day.
    Raises: UnsupportedStoreError for another dialect, a database in memory, or an engine with
        `skip_autocommit_rollback`; InvalidValueError.
    """
    base = _base(engine)
    _check(base)
    settings = _Settings(wal=wal, busy_milliseconds=_milliseconds(busy_timeout))
    known = _configured.get(base)
    if known is not None:
        known.wal, known.busy_milliseconds = settings.wal, settings.busy_milliseconds
        return
    _configured[base] = settings

    def prepare(dbapi_connection: Any, _record: object) -> None:
        _prepare(dbapi_connection, settings)

    event.listen(base, "connect", prepare, insert=True)
    event.listen(base, "begin", _begin)
    event.listen(base, "checkin", _end)
    if not base.dialect.is_async:
        base.dispose()


def is_configured(engine: Engine | AsyncEngine) -> bool:
    """Return whether `configure` was called for `engine` or the engine it is a copy of."""
    return _base(engine) in _configured


def _base(engine: Engine | AsyncEngine) -> Engine:
    extension = sys.modules.get("sqlalchemy.ext.asyncio")
    found: Any = engine
    if extension is not None and isinstance(found, extension.AsyncEngine):
        found = found.sync_engine
    if not isinstance(found, Engine):
        raise UnsupportedStoreError(
            f"sqlite.configure needs an Engine or AsyncEngine, found {engine!r:.200}"
        )
    # A copy shares the pool but not its listeners: on the copy alone, BEGIN would be missing from
    # every transaction of the original.
    base: Engine = found
    while (original := getattr(base, "_proxied", None)) is not None:
        base = original
    return base


def _check(engine: Engine) -> None:
    if engine.dialect.name != "sqlite":
        raise UnsupportedStoreError(
            f"sqlite.configure found an engine for {engine.dialect.name!r}, expected 'sqlite';"
            " other databases need no such recipe",
            dialect=engine.dialect.name,
        )
    if _in_memory(engine.url):
        raise UnsupportedStoreError(
            f"sqlite.configure found {engine.url!s}, a database in memory, where connections do"
            " not see each other's commits: use a file, or Threadmill.in_memory()"
        )
    if getattr(engine.dialect, "skip_autocommit_rollback", False):
        raise UnsupportedStoreError(
            "sqlite.configure cannot serve an engine with skip_autocommit_rollback=True: its"
            " rollbacks would be skipped; create the engine without it"
        )


def _in_memory(url: URL) -> bool:
    name = url.database or ""
    in_uri = name.startswith("file:") and (":memory:" in name or "mode=memory" in name)
    return name in {"", ":memory:"} or in_uri or url.query.get("mode") == "memory"


def _milliseconds(busy_timeout: float) -> int:
    if (
        isinstance(busy_timeout, bool)
        or not isinstance(busy_timeout, int | float)
        or not 0 <= busy_timeout <= BUSY_SECONDS_MAX
    ):
        raise InvalidValueError(
            f"busy_timeout must be between 0 and {BUSY_SECONDS_MAX:g} seconds,"
            f" found {busy_timeout!r:.200}",
            value=busy_timeout,
        )
    return round(busy_timeout * 1000)


def _prepare(dbapi_connection: Any, settings: _Settings) -> None:
    if sys.version_info >= (3, 12) and isinstance(dbapi_connection, sqlite3.Connection):
        # With the newer control the driver would open transactions itself, or commit nothing.
        dbapi_connection.autocommit = sqlite3.LEGACY_TRANSACTION_CONTROL
    dbapi_connection.isolation_level = None  # the driver begins nothing by itself
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {settings.busy_milliseconds}")
        if settings.wal:
            _switch_to_wal(cursor)
    finally:
        cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    for _ in range(WAL_TRIES):
        cursor.execute("PRAGMA journal_mode")
        if str(cursor.fetchone()[0]).lower() == "wal":
            return
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # The switch fails at once while another connection writes, whatever the timeout.
            # Asking for the write lock does wait; then it is worth another try.
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("COMMIT")


def _end(dbapi_connection: Any, _record: object) -> None:
    """Leave no transaction open in the pool.

    After a COMMIT that SQLite refuses, such as for a deferred foreign key, its transaction is
    still open, while a Session takes it for ended and returns the connection like that.
    """
    if dbapi_connection is None:  # invalidated
        return
    driver = getattr(dbapi_connection, "driver_connection", dbapi_connection)
    if driver.in_transaction:
        dbapi_connection.rollback()


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        return
    kind = str(options.get("threadmill_begin", "DEFERRED")).upper()
    if kind not in _BEGIN:
        raise InvalidValueError(
            f"execution option threadmill_begin must be one of {', '.join(_BEGIN)},"
            f" found {kind!r:.200}",
            value=kind,
        )
    driver: Any = connection.connection.dbapi_connection
    if driver.isolation_level is not None:
        # A use at an isolation level of its own, AUTOCOMMIT included, leaves the driver's default.
        driver.isolation_level = None
    connection.exec_driver_sql(_BEGIN[kind])
