"""The records of nudges and runs: leave them, judge them, clear them."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    String,
    Uuid,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.dml import Delete, Insert, ReturningInsert, Update
from sqlalchemy.sql.selectable import FromClause

from threadmill_sa.model.records import REFUSED_EPOCH, SnapshotEvent
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements.nudges import accept_nudge

_RECORD = ("task_name", "epoch", "slot", "revision", "requested_at")


def accept_and_record(schema: Schema, dialect: SqlDialect) -> tuple[Executable, ...]:
    """As `accept_nudge`, and record the acceptance as it was written.

    The first statement returns revision and slot, or no row; then the others are not to run.
    Records are inserts of rows that nobody else touches, so they may be left in a caller's
    transaction. And nothing is read that other callers write: at SERIALIZABLE that would fail
    one of two callers. Guarded by tests/checker.
    """
    nudges = schema.cron_nudges
    columns = [nudges.c[name] for name in _RECORD]
    accept = accept_nudge(schema, dialect, telling=False).returning(*columns)
    pending = (
        select(*columns[:-1], dialect.now_value().label(_RECORD[-1]))
        .where(nudges.c.task_name == bindparam("name", type_=String()))
        .where(nudges.c.slot == dialect.transaction_slot())
    )
    return dialect.recorded(accept, pending, partial(_record, schema))


def record_expected(schema: Schema, dialect: SqlDialect) -> ReturningInsert[Any]:
    """Record that nudges of enabled tasks are to be written once this transaction committed.

    Returns each name with its promise.
    """
    tasks, records = schema.cron_tasks, schema.nudge_records
    expected = (
        select(
            tasks.c.name,
            tasks.c.epoch,
            dialect.transaction_slot(),
            literal_column("NULL"),
            dialect.now_value(),
        )
        .where(dialect.member(tasks.c.name, "names", String()))
        .where(tasks.c.enabled == true())
    )
    promise = _promise(records).label("promise")
    return _record(schema, expected).returning(records.c.task_name, promise)


def refuse_expected(schema: Schema) -> Update:
    """Excuse the expected nudges of one task and promise: their registration is none."""
    records = schema.nudge_records
    return (
        update(records)
        .where(records.c.task_name == bindparam("name", type_=String()))
        .where(_promise(records) == bindparam("promise", type_=BigInteger()))
        .where(records.c.revision.is_(None))
        .values(epoch=literal_column(str(REFUSED_EPOCH)))
    )


def _promise(records: FromClause) -> ColumnElement[int]:
    """Return what names an expected nudge: its transaction, or the record where that has no id."""
    transaction = func.nullif(records.c.slot, literal_column("0"))
    return func.coalesce(transaction, records.c.id, type_=BigInteger())


def _record(schema: Schema, rows: Select[Any]) -> Insert:
    return insert(schema.nudge_records).from_select(list(_RECORD), rows, include_defaults=False)


def record_run(schema: Schema, dialect: SqlDialect) -> Insert:
    """Record what is committed as an attempt starts."""
    values: dict[str, Any] = {
        "task_name": bindparam("name", type_=String()),
        "event": literal(SnapshotEvent.RUN.value, String()),
        "job_id": bindparam("job", type_=Uuid()),
        "attempt": bindparam("tried", type_=Integer()),
        "seen": dialect.committed_by_now(schema),
        "recorded_at": dialect.now_value(),
    }
    return _note(schema, values, select(*values.values()))


def record_drop(schema: Schema, dialect: SqlDialect) -> Insert:
    """Record what is committed as nudges of a task are dropped, if any of them was recorded."""
    values: dict[str, Any] = {
        "task_name": bindparam("name", type_=String()),
        "event": bindparam("happening", type_=String()),
        "seen": dialect.committed_by_now(schema),
        "recorded_at": dialect.now_value(),
    }
    recorded = exists().where(schema.nudge_records.c.task_name == bindparam("name"))
    return _note(schema, values, select(*values.values()).where(recorded))


def _note(schema: Schema, values: dict[str, Any], rows: Select[Any]) -> Insert:
    return insert(schema.snapshot_records).from_select(list(values), rows, include_defaults=False)


def audit_records(schema: Schema, dialect: SqlDialect, *, some: bool) -> Select[Any]:
    """Read how many records there are, beside each nudge that the last run of its task missed.

    One row at least. With `some` only the tasks bound as `names` count. What one snapshot shows
    every later one shows, so asking the last run settles nearly all nudges at once.
    """
    nudges, snapshots = schema.nudge_records, schema.snapshot_records
    runs = snapshots.alias("runs")
    totals = select(
        _count(dialect, nudges, some=some).label("nudges"),
        _count(dialect, runs, some=some, where=_is_run(runs)).label("runs"),
    ).subquery("totals")
    newest = (
        select(runs.c.id)
        .where(runs.c.task_name == nudges.c.task_name)
        .where(_is_run(runs))
        .order_by(runs.c.id.desc())
        .limit(1)
        .correlate(nudges)
        .scalar_subquery()
    )
    last = snapshots.alias("last")
    shown_last = exists().where(last.c.id == newest).where(dialect.shows(last, nudges))
    wanted = select(nudges).where(~shown_last.correlate(nudges))
    if some:
        wanted = wanted.where(dialect.member(nudges.c.task_name, "names", String()))
    # Else the planner asks the two questions of each nudge, before it drops nearly all of them.
    missed = wanted.cte("missed").prefix_with("MATERIALIZED")
    judged = select(
        missed,
        _shown(schema, dialect, missed, run=True).label("covered"),
        or_(~_lives(schema, missed), _shown(schema, dialect, missed, run=False)).label("excused"),
    ).subquery("judged")
    return select(totals, judged).outerjoin_from(totals, judged, true()).order_by(judged.c.id)


def _count(
    dialect: SqlDialect, table: FromClause, *, some: bool, where: ColumnElement[bool] | None = None
) -> Any:
    counted = select(func.count()).select_from(table)
    if where is not None:
        counted = counted.where(where)
    if some:
        counted = counted.where(dialect.member(table.c.task_name, "names", String()))
    return counted.scalar_subquery()


def _is_run(snapshots: FromClause) -> ColumnElement[bool]:
    event: ColumnElement[bool] = snapshots.c.event == literal(SnapshotEvent.RUN.value, String())
    return event


def _shown(
    schema: Schema, dialect: SqlDialect, nudges: FromClause, *, run: bool
) -> ColumnElement[bool]:
    """Return the condition that a run, or else a drop, of the nudge's task shows it."""
    found = schema.snapshot_records.alias("shown_by_run" if run else "shown_by_drop")
    return (
        exists()
        .where(found.c.task_name == nudges.c.task_name)
        .where(_is_run(found) if run else ~_is_run(found))
        .where(dialect.shows(found, nudges))
        .correlate(nudges)
    )


def _lives(schema: Schema, nudges: FromClause) -> ColumnElement[bool]:
    """Return the condition that the registration of the nudge exists and is enabled."""
    tasks = schema.cron_tasks
    return (
        exists()
        .where(
            and_(
                tasks.c.name == nudges.c.task_name,
                tasks.c.epoch == nudges.c.epoch,
                tasks.c.enabled == true(),
            )
        )
        .correlate(nudges)
    )


def latest_runs(schema: Schema) -> Select[Any]:
    """Read the newest recorded runs of one task."""
    runs = schema.snapshot_records
    return (
        select(runs.c.task_name, runs.c.job_id, runs.c.attempt, runs.c.seen, runs.c.recorded_at)
        .where(runs.c.task_name == bindparam("name", type_=String()))
        .where(_is_run(runs))
        .order_by(runs.c.id.desc())
        .limit(bindparam("limit", type_=Integer()))
    )


def clear_snapshots(schema: Schema) -> Delete:
    """Delete the recorded runs and drops that are visible."""
    return delete(schema.snapshot_records)


def clear_nudges(schema: Schema) -> Delete:
    """Delete the recorded nudges that are visible."""
    return delete(schema.nudge_records)
