"""Jobs and their state history.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: the unit of work; one partial index for each shape of query.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
STATES = (
    "state IN ('AWAITING', 'SCHEDULED', 'ENQUEUED', 'PROCESSING', 'PROCESSED',"
    " 'SUCCEEDED', 'FAILED', 'DELETED', 'QUARANTINED')"
)
UNFINISHED = (
    "cron_task_name IS NOT NULL AND state IN ('AWAITING', 'SCHEDULED', 'ENQUEUED', 'PROCESSING')"
)


def upgrade() -> None:
    schema = target_schema()
    _create_jobs(schema)
    _create_job_indexes(schema)
    op.create_table(
        "threadmill_job_history",
        sa.Column("id", BIG_ID, sa.Identity(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_job_history")),
        schema=schema,
    )
    op.create_index(
        op.f("ix_threadmill_job_history_job"),
        "threadmill_job_history",
        ["job_id", "id"],
        schema=schema,
    )
    record(revision)


def downgrade() -> None:
    schema = target_schema()
    forget(revision)
    op.drop_table("threadmill_job_history", schema=schema)
    op.drop_table("threadmill_jobs", schema=schema)


def _create_jobs(schema: str | None) -> None:
    op.create_table(
        "threadmill_jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("queue", sa.String(128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("handler", sa.String(128), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("cron_task_name", sa.String(128), nullable=True),
        sa.Column("cron_origin", sa.String(16), nullable=True),
        sa.Column("fire_time", INSTANT, nullable=True),
        sa.Column("scheduled_at", INSTANT, nullable=True),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("state_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("attempt_token", sa.BigInteger(), nullable=False),
        sa.Column("timeout_seconds", sa.Float(53), nullable=True),
        sa.Column("owner_node_id", sa.Uuid(), nullable=True),
        sa.Column("heartbeat_at", INSTANT, nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_jobs")),
        sa.CheckConstraint(STATES, name=op.f("ck_threadmill_jobs_state")),
        schema=schema,
    )


def _create_job_indexes(schema: str | None) -> None:
    highest_first = sa.text("priority DESC")
    _partial(schema, "ready", "state = 'ENQUEUED'", highest_first, "id")
    _partial(schema, "ready_queue", "state = 'ENQUEUED'", "queue", highest_first, "id")
    _partial(schema, "scheduled", "state = 'SCHEDULED'", "scheduled_at", "id")
    _partial(schema, "processing", "state = 'PROCESSING'", "id")
    _partial(schema, "task_unfinished", UNFINISHED, "cron_task_name", "state")
    _partial(schema, "task", "cron_task_name IS NOT NULL", "cron_task_name", "id")


def _partial(
    schema: str | None, suffix: str, condition: str, *columns: str | sa.TextClause
) -> None:
    op.create_index(
        op.f(f"ix_threadmill_jobs_{suffix}"),
        "threadmill_jobs",
        list(columns),
        schema=schema,
        postgresql_where=sa.text(condition),
        sqlite_where=sa.text(condition),
    )
