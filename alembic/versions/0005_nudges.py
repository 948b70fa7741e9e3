"""Pending nudges.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: one row for each task and accepting transaction, so that producers never meet. No foreign
     key: a nudge must neither wait for a delete in flight nor fail with it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    schema = target_schema()
    revisions = _revisions(schema)
    postgresql = op.get_context().dialect.name == "postgresql"
    if postgresql:
        op.execute(sa.schema.CreateSequence(revisions))
    op.create_table(
        "threadmill_cron_nudges",
        sa.Column("revision", BIG_ID, revisions, nullable=False),
        sa.Column("task_name", sa.String(128), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("requested_at", INSTANT, nullable=False),
        *_key(postgresql=postgresql),
        sa.UniqueConstraint(
            "task_name", "slot", name=op.f("uq_threadmill_cron_nudges_task_name_slot")
        ),
        schema=schema,
        sqlite_autoincrement=True,
    )
    if postgresql:
        # Without it a publication of all tables would refuse the deletes.
        table = op.get_context().dialect.identifier_preparer.format_table(
            sa.table("threadmill_cron_nudges", schema=schema)
        )
        op.execute(
            f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX"
            " uq_threadmill_cron_nudges_task_name_slot"
        )
    record(revision)


def downgrade() -> None:
    schema = target_schema()
    forget(revision)
    op.drop_table("threadmill_cron_nudges", schema=schema)
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.schema.DropSequence(_revisions(schema)))


def _key(*, postgresql: bool) -> list[sa.PrimaryKeyConstraint]:
    """The key that SQLite numbers; on PostgreSQL equal revisions must never fail a caller."""
    if postgresql:
        return []
    return [sa.PrimaryKeyConstraint("revision", name=op.f("pk_threadmill_cron_nudges"))]


def _revisions(schema: str | None) -> sa.Sequence:
    return sa.Sequence("threadmill_nudge_revision_seq", schema=schema, data_type=sa.BigInteger())
