"""The triggers keep the counts exact, and cost a heartbeat nothing."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, delete, func, insert, make_url, select, text, update

from tests.migration.support import (
    counts_of,
    insert_jobs,
    job_row,
    plain_engine,
    true_counts,
)
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.schema import Schema

STATES = ["SCHEDULED", "ENQUEUED", "PROCESSING", "SUCCEEDED", "FAILED"]
QUEUES = ["a", "b", "c"]
ROUNDS = 40


def change(connection: Connection, jobs: Any, chance: Random) -> None:
    """One random statement over a random batch of rows."""
    some = select(jobs.c.id).order_by(func.random()).limit(chance.randrange(6))
    kind = chance.choice(["insert", "insert", "state", "queue", "same", "delete"])
    if kind == "insert":
        rows = [job_row(chance.choice(STATES), chance.choice(QUEUES)) for _ in range(5)]
        connection.execute(insert(jobs).values(rows))
    elif kind == "delete":
        connection.execute(delete(jobs).where(jobs.c.id.in_(some)))
    else:
        values: dict[str, Any] = {
            "state": {"state": chance.choice(STATES)},
            "queue": {"queue": chance.choice(QUEUES)},
            "same": {"state": jobs.c.state, "queue": jobs.c.queue},
        }[kind]
        connection.execute(update(jobs).where(jobs.c.id.in_(some)).values(values))


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_exact_after_any_mix_of_statements(sql_engine: Engine, seed: int) -> None:
    chance, jobs = Random(seed), Schema().jobs
    for _ in range(ROUNDS):
        with sql_engine.connect() as connection:
            change(connection, jobs, chance)
            change(connection, jobs, chance)
            if chance.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
            assert counts_of(connection) == true_counts(connection)


def test_a_heartbeat_writes_no_count(sql_engine: Engine) -> None:
    jobs = Schema().jobs
    insert_jobs(sql_engine, *[("PROCESSING", "a")] * 3)
    with sql_engine.begin() as connection:
        before = stored_counts(connection)
        connection.execute(update(jobs).values(heartbeat_at=jobs.c.created_at))
        assert stored_counts(connection) == before


def test_an_sqlite_heartbeat_fires_no_trigger_at_all(sqlite_engine: Engine) -> None:
    jobs = Schema().jobs
    insert_jobs(sqlite_engine, *[("PROCESSING", "a")] * 3)
    with sqlite_engine.begin() as connection:
        before = connection.scalar(text("SELECT total_changes()"))
        connection.execute(update(jobs).values(heartbeat_at=jobs.c.created_at))
        assert connection.scalar(text("SELECT total_changes()")) - before == 3


def test_a_statement_appends_one_delta_for_each_queue_and_state(pg_engine: Engine) -> None:
    rows = [job_row("ENQUEUED", queue) for queue in ("a", "b") for _ in range(50)]
    with pg_engine.begin() as connection:
        connection.execute(insert(Schema().jobs).values(rows))
        deltas = connection.execute(
            text("SELECT queue, state, n FROM threadmill_count_deltas ORDER BY queue")
        ).all()
    assert [tuple(row) for row in deltas] == [("a", "ENQUEUED", 50), ("b", "ENQUEUED", 50)]


def test_rows_that_meet_a_conflict_are_not_counted(sql_engine: Engine) -> None:
    (known,) = insert_jobs(sql_engine, ("ENQUEUED", "a"))
    jobs = Schema().jobs
    rows = [{**job_row("ENQUEUED", "b"), "id": known}, job_row("ENQUEUED", "b")]
    with sql_engine.begin() as connection:
        dialect = connection.dialect.name
        if dialect == "sqlite":
            connection.execute(insert(jobs).prefix_with("OR IGNORE").values(rows))
        else:
            from sqlalchemy.dialects.postgresql import insert as pg_insert

            connection.execute(pg_insert(jobs).values(rows).on_conflict_do_nothing())
        assert counts_of(connection) == ({"ENQUEUED": 2}, {"a": 1, "b": 1})


def test_counting_ignores_the_callers_search_path(pg_empty_engine: Engine) -> None:
    SchemaManager(pg_empty_engine, "tm").migrate()
    SchemaManager(pg_empty_engine).migrate()
    with pg_empty_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA decoy"))
        connection.execute(text("CREATE TABLE decoy.threadmill_count_deltas (x integer)"))
        connection.execute(text("SET LOCAL search_path = decoy"))
        connection.execute(Schema("tm").jobs.insert(), [job_row("ENQUEUED", "a")])
        connection.execute(Schema("public").jobs.insert(), [job_row("FAILED", "b")])
        assert counts_of(connection, "tm") == ({"ENQUEUED": 1}, {"a": 1})
        assert counts_of(connection, "public") == ({"FAILED": 1}, {})


def test_instants_mean_the_same_under_a_role_with_another_zone(pg_url: str) -> None:
    utc, india = (
        plain_engine(pg_url),
        plain_engine(
            make_url(pg_url)
            .update_query_dict({"options": "-c timezone=Asia/Kolkata"})
            .render_as_string(hide_password=False)
        ),
    )
    jobs = Schema().jobs
    row = {**job_row("SCHEDULED", "a"), "id": uuid4()}
    with india.begin() as connection:
        assert connection.scalar(text("SHOW timezone")) == "Asia/Kolkata"
        connection.execute(jobs.insert(), [row])
    with utc.connect() as connection:
        assert connection.scalar(select(jobs.c.created_at)) == row["created_at"]


def stored_counts(connection: Connection) -> list[Any]:
    schema = Schema()
    tables = (schema.count_deltas, schema.job_counts, schema.queue_counts)
    return [connection.execute(table.select()).all() for table in tables]
