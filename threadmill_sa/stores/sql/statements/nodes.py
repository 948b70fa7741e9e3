"""Registration and heartbeats of nodes, always by the store's own clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Integer,
    Select,
    String,
    Text,
    Uuid,
    bindparam,
    delete,
    select,
    update,
)
from sqlalchemy.sql.dml import Delete, Insert, Update

from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema, UtcDateTime
from threadmill_sa.stores.sql.statements.jobs import state_is

_COLUMNS = ("id", "host", "pid", "queues", "workers", "started_at", "heartbeat_at")


def beat_node(schema: Schema, dialect: SqlDialect) -> Insert:
    """Register the node, or move its heartbeat."""
    clock = dialect.clock_value()
    statement: Insert = (
        dialect.insert(schema.nodes)
        .values(
            id=bindparam("id", type_=Uuid()),
            host=bindparam("host", type_=String()),
            pid=bindparam("pid", type_=BigInteger()),
            queues=bindparam("queues", type_=Text()),
            workers=bindparam("workers", type_=Integer()),
            started_at=clock,
            heartbeat_at=clock,
        )
        .on_conflict_do_update(index_elements=["id"], set_={"heartbeat_at": clock})
    )
    return statement


def beat_jobs(schema: Schema, dialect: SqlDialect) -> Update:
    """Move the heartbeat of the jobs packed in `rows` that the node still holds."""
    jobs = schema.jobs
    rows = dialect.records("rows", {"id": Uuid(), "token": BigInteger()})
    return (
        update(jobs)
        .where(dialect.member(jobs.c.id, "ids", Uuid()))
        .where(jobs.c.id == rows.c.id)
        .where(jobs.c.attempt_token == rows.c.token)
        .where(jobs.c.owner_node_id == bindparam("node_id", type_=Uuid()))
        .where(state_is(schema, "PROCESSING"))
        .values(heartbeat_at=dialect.clock_value())
        .returning(jobs.c.id)
    )


def remove_node(schema: Schema) -> Delete:
    """Forget one node."""
    return delete(schema.nodes).where(schema.nodes.c.id == bindparam("id", type_=Uuid()))


def remove_stale_nodes(schema: Schema) -> Delete:
    """Forget nodes that have not beaten after `silent_since`."""
    since = bindparam("silent_since", type_=UtcDateTime())
    return delete(schema.nodes).where(schema.nodes.c.heartbeat_at <= since)


def list_nodes(schema: Schema) -> Select[Any]:
    """Read every node, oldest start first."""
    columns = [schema.nodes.c[name] for name in _COLUMNS]
    return select(*columns).order_by(schema.nodes.c.started_at, schema.nodes.c.id)
