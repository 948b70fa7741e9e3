"""Insert, claim, finish and read jobs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    String,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.sql.dml import Insert, Update
from sqlalchemy.sql.selectable import CompoundSelect

from threadmill_sa.model.state import UNFINISHED
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema, UtcDateTime


def state_is(schema: Schema, *states: str) -> ColumnElement[bool]:
    """Return the condition on `state` with literals, so that the partial indexes serve it."""
    words: list[ColumnElement[str]] = [literal_column(f"'{state}'") for state in states]
    column = schema.jobs.c.state
    return column == words[0] if len(words) == 1 else column.in_(words)


def is_unfinished_instance_of(schema: Schema, task_name: Any) -> ColumnElement[bool]:
    """Return the guard's condition. Index: ix_threadmill_jobs_task_unfinished."""
    name = schema.jobs.c.cron_task_name
    return and_(name.is_not(None), name == task_name, state_is(schema, *UNFINISHED))


_NEW_JOB: dict[str, Any] = {
    "id": Uuid(),
    "state": String(),
    "queue": String(),
    "priority": Integer(),
    "handler": String(),
    "payload": Text(),
    "cron_task_name": String(),
    "cron_origin": String(),
    "fire_time": UtcDateTime(),
    "max_attempts": Integer(),
    "timeout_seconds": Float(53),
}


def insert_job(schema: Schema, dialect: SqlDialect) -> Insert:
    """Insert one job from binds; it touches no row that another transaction could want."""
    return insert(schema.jobs).values(**_bound_job(dialect))


def insert_job_if(schema: Schema, dialect: SqlDialect, condition: ColumnElement[bool]) -> Insert:
    """As `insert_job`, where `condition` holds."""
    values = _bound_job(dialect)
    return insert(schema.jobs).from_select(
        list(values), select(*values.values()).where(condition), include_defaults=False
    )


def _bound_job(dialect: SqlDialect) -> dict[str, Any]:
    return {name: bindparam(name, type_=type_) for name, type_ in _NEW_JOB.items()} | _stamps(
        dialect,
        bindparam("run_at", type_=UtcDateTime()),
        bindparam("delay_seconds", type_=Float(53)),
    )


def insert_jobs(schema: Schema, dialect: SqlDialect) -> Insert:
    """Insert all jobs packed in `rows`: one statement, so one row of count deltas per group."""
    extra = {"run_at": UtcDateTime(), "delay_seconds": Float(53)}
    rows = dialect.records("rows", _NEW_JOB | extra)
    values: dict[str, Any] = {name: rows.c[name] for name in _NEW_JOB}
    values |= _stamps(dialect, rows.c.run_at, rows.c.delay_seconds)
    return insert(schema.jobs).from_select(
        list(values), select(*values.values()), include_defaults=False
    )


def _stamps(dialect: SqlDialect, run_at: Any, delay_seconds: Any) -> dict[str, Any]:
    now = dialect.now_value()
    return {
        "created_at": now,
        "state_at": now,
        "scheduled_at": func.coalesce(
            run_at, dialect.later(now, delay_seconds), type_=UtcDateTime()
        ),
        "attempt": literal_column("0", Integer),
        "attempt_token": literal_column("0", BigInteger),
    }


