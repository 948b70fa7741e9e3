"""Leases, always by the store's own clock, which is read where the value is written.

A value taken from the proposed row or from the transaction's start would be too old by the wait
for a row lock. PostgreSQL computes an UPDATE's new row before that wait, and again only when the
row it waited for has changed: so the row is locked first, in the same statement, and the clock
read after it. Guarded by store_only/test_leases_sql.py.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Select,
    String,
    bindparam,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.dml import Insert, Update

from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema


def read_leases(schema: Schema, dialect: SqlDialect) -> Select[Any]:
    """Read every lease with the store's instant, by name."""
    leases = schema.leases
    now = dialect.clock_value().label("now")
    return select(
        leases.c.name,
        leases.c.holder,
        leases.c.term,
        leases.c.acquired_at,
        leases.c.expires_at,
        now,
    ).order_by(leases.c.name)


def read_lease(schema: Schema, dialect: SqlDialect) -> Select[Any]:
    """Read one lease with the store's instant. Uses pk_threadmill_leases."""
    return read_leases(schema, dialect).where(schema.leases.c.name == bindparam("name"))


def insert_lease(schema: Schema, dialect: SqlDialect) -> Insert:
    """Begin the first term of a name; no row when somebody else has.

    Both keys of the table are asked: two that insert at once may meet on either.
    """
    clock = dialect.clock_value()
    statement: Insert = (
        dialect.insert(schema.leases)
        .values(
            name=bindparam("name", type_=String()),
            holder=bindparam("holder", type_=String()),
            term=literal(1, BigInteger),
            acquired_at=clock,
            expires_at=_end_of(dialect),
        )
        .on_conflict_do_nothing()
        .returning(schema.leases.c.term)
    )
    return statement


def take_lease(schema: Schema, dialect: SqlDialect) -> Update:
    """Begin the next term of a name that is free or whose lease has run out."""
    leases = schema.leases
    clock = dialect.clock_value()
    return (
        update(leases)
        .where(_is_locked(schema, dialect))
        .where(or_(leases.c.holder.is_(None), leases.c.expires_at <= clock))
        .values(
            holder=bindparam("new_holder", type_=String()),
            term=leases.c.term + 1,
            acquired_at=clock,
            expires_at=_end_of(dialect),
        )
        .returning(leases.c.term)
    )


def renew_lease(schema: Schema, dialect: SqlDialect) -> Update:
    """Move the end of a term that has not ended. Its number and its start stay."""
    leases = schema.leases
    return (
        update(leases)
        .where(_is_locked(schema, dialect, key_share=True))
        .where(*_is_held(schema))
        .where(leases.c.expires_at > dialect.clock_value())
        .values(expires_at=_end_of(dialect))
    )


def release_lease(schema: Schema, dialect: SqlDialect) -> Update:
    """End a term; the row stays, and with it the number."""
    return (
        update(schema.leases)
        .where(*_is_held(schema))
        .values(holder=None, expires_at=dialect.clock_value())
    )


def fence_lease(schema: Schema, dialect: SqlDialect) -> Executable:
    """Give a row when the term holds, and keep it holding until the transaction ends.

    Where the transaction may see the row as it was before a renewal, its expiry says nothing. The
    lock on its keys then does: it fails once another term has begun, and holds the next one off.
    """
    leases = schema.leases
    lasting = or_(leases.c.expires_at > dialect.clock_value(), dialect.keeps_its_snapshot())
    return dialect.kept(leases, leases.c.term, *_is_held(schema), lasting)


def bound_waits() -> Select[Any]:
    """Bound the waits of this PostgreSQL transaction, and of it alone: poolers share sessions.

    The one for locks must be the shorter one, else it never speaks.
    """
    return select(
        func.pg_catalog.set_config("lock_timeout", bindparam("locks", type_=String()), True),
        func.pg_catalog.set_config("statement_timeout", bindparam("whole", type_=String()), True),
    )


def hint_release(channel: str) -> Select[Any]:
    """Tell other processes of a name that is free, when this transaction commits."""
    return select(
        func.pg_catalog.pg_notify(
            literal(channel, String), bindparam("lease_name", type_=String())
        )
    )


def _end_of(dialect: SqlDialect) -> Any:
    return dialect.later(dialect.clock_value(), bindparam("ttl_seconds", type_=Float(53)))


def _is_locked(
    schema: Schema, dialect: SqlDialect, *, key_share: bool = False
) -> ColumnElement[bool]:
    """The row of `lease_name`, once it is locked; `key_share` lets fences stand."""
    leases = schema.leases
    row = select(leases.c.name).where(leases.c.name == bindparam("lease_name", type_=String()))
    return dialect.picked(leases.c.name, row.with_for_update(key_share=key_share))


def _is_held(schema: Schema) -> tuple[Any, ...]:
    leases = schema.leases
    return (
        leases.c.name == bindparam("lease_name", type_=String()),
        leases.c.holder == bindparam("lease_holder", type_=String()),
        leases.c.term == bindparam("lease_term", type_=BigInteger()),
    )
