"""Job counts, kept by triggers.

phase: expand
breaking: no
lock: SHARE ROW EXCLUSIVE on threadmill_jobs (writers wait, readers do not) until commit
time for 1M rows: about 1 s, one aggregate over threadmill_jobs
why: counts without scanning jobs. On PostgreSQL a statement appends its net changes, so that no
     two producers ever update one row; SQLite has one writer and counts in place.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
EVENTS = ("insert", "update", "delete")

# Counting sees the transition tables of its statement. `@` becomes the quoted schema: the body
# must find its table whatever search_path the caller has.
FUNCTION = """
CREATE FUNCTION @.threadmill_jobs_count() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO @.threadmill_count_deltas (queue, state, n)
    SELECT queue, state, pg_catalog.count(*) FROM new_rows GROUP BY queue, state;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO @.threadmill_count_deltas (queue, state, n)
    SELECT queue, state, -pg_catalog.count(*) FROM old_rows GROUP BY queue, state;
  ELSE
    INSERT INTO @.threadmill_count_deltas (queue, state, n)
    SELECT queue, state, pg_catalog.sum(n)
      FROM (SELECT queue, state, 1 AS n FROM new_rows
            UNION ALL
            SELECT queue, state, -1 FROM old_rows) AS changes
     GROUP BY queue, state
    HAVING pg_catalog.sum(n) <> 0;
  END IF;
  RETURN NULL;
END
$body$"""
TRANSITIONS = {
    "insert": "NEW TABLE AS new_rows",
    "update": "OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "OLD TABLE AS old_rows",
}

SQLITE_ADD = """
  INSERT INTO threadmill_job_counts (state, n)
  SELECT NEW.state, 0
   WHERE NOT EXISTS (SELECT 1 FROM threadmill_job_counts WHERE state = NEW.state);
  UPDATE threadmill_job_counts SET n = n + 1 WHERE state = NEW.state;
  INSERT INTO threadmill_queue_counts (queue, n)
  SELECT NEW.queue, 0
   WHERE NEW.state = 'ENQUEUED'
     AND NOT EXISTS (SELECT 1 FROM threadmill_queue_counts WHERE queue = NEW.queue);
  UPDATE threadmill_queue_counts SET n = n + 1
   WHERE queue = NEW.queue AND NEW.state = 'ENQUEUED';"""
SQLITE_SUBTRACT = """
  UPDATE threadmill_job_counts SET n = n - 1 WHERE state = OLD.state;
  UPDATE threadmill_queue_counts SET n = n - 1
   WHERE queue = OLD.queue AND OLD.state = 'ENQUEUED';"""
SQLITE_TRIGGERS = {
    "insert": f"AFTER INSERT ON threadmill_jobs BEGIN{SQLITE_ADD}",
    "update": "AFTER UPDATE OF state, queue ON threadmill_jobs"
    " WHEN OLD.state <> NEW.state OR OLD.queue <> NEW.queue"
    f" BEGIN{SQLITE_SUBTRACT}{SQLITE_ADD}",
    "delete": f"AFTER DELETE ON threadmill_jobs BEGIN{SQLITE_SUBTRACT}",
}


def upgrade() -> None:
    schema = target_schema()
    _create_tables(schema)
    if op.get_context().dialect.name == "postgresql":
        _create_postgresql_triggers(schema)
    else:
        for event in EVENTS:
            op.execute(
                f"CREATE TRIGGER threadmill_jobs_count_{event} {SQLITE_TRIGGERS[event]}\nEND"
            )
    _count_existing(schema)
    record(revision)


def downgrade() -> None:
    schema = target_schema()
    forget(revision)
    prefix = _prefix(schema)
    if op.get_context().dialect.name == "postgresql":
        for event in EVENTS:
            op.execute(f"DROP TRIGGER threadmill_jobs_count_{event} ON {prefix}threadmill_jobs")
        op.execute(f"DROP FUNCTION {prefix}threadmill_jobs_count()")
    else:
        for event in EVENTS:
            op.execute(f"DROP TRIGGER threadmill_jobs_count_{event}")
    for name in ("count_deltas", "queue_counts", "job_counts"):
        op.drop_table(f"threadmill_{name}", schema=schema)


def _create_tables(schema: str | None) -> None:
    op.create_table(
        "threadmill_count_deltas",
        sa.Column("id", BIG_ID, sa.Identity(), nullable=False),
        sa.Column("queue", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_count_deltas")),
        schema=schema,
    )
    op.create_table(
        "threadmill_job_counts",
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("state", name=op.f("pk_threadmill_job_counts")),
        schema=schema,
    )
    op.create_table(
        "threadmill_queue_counts",
        sa.Column("queue", sa.String(128), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue", name=op.f("pk_threadmill_queue_counts")),
        schema=schema,
    )


def _create_postgresql_triggers(schema: str | None) -> None:
    prefix = _prefix(schema)
    # Creating a trigger takes this lock as well; it is taken first so that the count below reads
    # a table that nobody changes.
    op.execute(f"LOCK TABLE {prefix}threadmill_jobs IN SHARE ROW EXCLUSIVE MODE")
    literal = "current_schema()" if schema is None else "'" + schema.replace("'", "''") + "'"
    op.execute(
        "DO $create$ BEGIN\n"
        f"EXECUTE replace($function${FUNCTION}$function$, '@', quote_ident({literal}));\n"
        "END $create$"
    )
    for event in EVENTS:
        op.execute(
            f"CREATE TRIGGER threadmill_jobs_count_{event} AFTER {event.upper()}"
            f" ON {prefix}threadmill_jobs REFERENCING {TRANSITIONS[event]}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {prefix}threadmill_jobs_count()"
        )


def _count_existing(schema: str | None) -> None:
    prefix = _prefix(schema)
    op.execute(
        f"INSERT INTO {prefix}threadmill_job_counts (state, n)"
        f" SELECT state, count(*) FROM {prefix}threadmill_jobs GROUP BY state"
    )
    op.execute(
        f"INSERT INTO {prefix}threadmill_queue_counts (queue, n)"
        f" SELECT queue, count(*) FROM {prefix}threadmill_jobs"
        " WHERE state = 'ENQUEUED' GROUP BY queue"
    )


def _prefix(schema: str | None) -> str:
    if schema is None:
        return ""
    return op.get_context().dialect.identifier_preparer.quote(schema) + "."