def claim_ready(schema: Schema, dialect: SqlDialect, *, one_queue: bool) -> Update:
    """Take ready jobs. Index: ix_threadmill_jobs_ready_queue, or ix_threadmill_jobs_ready."""
    jobs = schema.jobs
    ready = (
        select(jobs.c.id)
        .where(state_is(schema, "ENQUEUED"))
        .where(dialect.member(jobs.c.handler, "handlers", String()))
        .order_by(jobs.c.priority.desc(), jobs.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(skip_locked=True)
    )
    if one_queue:
        # Not named "queue": SQLAlchemy would take a bind of a column's name for a value to set.
        ready = ready.where(jobs.c.queue == bindparam("from_queue", type_=String()))
    now = dialect.now_value()
    return (
        update(jobs)
        .where(dialect.picked(jobs.c.id, ready))
        .values(
            state="PROCESSING",
            state_at=now,
            started_at=now,
            attempt=jobs.c.attempt + 1,
            attempt_token=jobs.c.attempt_token + 1,
            owner_node_id=bindparam("node_id", type_=Uuid()),
            # Liveness is always judged by the store's own clock, never by an injected one.
            heartbeat_at=dialect.clock_value(),
        )
        .returning(
            jobs.c.id,
            jobs.c.handler,
            jobs.c.payload,
            jobs.c.queue,
            jobs.c.priority,
            jobs.c.attempt,
            jobs.c.max_attempts,
            jobs.c.attempt_token,
            jobs.c.timeout_seconds,
            jobs.c.created_at,
            jobs.c.cron_task_name,
            jobs.c.cron_origin,
            jobs.c.fire_time,
        )
    )


_OUTCOME: dict[str, Any] = {
    "id": Uuid(),
    "token": BigInteger(),
    "state": String(),
    "given_back": Integer(),
    "retry_seconds": Float(53),
    "result": Text(),
    "metadata": Text(),
}


def finish_attempts(schema: Schema, dialect: SqlDialect) -> Update:
    """End the attempts packed in `rows` whose token still holds the job for `node_id`.

    A null `node_id` ends them whoever the owner is: the reclaim, which holds the row locks.
    """
    jobs = schema.jobs
    rows = dialect.records("rows", _OUTCOME)
    now = dialect.now_value()
    node_id = bindparam("node_id", type_=Uuid())
    return (
        update(jobs)
        # The list beside the join keeps the plan on the primary key at every batch size.
        .where(dialect.member(jobs.c.id, "ids", Uuid()))
        .where(jobs.c.id == rows.c.id)
        .where(jobs.c.attempt_token == rows.c.token)
        .where(node_id.is_(None) | (jobs.c.owner_node_id == node_id))
        .where(state_is(schema, "PROCESSING"))
        .values(
            state=rows.c.state,
            state_at=now,
            scheduled_at=case(
                (rows.c.retry_seconds.is_not(None), dialect.later(now, rows.c.retry_seconds)),
                else_=jobs.c.scheduled_at,
            ),
            attempt=jobs.c.attempt - rows.c.given_back,
            owner_node_id=null(),
            heartbeat_at=null(),
            result=rows.c.result,
            metadata=func.coalesce(rows.c.metadata, jobs.c.metadata),
        )
        .returning(jobs.c.id, jobs.c.attempt_token, jobs.c.attempt, jobs.c.state_at)
    )


def insert_history(schema: Schema) -> Insert:
    """Append recorded moves; executed with a list of rows."""
    history = schema.job_history
    names = ("job_id", "state", "at", "attempt", "reason", "message")
    return insert(history).values({name: bindparam(name) for name in names})


def quarantine_damaged(schema: Schema, dialect: SqlDialect) -> Update:
    """End a held job by its id as SQLite stores it; no other database can hold a damaged row."""
    jobs = schema.jobs
    return (
        update(jobs)
        .where(type_coerce(jobs.c.id, String()) == bindparam("key", type_=String()))
        .where(state_is(schema, "PROCESSING"))
        .values(
            state=literal_column("'QUARANTINED'"),
            state_at=dialect.now_value(),
            owner_node_id=null(),
            heartbeat_at=null(),
        )
        .returning(jobs.c.id, jobs.c.attempt, jobs.c.state_at)
    )


def promote_due(schema: Schema, dialect: SqlDialect) -> Update:
    """Make delayed jobs ready whose time has come. Index: ix_threadmill_jobs_scheduled."""
    jobs = schema.jobs
    due = (
        select(jobs.c.id)
        .where(state_is(schema, "SCHEDULED"))
        .where(jobs.c.scheduled_at <= dialect.now_bound())
        .order_by(jobs.c.scheduled_at, jobs.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(skip_locked=True)
    )
    return (
        update(jobs)
        .where(dialect.picked(jobs.c.id, due))
        .values(state="ENQUEUED", state_at=dialect.now_value())
    )


def lock_orphans(schema: Schema) -> Select[Any]:
    """Lock running jobs whose owner is silent. Index: ix_threadmill_jobs_processing."""
    jobs = schema.jobs
    return (
        select(
            jobs.c.id,
            jobs.c.handler,
            jobs.c.attempt,
            jobs.c.max_attempts,
            jobs.c.attempt_token,
            jobs.c.owner_node_id,
            jobs.c.cron_task_name,
        )
        .where(state_is(schema, "PROCESSING"))
        .where(jobs.c.heartbeat_at <= bindparam("silent_since", type_=UtcDateTime()))
        .order_by(jobs.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(skip_locked=True)
    )


_SUMMARY = (
    "id", "state", "queue", "priority", "handler", "attempt", "max_attempts", "created_at",
    "state_at", "scheduled_at", "started_at", "owner_node_id", "cron_task_name", "cron_origin",
    "fire_time",
)  # fmt: skip
_DETAIL = ("payload", "result", "attempt_token", "heartbeat_at", "timeout_seconds", "metadata")


def get_job(schema: Schema) -> Select[Any]:
    """Read one whole job."""
    columns = [schema.jobs.c[name] for name in (*_SUMMARY, *_DETAIL)]
    return select(*columns).where(schema.jobs.c.id == bindparam("id", type_=Uuid()))


def get_history(schema: Schema) -> Select[Any]:
    """Read the recorded moves of one job, oldest first. Index: ix_threadmill_job_history_job."""
    history = schema.job_history
    return (
        select(
            history.c.state, history.c.at, history.c.attempt, history.c.reason, history.c.message
        )
        .where(history.c.job_id == bindparam("id", type_=Uuid()))
        .order_by(history.c.id)
    )


def list_jobs(schema: Schema, *, state: bool, queue: bool, task: bool) -> Select[Any]:
    """Read summaries, newest id first; each flag adds one condition."""
    jobs = schema.jobs
    listing = (
        select(*[jobs.c[name] for name in _SUMMARY])
        .order_by(jobs.c.id.desc())
        .limit(bindparam("limit", type_=Integer()))
    )
    if state:
        listing = listing.where(jobs.c.state == bindparam("state", type_=String()))
    if queue:
        listing = listing.where(jobs.c.queue == bindparam("queue", type_=String()))
    if task:
        listing = listing.where(jobs.c.cron_task_name == bindparam("task", type_=String()))
    return listing


def count_states(schema: Schema) -> Select[Any]:
    """Sum the folded counts and the deltas that are not folded yet, in one snapshot."""
    folded, deltas = schema.job_counts, schema.count_deltas
    both = union_all(select(folded.c.state, folded.c.n), select(deltas.c.state, deltas.c.n))
    return _summed(both, "state")


def count_queues(schema: Schema) -> Select[Any]:
    """Sum the depths of the queues, folded or not."""
    folded, deltas = schema.queue_counts, schema.count_deltas
    enqueued = deltas.c.state == literal("ENQUEUED")
    both = union_all(
        select(folded.c.queue, folded.c.n), select(deltas.c.queue, deltas.c.n).where(enqueued)
    )
    return _summed(both, "queue")


def _summed(both: CompoundSelect[Any], key: str) -> Select[Any]:
    rows = both.subquery("both")
    total = func.sum(rows.c.n)
    return select(rows.c[key], total.label("n")).group_by(rows.c[key]).having(total != 0)


def take_deltas(schema: Schema, dialect: SqlDialect) -> Any:
    """Take visible deltas away, oldest first; the folding adds them up in the same transaction."""
    deltas = schema.count_deltas
    oldest = (
        select(deltas.c.id)
        .order_by(deltas.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(skip_locked=True)
    )
    return (
        delete(deltas)
        .where(dialect.picked(deltas.c.id, oldest))
        .returning(deltas.c.queue, deltas.c.state, deltas.c.n)
    )


def fold_state_count(schema: Schema, dialect: SqlDialect) -> Insert:
    """Add `n` to the folded count of one state."""
    return _fold(schema.job_counts, "state", dialect)


def fold_queue_count(schema: Schema, dialect: SqlDialect) -> Insert:
    """Add `n` to the folded depth of one queue."""
    return _fold(schema.queue_counts, "queue", dialect)


def _fold(table: Any, key: str, dialect: SqlDialect) -> Insert:
    statement = dialect.insert(table).values({key: bindparam(key), "n": bindparam("n")})
    folded: Insert = statement.on_conflict_do_update(
        index_elements=[key], set_={"n": table.c.n + statement.excluded.n}
    )
    return folded
