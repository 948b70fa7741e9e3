"""Finished jobs by their age.

phase: expand
breaking: no
lock: SHARE on threadmill_jobs (writers wait, readers do not) until commit
time for 1M rows: about 3 s, one scan of threadmill_jobs
why: finished jobs are removed when their time has passed, and found without looking at others.
     Where writers must not wait so long, build the index first, outside of a transaction, with
     CREATE INDEX CONCURRENTLY under the same name; this revision then finds it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

FINISHED = sa.text(
    "state = 'SUCCEEDED' OR state = 'FAILED' OR state = 'DELETED' OR state = 'QUARANTINED'"
)


def upgrade() -> None:
    op.create_index(
        op.f("ix_threadmill_jobs_finished"),
        "threadmill_jobs",
        ["state", "state_at", "id"],
        schema=target_schema(),
        if_not_exists=True,
        postgresql_where=FINISHED,
        sqlite_where=FINISHED,
    )
    record(revision)


def downgrade() -> None:
    forget(revision)
    op.drop_index(op.f("ix_threadmill_jobs_finished"), "threadmill_jobs", schema=target_schema())
