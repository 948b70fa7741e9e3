"""Definitions and schedule state: lock, read, write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    Integer,
    Select,
    String,
    Text,
    Uuid,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    union,
    update,
)
from sqlalchemy.sql.dml import Delete, Insert, Update

from threadmill_sa.model import limits
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema, UtcDateTime
from threadmill_sa.stores.sql.statements.jobs import insert_job_if, is_unfinished_instance_of
from threadmill_sa.stores.sql.statements.nudges import consume_nudges, is_nudge_of

_BEGINNING = datetime(1, 1, 2, tzinfo=UTC)  # of time, whatever the zone of the session

DEFINITION = (
    "name", "trigger_kind", "trigger_value", "zone", "handler", "payload", "queue", "priority",
    "missed_run_policy", "timeout_seconds", "max_attempts", "enabled", "epoch", "anchor_at",
    "created_at", "updated_at",
)  # fmt: skip
STATE = (
    "next_run_at", "last_run_at", "last_run_job_id", "in_flight_job_id", "timing_fingerprint",
    "broken_reason", "broken_at",
)  # fmt: skip

_DEFINITION_TYPES: dict[str, Any] = {
    "trigger_kind": String(),
    "trigger_value": String(),
    "zone": String(),
    "handler": String(),
    "payload": Text(),
    "queue": String(),
    "priority": Integer(),
    "missed_run_policy": String(),
    "timeout_seconds": Float(53),
    "max_attempts": Integer(),
    "anchor_at": UtcDateTime(),
}
_STATE_TYPES: dict[str, Any] = {
    "next_run_at": UtcDateTime(),
    "last_run_at": UtcDateTime(),
    "last_run_job_id": Uuid(),
    "in_flight_job_id": Uuid(),
    "timing_fingerprint": String(),
    "broken_reason": Text(),
    "broken_at": UtcDateTime(),
}


def nominate_names(schema: Schema, dialect: SqlDialect) -> Select[Any]:
    """Name the tasks that are due, nudged or broken. Nothing here scales with idle tasks.

    Indexes: ix_threadmill_cron_task_state_next_run_at, ..._broken_at; per pending nudge one
    probe of the definition's key, written as a scalar subquery so that it stays a probe.
    """
    state, nudges, tasks = schema.cron_task_state, schema.cron_nudges, schema.cron_tasks
    now = dialect.now_bound()
    # The lower bound excludes nothing. A range with an end that is not known when the statement
    # is planned counts as narrow, an open comparison as a third of all tasks, which would be read
    # one by one. Guarded by tests/store_only/test_postgres_plans.py.
    due = (
        select(state.c.task_name)
        .where(state.c.next_run_at >= literal(_BEGINNING, UtcDateTime()))
        .where(state.c.next_run_at <= now)
    )
    broken = select(state.c.task_name).where(
        state.c.broken_at.is_not(None),
        state.c.broken_at <= _ago(dialect, limits.BROKEN_RETRY_SECONDS),
    )
    enabled = (
        select(tasks.c.enabled).where(is_nudge_of(schema)).correlate(nudges).scalar_subquery()
    )
    nudged = select(nudges.c.task_name).where(enabled)
    names = union(due, broken, nudged).subquery("names")
    return (
        select(names.c.task_name)
        .where(names.c.task_name > bindparam("after", type_=String()))
        .order_by(names.c.task_name)
        .limit(bindparam("limit", type_=Integer()))
    )


def _ago(dialect: SqlDialect, seconds: float) -> Any:
    moved = dialect.later(dialect.now_value(), bindparam(None, -seconds, type_=Float(53)))
    return select(moved).scalar_subquery()


def _among(column: Any, dialect: SqlDialect, *, one: bool) -> Any:
    """Return the condition for one `name` or many `names`.

    The one is what most ticks want, and its plan can be kept: for a list the server plans anew
    each time, which takes longer than the query.
    """
    if one:
        return column == bindparam("name", type_=String())
    return dialect.member(column, "names", String())


def lock_states(schema: Schema, dialect: SqlDialect, *, wait: bool, one: bool) -> Select[Any]:
    """Lock the state rows of `names` (or `name`), sorted, this table alone."""
    state = schema.cron_task_state
    return (
        select(state.c.task_name)
        .where(_among(state.c.task_name, dialect, one=one))
        .order_by(state.c.task_name)
        .with_for_update(skip_locked=not wait)
    )


def lock_state(schema: Schema) -> Select[Any]:
    """Lock and read the state row of one task: the first statement of every lifecycle call."""
    state = schema.cron_task_state
    return (
        select(*[state.c[name] for name in STATE], state.c.task_name)
        .where(state.c.task_name == bindparam("name", type_=String()))
        .with_for_update()
    )


def existing_states(schema: Schema, dialect: SqlDialect) -> Select[Any]:
    """Read which of `names` exist, whoever holds them."""
    state = schema.cron_task_state
    return select(state.c.task_name).where(dialect.member(state.c.task_name, "names", String()))


def read_tasks(schema: Schema, dialect: SqlDialect, *, one: bool) -> Select[Any]:
    """Read what a tick needs to know of `names` (or `name`), in one snapshot after their lock.

    Joining this to the locking select would return the new state beside the old definition:
    PostgreSQL reads again only the row that it waited for.
    """
    tasks, state, nudges, jobs = (
        schema.cron_tasks,
        schema.cron_task_state,
        schema.cron_nudges,
        schema.jobs,
    )
    unfinished = (
        select(literal_column("1"))
        .select_from(jobs)
        .where(is_unfinished_instance_of(schema, tasks.c.name))
        .correlate(tasks)
    ).exists()
    pending = select(func.count()).where(is_nudge_of(schema)).correlate(tasks)
    earliest = select(func.min(nudges.c.requested_at)).where(is_nudge_of(schema)).correlate(tasks)
    return (
        select(
            *[tasks.c[name] for name in DEFINITION],
            *[state.c[name] for name in STATE],
            unfinished.label("unfinished"),
            pending.scalar_subquery().label("pending"),
            earliest.scalar_subquery().label("nudge_requested_at"),
            dialect.now_value().label("now"),
        )
        .join_from(tasks, state, state.c.task_name == tasks.c.name)
        .where(_among(tasks.c.name, dialect, one=one))
        .order_by(tasks.c.name)
    )


def read_now(dialect: SqlDialect) -> Select[Any]:
    """Read the instant of this statement."""
    return select(dialect.now_value().label("now"))


def read_definition(schema: Schema) -> Select[Any]:
    """Read one definition; its state row is locked by the caller."""
    tasks = schema.cron_tasks
    return select(*[tasks.c[name] for name in DEFINITION]).where(
        tasks.c.name == bindparam("task", type_=String())
    )


def read_views(schema: Schema, *, one: bool) -> Select[Any]:
    """Read definition, state and pending nudges in one snapshot: a row per nudge, or one."""
    tasks, state, nudges = schema.cron_tasks, schema.cron_task_state, schema.cron_nudges
    rows = (
        select(
            *[tasks.c[name] for name in DEFINITION],
            *[state.c[name] for name in STATE],
            nudges.c.revision,
            nudges.c.requested_at,
        )
        .select_from(
            tasks.join(state, state.c.task_name == tasks.c.name).outerjoin(
                nudges, is_nudge_of(schema)
            )
        )
        .order_by(tasks.c.name, nudges.c.revision)
    )
    return rows.where(tasks.c.name == bindparam("task", type_=String())) if one else rows


def add_state(schema: Schema, dialect: SqlDialect) -> Insert:
    """Insert an empty state row unless there is one."""
    statement: Insert = (
        dialect.insert(schema.cron_task_state)
        .values(task_name=bindparam("task", type_=String()))
        .on_conflict_do_nothing(index_elements=["task_name"])
    )
    return statement


def write_state(schema: Schema) -> Update:
    """Write the whole state of one task."""
    state = schema.cron_task_state
    return (
        update(state)
        .where(state.c.task_name == bindparam("task", type_=String()))
        .values({name: bindparam(name, type_=type_) for name, type_ in _STATE_TYPES.items()})
    )


def read_versioned(schema: Schema, dialect: SqlDialect) -> Select[Any]:
    """As `read_tasks` of one task without its lock, and the version of its state row."""
    return read_tasks(schema, dialect, one=True).add_columns(_version(schema).label("version"))


def commit_nudged(schema: Schema, dialect: SqlDialect) -> Update:
    """Consume the visible nudges of one task, insert its job and write its state, in one.

    The binds are those of `consume_nudges`, `insert_job` and `write_state`, and the `version`
    that `read_versioned` has shown: when the row has another one by now, or somebody holds it,
    nothing is written. The condition is judged again on a row that changed after the snapshot.
    Without a nudge to consume nothing is written either: an operator may have cleared them.
    """
    state, nudges = schema.cron_task_state, schema.cron_nudges
    held = (
        select(state.c.task_name)
        .where(state.c.task_name == bindparam("task", type_=String()))
        .where(_version(schema) == bindparam("version", type_=Text()))
        .with_for_update(skip_locked=True)
        .cte("held")
    )
    consumed = (
        consume_nudges(schema)
        .where(nudges.c.task_name.in_(select(held.c.task_name)))
        .returning(nudges.c.revision)
        .cte("consumed")
    )
    served = select(literal_column("1")).select_from(consumed).exists()
    inserted = insert_job_if(schema, dialect, served).cte("inserted")
    return write_state(schema).where(served).add_cte(inserted)


def _version(schema: Schema) -> ColumnElement[str]:
    """The transaction that wrote the state row, as every change of a task and compaction does."""
    return cast(literal_column(f"{schema.cron_task_state.name}.xmin"), Text())


def draw_epoch(schema: Schema, dialect: SqlDialect) -> Any:
    """Draw the epoch of a new registration; it is never drawn again for the same row."""
    return dialect.epoch_source(schema)


def insert_definition(schema: Schema) -> Insert:
    """Insert a new definition."""
    values: dict[str, Any] = {
        name: bindparam(name, type_=type_) for name, type_ in _DEFINITION_TYPES.items()
    }
    values |= {
        "name": bindparam("task", type_=String()),
        "enabled": bindparam("enabled", type_=Boolean()),
        "epoch": bindparam("epoch", type_=BigInteger()),
        "created_at": bindparam("stamp", type_=UtcDateTime()),
        "updated_at": bindparam("stamp", type_=UtcDateTime()),
    }
    return insert(schema.cron_tasks).values(values)


def edit_definition(schema: Schema) -> Update:
    """Write the code's fields of a definition: never epoch, enabled or created_at."""
    tasks = schema.cron_tasks
    values: dict[str, Any] = {
        name: bindparam(name, type_=type_) for name, type_ in _DEFINITION_TYPES.items()
    }
    values["updated_at"] = bindparam("stamp", type_=UtcDateTime())
    return update(tasks).where(tasks.c.name == bindparam("task", type_=String())).values(values)


