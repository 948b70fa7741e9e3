"""Records of nudges and runs, for the checker.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: with `record_nudges=True` an accepted nudge and the start of a run leave a row each, so that
     a test can check that every committed nudge was seen by a later run. Producers only insert
     here: no unique constraint but the numbered key, no foreign key.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    schema = target_schema()
    op.create_table(
        "threadmill_nudge_records",
        sa.Column("id", BIG_ID, sa.Identity(), nullable=False),
        sa.Column("task_name", sa.String(128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("requested_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_nudge_records")),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_table(
        "threadmill_snapshot_records",
        sa.Column("id", BIG_ID, sa.Identity(), nullable=False),
        sa.Column("task_name", sa.String(128), nullable=False),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("seen", sa.Text(), nullable=False),
        sa.Column("recorded_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_snapshot_records")),
        schema=schema,
        sqlite_autoincrement=True,
    )
    for table in ("threadmill_nudge_records", "threadmill_snapshot_records"):
        op.create_index(op.f(f"ix_{table}_task"), table, ["task_name", "id"], schema=schema)
    record(revision)


def downgrade() -> None:
    schema = target_schema()
    forget(revision)
    op.drop_table("threadmill_snapshot_records", schema=schema)
    op.drop_table("threadmill_nudge_records", schema=schema)
