"""Finished jobs by their age.

phase: expand
breaking: no
lock: SHARE on threadmill_jobs (writers wait, readers do not) until commit; ACCESS EXCLUSIVE
     (readers wait as well) where a build beside the writers was broken off
time for 1M rows: about 3 s, one scan of threadmill_jobs
why: finished jobs are removed when their time has passed, and found without looking at others.
     Where writers must not wait so long, build the index first, outside of a transaction, with
     CREATE INDEX CONCURRENTLY under the same name; this revision then finds it. One that such a
     build left half-way serves no query: it is dropped, and built here.
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
    if op.get_context().dialect.name == "postgresql":
        op.execute(_drop_if_broken_off())
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


def _drop_if_broken_off() -> str:
    table = op.get_context().dialect.identifier_preparer.format_table(
        sa.table("threadmill_jobs", schema=target_schema())
    )
    literal = "'" + table.replace("'", "''") + "'"
    invalid = f"""
    SELECT indexrelid::regclass FROM pg_catalog.pg_index
      JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid
     WHERE indrelid = {literal}::regclass AND NOT indisvalid
       AND relname = 'ix_threadmill_jobs_finished'"""
    # A build that still goes on looks the same: the lock waits for it, and the second look tells.
    # It lets go of its lock just before it commits; whoever comes between tries again later.
    return f"""
DO $broken_off$
DECLARE
  leftover regclass := ({invalid});
BEGIN
  IF leftover IS NOT NULL THEN
    LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM pg_catalog.pg_locks
                 JOIN pg_catalog.pg_index ON pg_index.xmax = transactionid
                WHERE indexrelid = leftover) THEN
      RAISE lock_not_available USING MESSAGE = 'ix_threadmill_jobs_finished is being built';
    END IF;
    leftover := ({invalid});
  END IF;
  IF leftover IS NOT NULL THEN
    EXECUTE 'DROP INDEX ' || leftover;
  END IF;
END
$broken_off$"""
