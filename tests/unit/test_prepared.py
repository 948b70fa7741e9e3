"""Statements that are sent as text: the text and the binds are those SQLAlchemy would send."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select

from threadmill_sa.model.job import NewJob
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import choose_dialect
from threadmill_sa.stores.sql.prepared import Prepared
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements.jobs import insert_job
from threadmill_sa.testing.suite.tools import new_job

SCHEMA = Schema("main")
INSERT = insert_job(SCHEMA, choose_dialect("sqlite"))
RUN_AT = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def _binds(job: NewJob) -> dict[str, Any]:
    return rows.new_job_values(job) | {"now": datetime(2026, 3, 29, tzinfo=UTC)}


@pytest.fixture
def engine() -> Engine:
    made = create_engine("sqlite://")
    with made.begin() as connection:
        SCHEMA.jobs.create(connection)
    return made


@pytest.mark.parametrize(
    "fields", [{}, {"run_at": RUN_AT}, {"delay_seconds": 1.5}, {"payload": "%"}]
)
def test_it_sends_what_sqlalchemy_would_send(engine: Engine, fields: dict[str, Any]) -> None:
    heard: list[Any] = []
    event.listen(engine, "before_cursor_execute", lambda *each: heard.append(each[2:4]))
    job = new_job(**fields)
    with engine.connect() as connection:
        Prepared(INSERT).execute(connection, _binds(job))
        connection.rollback()
        connection.execute(INSERT, _binds(job))
        connection.rollback()

    as_text, as_clause = heard
    assert as_text == as_clause


def test_a_literal_of_the_statement_is_sent_with_it(engine: Engine) -> None:
    statement = Prepared(insert(SCHEMA.job_counts).values(state="ENQUEUED", n=7))
    with engine.begin() as connection:
        SCHEMA.job_counts.create(connection)
        statement.execute(connection, {})
        found = connection.execute(select(SCHEMA.job_counts)).all()
    assert [(row.state, row.n) for row in found] == [("ENQUEUED", 7)]


def test_a_missing_bind_is_named_and_nothing_is_sent(engine: Engine) -> None:
    binds = _binds(new_job())
    del binds["handler"]
    with engine.connect() as connection, pytest.raises(KeyError, match="handler"):
        Prepared(INSERT).execute(connection, binds)


def test_options_of_the_connection_are_not_inherited(engine: Engine) -> None:
    with engine.connect().execution_options(stream_results=True, yield_per=10) as connection:
        Prepared(INSERT).execute(connection, _binds(new_job()))
        assert connection.get_execution_options()["stream_results"] is True
        assert connection.execute(select(SCHEMA.jobs.c.id)).all()
