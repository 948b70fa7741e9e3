"""What a role may do that only produces: enqueue jobs and nudge recurring tasks."""

from __future__ import annotations

from sqlalchemy.sql.compiler import IdentifierPreparer

_TABLES = (
    # A conflict clause and RETURNING read what they write.
    ("SELECT", "threadmill_cron_tasks"),
    ("SELECT, INSERT, UPDATE", "threadmill_cron_nudges"),
    # Where recording is on; a refused nudge that waited for the commit marks its own record.
    ("SELECT, INSERT, UPDATE (epoch)", "threadmill_nudge_records"),
    ("INSERT", "threadmill_jobs"),
    ("INSERT", "threadmill_job_history"),
    ("INSERT", "threadmill_count_deltas"),  # by the triggers of threadmill_jobs
)
_SEQUENCES = ("threadmill_nudge_revision_seq",)


def producer_grants(preparer: IdentifierPreparer, *, role: str, schema: str) -> str:
    """The GRANT statements for `role`, names quoted, one on each line.

    The role can neither read jobs nor touch definitions, schedule states or counts.
    """
    grantee, home = preparer.quote(role), preparer.quote(schema)
    lines = [f"GRANT USAGE ON SCHEMA {home} TO {grantee};"]
    lines += [f"GRANT {rights} ON TABLE {home}.{name} TO {grantee};" for rights, name in _TABLES]
    lines += [f"GRANT USAGE ON SEQUENCE {home}.{name} TO {grantee};" for name in _SEQUENCES]
    return "\n".join(lines) + "\n"
