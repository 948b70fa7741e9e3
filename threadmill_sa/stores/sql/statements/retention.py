"""Delete jobs, and remove finished ones whose time has passed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float, Integer, Select, Uuid, bindparam, delete, select, update
from sqlalchemy.sql.dml import Delete, Update

from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements.jobs import state_is


def lock_job(schema: Schema) -> Select[Any]:
    """Read the state of one job and keep it so; waits for a claim or a finish that is writing."""
    jobs = schema.jobs
    return (
        select(jobs.c.state)
        .where(jobs.c.id == bindparam("job_id", type_=Uuid()))
        .with_for_update()
    )


def delete_job(schema: Schema, dialect: SqlDialect) -> Update:
    """Move one job, which is locked, to DELETED."""
    jobs = schema.jobs
    return (
        update(jobs)
        .where(jobs.c.id == bindparam("job_id", type_=Uuid()))
        .values(state="DELETED", state_at=dialect.now_value())
        .returning(jobs.c.id, jobs.c.attempt, jobs.c.state_at)
    )


def remove_old(schema: Schema, dialect: SqlDialect, state: str) -> Any:
    """Remove jobs that are long in `state`. Index: ix_threadmill_jobs_finished."""
    jobs = schema.jobs
    age = -bindparam("older_than_seconds", type_=Float(53))
    oldest = (
        select(jobs.c.id)
        .where(state_is(schema, state))
        .where(jobs.c.state_at <= dialect.later(dialect.now_bound(), age))
        .order_by(jobs.c.state_at, jobs.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(skip_locked=True)
    )
    return delete(jobs).where(dialect.picked(jobs.c.id, oldest)).returning(jobs.c.id)


def remove_history(schema: Schema, dialect: SqlDialect) -> Delete:
    """Remove the recorded moves of the jobs packed in `rows`.

    Index: ix_threadmill_job_history_job. The ids are picked, not listed: of a list of a hundred
    a planner without statistics expects so many rows that it scans them all.
    """
    history = schema.job_history
    gone = dialect.records("rows", {"id": Uuid()})
    return delete(history).where(dialect.picked(history.c.job_id, select(gone.c.id)))
