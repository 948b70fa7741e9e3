"""Processing nodes.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: who is alive; jobs of a node whose heartbeat stopped are reclaimed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "threadmill_nodes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=True),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("heartbeat_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_nodes")),
        schema=target_schema(),
    )
    record(revision)


def downgrade() -> None:
    forget(revision)
    op.drop_table("threadmill_nodes", schema=target_schema())