def flip_enabled(schema: Schema) -> Update:
    """Write `enabled` where it differs, and return the definition."""
    tasks = schema.cron_tasks
    wish = bindparam("wish", type_=Boolean())
    return (
        update(tasks)
        .where(tasks.c.name == bindparam("task", type_=String()))
        .where(tasks.c.enabled != wish)
        .values(enabled=wish, updated_at=bindparam("stamp", type_=UtcDateTime()))
        .returning(*[tasks.c[name] for name in DEFINITION])
    )


def delete_definition(schema: Schema) -> Delete:
    """Delete one definition."""
    tasks = schema.cron_tasks
    return delete(tasks).where(tasks.c.name == bindparam("name", type_=String()))


def delete_state(schema: Schema) -> Delete:
    """Delete one state row."""
    state = schema.cron_task_state
    return delete(state).where(state.c.task_name == bindparam("name", type_=String()))


def mark_triggered(schema: Schema, dialect: SqlDialect) -> Update:
    """Record a manual instance; the schedule and the guard's display stay as they are."""
    state = schema.cron_task_state
    return (
        update(state)
        .where(state.c.task_name == bindparam("name", type_=String()))
        .values(last_run_at=dialect.now_value(), last_run_job_id=bindparam("id", type_=Uuid()))
    )
