"""The role that keeps leases, on SQL."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import Connection, Row

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.clock import SystemClock
from threadmill_sa.errors import StoreInvariantError, StoreUnavailableError
from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    Lease,
    LeaseView,
    ReleaseVerdict,
    RenewVerdict,
)
from threadmill_sa.stores.sql.aside import engine_aside
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.faults import waited_in_vain
from threadmill_sa.stores.sql.leasehints import LeaseHints
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import leases as statements
from threadmill_sa.stores.sql.unit import Database

T = TypeVar("T")

# Of a call's time may be spent on one lock: there may be two to wait for, and what the wait was
# for must be known before the caller gives the call up.
_LOCK_SHARE = 0.25


class _Statements:
    """What the calls execute, built once."""

    def __init__(self, schema: Schema, dialect: SqlDialect, channel: str) -> None:
        self.read = statements.read_lease(schema, dialect)
        self.list = statements.read_leases(schema, dialect)
        self.insert = statements.insert_lease(schema, dialect)
        self.take = statements.take_lease(schema, dialect)
        self.renew = statements.renew_lease(schema, dialect)
        self.release = statements.release_lease(schema, dialect)
        server = dialect.own_clock
        self.bound = statements.bound_waits() if server else None
        self.tell = statements.hint_release(channel) if server else None


class SqlLeases:
    """`spi.Leases`; one try each, since the contender decides about the next.

    Each call is one or two short transactions on connections beside the engine's pool. The clock
    is the server's; on SQLite it is this host's, read once the write lock is held.
    """

    def __init__(self, engine: Engine, schema: Callable[[], Schema], dialect: SqlDialect) -> None:
        self._engine = engine
        self._schema = schema  # asked for by the first call: resolving it may need the database
        self._dialect = dialect
        self._open()
        renew_in_child(self)

    @cached_property
    def _hints(self) -> LeaseHints:
        return LeaseHints(self._engine, self._schema().name or "")

    @cached_property
    def _sql(self) -> _Statements:
        return _Statements(self._schema(), self._dialect, self._hints.channel)

    def _open(self) -> None:
        self._aside = engine_aside(self._engine)
        self._database = Database(
            self._aside, self._dialect, SystemClock(), tries=1, busy_seconds=0.0
        )
        # Nobody has to close a store that is simply dropped.
        self._finalizer = weakref.finalize(self, self._aside.pool.dispose)

    def after_fork(self) -> None:
        """Begin with a pool of its own, and leave the parent's sockets alone."""
        self._finalizer.detach()
        self._aside.dispose(close=False)
        self._open()

    def acquire(
        self, name: str, holder: str, *, ttl_seconds: float, timeout_seconds: float
    ) -> AcquireAnswer:
        # Who finds the name held writes nothing and takes no lock.
        found = self._database.read(lambda connection: self._find(connection, name))
        if found is not None and _remaining(found) > 0:
            return _held(found)
        binds = {"lease_name": name, "new_holder": holder, "ttl_seconds": ttl_seconds}

        def work(connection: Connection) -> AcquireAnswer:
            if found is None:
                first = {"name": name, "holder": holder, "ttl_seconds": ttl_seconds}
                taken = connection.execute(self._sql.insert, first | self._clock()).one_or_none()
            else:
                taken = connection.execute(self._sql.take, binds | self._clock()).one_or_none()
            if taken is not None:
                lease = Lease(name, holder, taken.term)
                return AcquireAnswer(AcquireVerdict.ACQUIRED, lease, ttl_seconds)
            other = self._find(connection, name)
            # Never None: the row was there, or somebody else has just inserted it.
            return _held(other)

        try:
            return self._write(work, timeout_seconds)
        except StoreUnavailableError as error:
            if not waited_in_vain(error.__cause__):
                raise
            # By a fence of the term before, or by somebody who is about to begin the next one.
            return AcquireAnswer(AcquireVerdict.HELD, _latest(name, found), 0.0)

    def renew(self, lease: Lease, *, ttl_seconds: float, timeout_seconds: float) -> RenewVerdict:
        binds = _binds(lease) | {"ttl_seconds": ttl_seconds}

        def work(connection: Connection) -> RenewVerdict:
            renewed = connection.execute(self._sql.renew, binds | self._clock()).rowcount == 1
            return RenewVerdict.RENEWED if renewed else RenewVerdict.LOST

        return self._write(work, timeout_seconds)

    def release(self, lease: Lease, *, timeout_seconds: float) -> ReleaseVerdict:
        def work(connection: Connection) -> ReleaseVerdict:
            released = connection.execute(self._sql.release, _binds(lease) | self._clock())
            if released.rowcount != 1:
                return ReleaseVerdict.NOT_HELD
            if self._sql.tell is not None:
                connection.execute(self._sql.tell, {"lease_name": lease.name})
            return ReleaseVerdict.RELEASED

        verdict = self._write(work, timeout_seconds)
        if verdict is ReleaseVerdict.RELEASED:
            self._hints.released(lease.name)
        return verdict

    def peek(self, name: str) -> LeaseView | None:
        found = self._database.read(lambda connection: self._find(connection, name))
        return None if found is None else _view(found)

    def list(self) -> list[LeaseView]:
        return self._database.read(
            lambda connection: [
                _view(row) for row in connection.execute(self._sql.list, self._clock())
            ]
        )

    def watch(self, name: str, on_hint: Callable[[], None]) -> Callable[[], None]:
        return self._hints.watch(name, on_hint)

    def close(self) -> None:
        if "_hints" in self.__dict__:
            self._hints.close()
        self._finalizer()
        self._open()

    def _find(self, connection: Connection, name: str) -> Row[Any] | None:
        return connection.execute(self._sql.read, {"name": name} | self._clock()).one_or_none()

    def _write(self, work: Callable[[Connection], T], timeout_seconds: float) -> T:
        def bounded(connection: Connection) -> T:
            if self._sql.bound is not None:
                connection.execute(self._sql.bound, _bounds(timeout_seconds))
            return work(connection)

        return self._database.write(bounded)

    def _clock(self) -> dict[str, Any]:
        # Taken inside the transaction: on SQLite after the wait for the write lock.
        return {} if self._dialect.own_clock else {"clock": SystemClock().now()}


def _bounds(seconds: float) -> dict[str, str]:
    shares = {"locks": _LOCK_SHARE, "whole": 1.0}
    return {name: str(max(1, round(seconds * share * 1000))) for name, share in shares.items()}


def _binds(lease: Lease) -> dict[str, Any]:
    return {
        "lease_name": lease.name,
        "lease_holder": lease.holder,
        "lease_term": lease.term,
    }


def _remaining(row: Row[Any]) -> float:
    if row.holder is None:
        return 0.0
    seconds: float = (row.expires_at - row.now).total_seconds()
    return max(0.0, seconds)


def _held(row: Row[Any] | None) -> AcquireAnswer:
    if row is None:
        raise StoreInvariantError("a lease row has vanished: rows of leases are never deleted")
    return AcquireAnswer(AcquireVerdict.HELD, _latest(row.name, row), _remaining(row))


def _latest(name: str, row: Row[Any] | None) -> Lease:
    """The latest holding, without a holder once it was given back; or the first, to begin."""
    return Lease(name, "", 1) if row is None else Lease(name, row.holder or "", row.term)


def _view(row: Row[Any]) -> LeaseView:
    remaining = _remaining(row)
    holder = row.holder if remaining else None
    return LeaseView(row.name, holder, row.term, row.acquired_at, remaining)
