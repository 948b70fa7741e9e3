"""The pending nudges: accept, observe, consume, compact, sweep."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    String,
    bindparam,
    delete,
    insert,
    literal,
    select,
    true,
)
from sqlalchemy.sql.dml import Delete, Insert

from threadmill_sa.model.limits import REVISION_BLOCK
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema, UtcDateTime


def accept_nudge(schema: Schema, dialect: SqlDialect, *, telling: bool) -> Any:
    """Accept a nudge of an enabled task, or insert nothing; never waits for another producer.

    With `telling` it returns revision and slot; without, the row count says all, at a fifth less.

    The row is sourced from the definition, so check and write are one statement and a missing
    task can raise no error. One row per task and transaction: no transaction ever meets a row
    of another. Guarded by tests/promises.
    """
    tasks, nudges = schema.cron_tasks, schema.cron_nudges
    source: dict[str, Any] = {
        "task_name": tasks.c.name,
        "slot": dialect.transaction_slot(),
        "epoch": tasks.c.epoch,
        **dialect.given_revision(),
        "requested_at": dialect.requested_at(schema),
    }
    rows = (
        select(*source.values())
        .where(tasks.c.name == bindparam("name", type_=String()))
        .where(tasks.c.enabled == true())
    )
    accept = dialect.keep_one_per_slot(nudges, list(source), rows)
    if telling:
        return accept.returning(nudges.c.revision, nudges.c.slot)
    return accept.execution_options(preserve_rowcount=True)


def read_verdicts(schema: Schema, dialect: SqlDialect) -> Select[Any]:
    """Read which of `names` exist, and whether they are enabled."""
    tasks = schema.cron_tasks
    return select(tasks.c.name, tasks.c.enabled).where(
        dialect.member(tasks.c.name, "names", String())
    )


def read_verdict(schema: Schema) -> Select[Any]:
    """Read whether one task is enabled."""
    tasks = schema.cron_tasks
    return select(tasks.c.enabled).where(tasks.c.name == bindparam("name", type_=String()))


def is_nudge_of(schema: Schema) -> ColumnElement[bool]:
    """Return the condition that joins a nudge to its living task."""
    nudges, tasks = schema.cron_nudges, schema.cron_tasks
    return (nudges.c.task_name == tasks.c.name) & (nudges.c.epoch == tasks.c.epoch)


def delete_nudges_of(schema: Schema) -> Delete:
    """Delete every visible nudge of one task, of whatever epoch: a flip or a delete."""
    nudges = schema.cron_nudges
    return delete(nudges).where(nudges.c.task_name == bindparam("name", type_=String()))


def consume_nudges(schema: Schema) -> Delete:
    """Delete the visible nudges of one registration; those not committed yet survive unseen."""
    nudges = schema.cron_nudges
    return delete_nudges_of(schema).where(nudges.c.epoch == bindparam("epoch", type_=BigInteger()))


def consume_and_tell(schema: Schema) -> Any:
    """As `consume_nudges`, and return when each was requested."""
    return consume_nudges(schema).returning(schema.cron_nudges.c.requested_at)


def insert_compacted(schema: Schema, dialect: SqlDialect) -> Insert:
    """Insert the one acceptance, with a fresh revision, that stands for those just consumed."""
    values: dict[str, Any] = {
        "task_name": bindparam("name", type_=String()),
        "epoch": bindparam("epoch", type_=BigInteger()),
        "requested_at": bindparam("requested_at", type_=UtcDateTime()),
        **dialect.compacted_identity(schema.revision_sequence),
    }
    return insert(schema.cron_nudges).from_select(
        list(values), select(*values.values()), include_defaults=False
    )


def clear_observed(schema: Schema, dialect: SqlDialect) -> Delete:
    """Delete exactly the acceptances whose revisions were observed."""
    nudges = schema.cron_nudges
    return delete_nudges_of(schema).where(
        dialect.member(nudges.c.revision, "revisions", BigInteger())
    )


def sweep_dead(schema: Schema) -> Any:
    """Delete nudges whose registration is gone.

    One statement, so one snapshot: a nudge that it sees was accepted under an epoch that
    committed before, hence either that task is seen too or it is dead for good.
    """
    nudges = schema.cron_nudges
    living = select(literal(1)).select_from(schema.cron_tasks).where(is_nudge_of(schema))
    is_dead = ~living.correlate(nudges).exists()
    dead = (
        select(nudges.c.revision)
        .where(is_dead)
        .order_by(nudges.c.revision)
        .limit(bindparam("limit", type_=Integer()))
    )
    return (
        delete(nudges)
        .where(nudges.c.revision.in_(dead))
        .where(is_dead)  # again: after a failover a living nudge may have an equal revision
        .returning(nudges.c.task_name)
    )


def shield_slots(schema: Schema) -> Any:
    """Move slots out of the reach of a new cluster's transaction ids (a restored database).

    Each gets a freshly drawn one, as a compacted nudge does: two revisions may be equal.
    """
    nudges = schema.cron_nudges
    drawn = schema.revision_sequence.next_value() * REVISION_BLOCK
    return nudges.update().where(nudges.c.slot > 0).values(slot=-drawn)
