"""One upgrader at a time, and no producer queued behind a waiting upgrade.

Waiting is done by short tries, each in a transaction of its own: neither for the upgraders' lock
nor for a table's lock does a statement block for longer than `LOCK_TIMEOUT`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from threadmill_sa.clock import Clock, SystemClock
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.stores.sql.faults import Fault, classify

LOCK_TIMEOUT = "2s"  # of one DDL statement; producers queue behind it no longer than that
UPGRADE_WAIT_SECONDS = 300.0  # for other upgraders and for the locks of open transactions
RETRY_MIN_SECONDS, RETRY_MAX_SECONDS = 0.1, 0.5  # pause between tries, jittered
# Keyed by the schema as the server resolves it, so that no name and its default are two locks.
LOCK_KEY = (
    "pg_catalog.hashtextextended('threadmill_schema:'"
    " || coalesce({schema}, current_schema(), ''), 0)"
)
_log = logging.getLogger(__name__)
_jitter = random.SystemRandom()


class _Try(Enum):
    DONE = "done"
    BUSY = "busy"


def run_alone(
    connection: Connection,
    work: Callable[[], None],
    *,
    schema: str | None,
    wait_seconds: float = UPGRADE_WAIT_SECONDS,
    clock: Clock | None = None,
) -> None:
    """Run `work` as the only upgrader of `schema`, all of it or nothing.

    Outside a transaction one is begun and committed, and tried again while locks are held by
    others. Inside the caller's it is a savepoint; committing stays with the caller.
    Raises: StoreUnavailableError after `wait_seconds` of waiting.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + wait_seconds
    attempt = _joined if connection.in_transaction() else _own
    warned = False
    while attempt(connection, work, schema) is _Try.BUSY:
        if clock.monotonic() >= deadline:
            raise StoreUnavailableError(
                f"schema upgrade waited {wait_seconds:g} s for locks; look for another upgrader"
                " or a long transaction (pg_locks, pg_stat_activity), then run it again",
                waited_seconds=wait_seconds,
            )
        if not warned:
            _log.warning("schema upgrade waits for another upgrader or an open transaction")
            warned = True
        threading.Event().wait(_jitter.uniform(RETRY_MIN_SECONDS, RETRY_MAX_SECONDS))


@contextmanager
def own_names(connection: Connection) -> Iterator[None]:
    """A host's schema_translate_map renames our tables but not our triggers: off for the block."""
    before = connection.get_execution_options().get("schema_translate_map")
    connection.execution_options(schema_translate_map=None)
    try:
        yield
    finally:
        connection.execution_options(schema_translate_map=before)


def _own(connection: Connection, work: Callable[[], None], schema: str | None) -> _Try:
    try:
        with connection.begin() as transaction:
            if connection.dialect.name == "sqlite":
                _begin_immediate(connection)
            elif not _try_lock(connection, schema):
                transaction.rollback()
                return _Try.BUSY
            else:
                connection.execute(
                    text("SELECT pg_catalog.set_config('lock_timeout', :value, true)"),
                    {"value": LOCK_TIMEOUT},
                )
            work()
    except DBAPIError as error:
        if classify(error) is not Fault.CONFLICT:
            raise
        return _Try.BUSY
    return _Try.DONE


def _joined(connection: Connection, work: Callable[[], None], schema: str | None) -> _Try:
    if connection.dialect.name == "sqlite":
        with _sqlite_savepoint(connection):
            work()
        return _Try.DONE
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        work()  # Nothing here lasts longer than a statement, neither lock nor savepoint.
        return _Try.DONE
    if not _try_lock(connection, schema):
        return _Try.BUSY
    try:
        with connection.begin_nested(), _lock_timeout(connection):
            work()
    except DBAPIError as error:
        if classify(error) is not Fault.CONFLICT:
            raise
        return _Try.BUSY
    return _Try.DONE


def _begin_immediate(connection: Connection) -> None:
    # The standard driver begins only before INSERT, UPDATE and DELETE, so DDL would commit
    # statement by statement; the BEGIN recipe has begun already, without the write lock.
    if getattr(connection.connection.dbapi_connection, "in_transaction", False):
        connection.exec_driver_sql("COMMIT")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _sqlite_savepoint(connection: Connection) -> Iterator[None]:
    # By hand: a host without the BEGIN recipe has no transaction yet, and the savepoint is one.
    connection.exec_driver_sql("SAVEPOINT threadmill_revisions")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK TO threadmill_revisions")
        connection.exec_driver_sql("RELEASE threadmill_revisions")
        raise
    connection.exec_driver_sql("RELEASE threadmill_revisions")


def _try_lock(connection: Connection, schema: str | None) -> bool:
    key = LOCK_KEY.format(schema="CAST(:schema AS text)")
    statement = text(f"SELECT pg_catalog.pg_try_advisory_xact_lock({key})")
    return bool(connection.scalar(statement, {"schema": schema}))


@contextmanager
def _lock_timeout(connection: Connection) -> Iterator[None]:
    """Ours for the block, the caller's again after it; a rollback restores it by itself."""
    setting = text("SELECT pg_catalog.set_config('lock_timeout', :value, true)")
    before = connection.scalar(text("SELECT pg_catalog.current_setting('lock_timeout')"))
    connection.execute(setting, {"value": LOCK_TIMEOUT})
    yield
    connection.execute(setting, {"value": before})
