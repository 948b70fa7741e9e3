"""A producer's role gets what producing needs, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from tests.migration.support import counts_of, insert_jobs, job_row
from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.stores.sql.dialects import choose_dialect
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.recording import RecordingWrites
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements.nudges import read_verdict
from threadmill_sa.stores.sql.statements.records import refuse_expected
from threadmill_sa.stores.sql.writing import ProducerWrites

TASK = (
    "INSERT INTO {home}.threadmill_cron_tasks (name, trigger_kind, trigger_value, zone, handler,"
    " queue, priority, missed_run_policy, enabled, epoch, anchor_at, created_at, updated_at)"
    " VALUES ('pump', 'every', '60', 'UTC', 'h', 'q', 0, 'drop', true, 1, now(), now(), now())"
)
FORBIDDEN = [
    "UPDATE {home}.threadmill_cron_task_state SET next_run_at = null",
    "UPDATE {home}.threadmill_cron_tasks SET enabled = false",
    "DELETE FROM {home}.threadmill_cron_nudges",
    "SELECT payload FROM {home}.threadmill_jobs",
    "UPDATE {home}.threadmill_jobs SET state = 'DELETED'",
    "UPDATE {home}.threadmill_job_counts SET n = 0",
    "SELECT nextval('{home}.threadmill_epoch_seq')",
    "DELETE FROM {home}.threadmill_schema_history",
    "UPDATE {home}.threadmill_nudge_records SET revision = 0",
    "DELETE FROM {home}.threadmill_nudge_records",
]


@pytest.fixture(params=[None, "tm"])
def home(request: pytest.FixtureRequest) -> str | None:
    schema: str | None = request.param
    return schema


@pytest.fixture
def producer(pg_empty_engine: Engine, home: str | None) -> Iterator[str]:
    """The name of a role that has what `emit_grants_sql` prints."""
    role = f"tm producer {uuid4().hex[:8]}"
    manager = SchemaManager(pg_empty_engine, home)
    manager.migrate()
    with pg_empty_engine.begin() as connection:
        connection.execute(text(f'CREATE ROLE "{role}"'))
        connection.execute(text(TASK.format(home=home or "public")))
        for grant in manager.emit_grants_sql(role).splitlines():
            connection.execute(text(grant))
    yield role
    with pg_empty_engine.begin() as connection:
        connection.execute(text(f'DROP OWNED BY "{role}"'))
        connection.execute(text(f'DROP ROLE "{role}"'))


@contextmanager
def acting_as(engine: Engine, role: str) -> Iterator[Connection]:
    with engine.begin() as connection:
        connection.execute(text(f'SET LOCAL ROLE "{role}"'))
        yield connection


def test_a_producer_can_nudge_and_enqueue(
    pg_empty_engine: Engine, producer: str, home: str | None
) -> None:
    schema, dialect = Schema(home), choose_dialect("postgresql")
    writes = ProducerWrites(schema, dialect, lambda now: now)
    with acting_as(pg_empty_engine, producer) as connection:
        for telling in (False, True):  # the second one takes the conflict clause
            accepted = writes.accept_nudge(connection, "pump", telling=telling)
            assert accepted.verdict is NudgeVerdict.ACCEPTED
        assert connection.scalar(read_verdict(schema), {"name": "pump"}) is True
        connection.execute(schema.jobs.insert(), [job_row("ENQUEUED", "a")])
    with pg_empty_engine.connect() as connection:
        assert accepted.revision == connection.scalar(
            text(f"SELECT revision FROM {home or 'public'}.threadmill_cron_nudges")
        )
        assert counts_of(connection, home) == ({"ENQUEUED": 1}, {"a": 1})


def test_a_producer_can_leave_records(
    pg_empty_engine: Engine, producer: str, home: str | None
) -> None:
    schema, dialect = Schema(home), choose_dialect("postgresql")
    writes = RecordingWrites(schema, dialect, lambda now: now)
    with acting_as(pg_empty_engine, producer) as connection:
        writes.accept_nudge(connection, "pump", telling=False)
        promises = writes.expect_nudges(connection, ["pump"])
        refusal = {"name": "pump", "promise": promises["pump"]}
        assert connection.execute(refuse_expected(schema), refusal).rowcount == 1
    with pg_empty_engine.connect() as connection:
        recorded = connection.execute(schema.nudge_records.select()).all()
        pending = connection.execute(schema.cron_nudges.select()).one()
    assert [row.revision for row in recorded] == [pending.revision, None]
    assert {row.slot for row in recorded} == {pending.slot}


def test_a_producer_can_do_nothing_else(
    pg_empty_engine: Engine, producer: str, home: str | None
) -> None:
    insert_jobs(pg_empty_engine, ("ENQUEUED", "a"), schema=home)
    for statement in FORBIDDEN:
        with (
            pytest.raises(ProgrammingError, match="permission denied"),
            acting_as(pg_empty_engine, producer) as connection,
        ):
            connection.execute(text(statement.format(home=home or "public")))


def test_sqlite_has_nothing_to_grant(sqlite_engine: Engine) -> None:
    assert SchemaManager(sqlite_engine).emit_grants_sql("app").startswith("-- SQLite")


def test_an_empty_role_name_is_refused(sql_engine: Engine) -> None:
    with pytest.raises(InvalidValueError, match="role name is empty"):
        SchemaManager(sql_engine).emit_grants_sql("")
