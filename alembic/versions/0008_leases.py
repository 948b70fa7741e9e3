"""Leases with terms.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: one row per mutex: who holds it, until when, and the number of the holding. A row stays when
     the lease ends, so that no term is ever given out twice. The unique index makes the term a
     key column: PostgreSQL then lets a renewal pass by a fence and makes a takeover wait for it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "threadmill_leases",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("holder", sa.String(255), nullable=True),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("acquired_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_threadmill_leases")),
        sa.UniqueConstraint("name", "term", name=op.f("uq_threadmill_leases_name_term")),
        schema=target_schema(),
    )
    record(revision)


def downgrade() -> None:
    forget(revision)
    op.drop_table("threadmill_leases", schema=target_schema())
