"""Recurring tasks and their schedule state.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: definitions apart from bookkeeping, so that a tick never writes what producers read. The
     epoch of a registration comes from a sequence; SQLite counts in threadmill_store_identity.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    schema = target_schema()
    _create_tasks(schema)
    _create_state(schema)
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.schema.CreateSequence(_epochs(schema)))
    record(revision)


def downgrade() -> None:
    schema = target_schema()
    forget(revision)
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.schema.DropSequence(_epochs(schema)))
    op.drop_table("threadmill_cron_task_state", schema=schema)
    op.drop_table("threadmill_cron_tasks", schema=schema)


def _create_tasks(schema: str | None) -> None:
    op.create_table(
        "threadmill_cron_tasks",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("trigger_kind", sa.String(16), nullable=False),
        sa.Column("trigger_value", sa.String(256), nullable=False),
        sa.Column("zone", sa.String(64), nullable=False),
        sa.Column("handler", sa.String(128), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("queue", sa.String(128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("missed_run_policy", sa.String(16), nullable=False),
        sa.Column("timeout_seconds", sa.Float(53), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("enabled", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("anchor_at", INSTANT, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_threadmill_cron_tasks")),
        schema=schema,
    )


def _create_state(schema: str | None) -> None:
    op.create_table(
        "threadmill_cron_task_state",
        sa.Column("task_name", sa.String(128), nullable=False),
        sa.Column("next_run_at", INSTANT, nullable=True),
        sa.Column("last_run_at", INSTANT, nullable=True),
        sa.Column("last_run_job_id", sa.Uuid(), nullable=True),
        sa.Column("in_flight_job_id", sa.Uuid(), nullable=True),
        sa.Column("timing_fingerprint", sa.String(512), nullable=True),
        sa.Column("broken_reason", sa.Text(), nullable=True),
        sa.Column("broken_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("task_name", name=op.f("pk_threadmill_cron_task_state")),
        schema=schema,
    )
    op.create_index(
        op.f("ix_threadmill_cron_task_state_next_run_at"),
        "threadmill_cron_task_state",
        ["next_run_at"],
        schema=schema,
    )
    op.create_index(
        op.f("ix_threadmill_cron_task_state_broken_at"),
        "threadmill_cron_task_state",
        ["broken_at"],
        schema=schema,
        postgresql_where=sa.text("broken_at IS NOT NULL"),
        sqlite_where=sa.text("broken_at IS NOT NULL"),
    )


def _epochs(schema: str | None) -> sa.Sequence:
    return sa.Sequence("threadmill_epoch_seq", schema=schema, data_type=sa.BigInteger())
