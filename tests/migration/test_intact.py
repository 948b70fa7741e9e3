"""What a hand has dropped is missed where a program starts, with the statement that mends it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, PrimaryKeyConstraint, UniqueConstraint, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.migration.support import counts_of, insert_jobs, names_of, read_catalog
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import SchemaEditedError
from threadmill_sa.stores.sql.intact import COUNTING, require_intact
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.schema import Schema

NUDGES = "uq_threadmill_cron_nudges_task_name_slot"
DROP_NUDGES = f"ALTER TABLE threadmill_cron_nudges DROP CONSTRAINT {NUDGES}"
LEASES = ("pk_threadmill_leases", "uq_threadmill_leases_name_term")


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def run_alone(engine: Engine, statement: str) -> None:
    """What cannot run inside a transaction."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))


def refused(engine: Engine, schema: str | None = None) -> SchemaEditedError:
    with pytest.raises(SchemaEditedError) as caught:
        SchemaManager(engine, schema).validate()
    return caught.value


def without_keys(table: str) -> tuple[str, ...]:
    """SQLite drops no key: the table is made again, as a careless copy does."""
    return (
        f"CREATE TABLE copied AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE copied RENAME TO {table}",
    )


def shop(engine: Engine, mode: str = "validate") -> Threadmill:
    tm = Threadmill(engine, schema_mode=mode)
    tm.job("relay")(lambda: None)
    tm.recurring("pump", "relay", Every(hours=1))
    return tm


@pytest.mark.parametrize("start", ["node", "run_until_idle", "validate", "migrate"])
def test_a_start_is_refused_without_a_key_and_its_statement_lets_nudges_join_again(
    pg_engine: Engine, start: str
) -> None:
    tm = shop(pg_engine, "migrate" if start == "migrate" else "validate")
    run(pg_engine, DROP_NUDGES)

    starts: dict[str, Callable[[], object]] = {
        "node": tm.node().start,
        "run_until_idle": tm.run_until_idle,
        "validate": tm.schema.validate,
        "migrate": tm.run_until_idle,
    }

    with pytest.raises(SchemaEditedError, match=NUDGES) as caught:
        starts[start]()

    assert caught.value.missing == [NUDGES]
    assert caught.value.statements == [
        f"ALTER TABLE threadmill_cron_nudges ADD CONSTRAINT {NUDGES} UNIQUE (task_name, slot)"
    ]
    assert "threadmill-sa db sql --clean" in str(caught.value)
    run(pg_engine, *caught.value.statements)
    tm.run_until_idle()
    with Session(pg_engine) as session, session.begin():
        tm.nudge("pump", session)
        tm.nudge("pump", session)
    assert tm.run_until_idle() == 1
    tm.close()


def test_every_key_of_ours_is_missed_by_name(pg_engine: Engine) -> None:
    dropped = set()
    with pg_engine.connect() as connection:
        for table in Schema().metadata.tables.values():
            for key in table.constraints:
                wanted = isinstance(key, PrimaryKeyConstraint | UniqueConstraint)
                if not wanted or key.name == "pk_threadmill_cron_nudges":  # SQLite's alone
                    continue
                savepoint = connection.begin_nested()
                connection.execute(text(f"ALTER TABLE {table.name} DROP CONSTRAINT {key.name}"))
                with pytest.raises(SchemaEditedError) as caught:
                    require_intact(connection, None)
                assert caught.value.missing == [key.name]
                for statement in caught.value.statements:
                    connection.execute(text(statement))
                require_intact(connection, None)
                savepoint.rollback()
                dropped.add(key.name)
    constraints = {name.split(".")[1] for name in names_of(read_catalog(pg_engine), "constraint")}
    assert dropped == {name for name in constraints if name.startswith(("pk_", "uq_"))}


def test_on_sqlite_a_table_that_was_copied_has_lost_its_keys(sqlite_engine: Engine) -> None:
    run(sqlite_engine, *without_keys("threadmill_leases"))

    error = refused(sqlite_engine)

    assert error.missing == list(LEASES)
    run(sqlite_engine, *error.statements)
    SchemaManager(sqlite_engine).validate()
    tm = shop(sqlite_engine)
    tm.run_until_idle()
    with tm.lock("settle"):
        pass


def test_on_sqlite_a_key_that_numbers_rows_comes_back_with_its_table_only(
    sqlite_engine: Engine,
) -> None:
    run(sqlite_engine, *without_keys("threadmill_cron_nudges"))

    error = refused(sqlite_engine)

    assert error.missing == ["pk_threadmill_cron_nudges", NUDGES]
    assert error.statements == [
        f"CREATE UNIQUE INDEX {NUDGES} ON threadmill_cron_nudges (task_name, slot)"
    ]
    run(sqlite_engine, *error.statements)
    assert refused(sqlite_engine).missing == ["pk_threadmill_cron_nudges"]


SERVES = ("CREATE UNIQUE INDEX mine ON threadmill_cron_nudges (slot, task_name) INCLUDE (epoch)",)
SERVES_NOT = (
    "CREATE INDEX mine ON threadmill_cron_nudges (task_name, slot)",
    "CREATE UNIQUE INDEX mine ON threadmill_cron_nudges (task_name, slot) WHERE slot > 0",
    "CREATE UNIQUE INDEX mine ON threadmill_cron_nudges (task_name, (slot + 0))",
    "CREATE UNIQUE INDEX mine ON threadmill_cron_nudges (task_name, slot, epoch)",
    "CREATE UNIQUE INDEX mine ON threadmill_cron_nudges (task_name) INCLUDE (slot)",
    "ALTER TABLE threadmill_cron_nudges ADD UNIQUE (task_name, slot) DEFERRABLE",
)


@pytest.mark.parametrize("instead", [*SERVES, *SERVES_NOT])
def test_another_index_serves_as_the_key_when_a_nudge_can_meet_on_it(
    pg_engine: Engine, instead: str
) -> None:
    tm = shop(pg_engine)
    tm.run_until_idle()
    run(pg_engine, DROP_NUDGES, instead)
    if instead in SERVES:
        tm.schema.validate()
        tm.nudge("pump")
        return
    assert refused(pg_engine).missing == [NUDGES]
    with pytest.raises(DBAPIError, match="ON CONFLICT"):
        tm.nudge("pump")


def test_a_key_that_is_not_valid_is_none(pg_engine: Engine) -> None:
    row = "INSERT INTO threadmill_cron_nudges VALUES (7, 'pump', 1, 1, now())"
    run(pg_engine, DROP_NUDGES, row, row)
    with pytest.raises(DBAPIError, match="could not create unique index"):
        run_alone(
            pg_engine,
            f"CREATE UNIQUE INDEX CONCURRENTLY {NUDGES}"
            " ON threadmill_cron_nudges (task_name, slot)",
        )

    error = refused(pg_engine)

    assert error.missing == [NUDGES]
    run(pg_engine, "DELETE FROM threadmill_cron_nudges")
    for statement in error.statements:
        run_alone(pg_engine, statement)
    SchemaManager(pg_engine).validate()


@pytest.mark.parametrize("name", ["red", 'It\'s "odd" one'])
def test_only_objects_of_its_own_schema_count(pg_engine: Engine, name: str) -> None:
    """The one in `public` is whole."""
    SchemaManager(pg_engine, name).migrate()
    home = '"' + name.replace('"', '""') + '"'
    run(
        pg_engine,
        f"ALTER TABLE {home}.threadmill_leases DROP CONSTRAINT {LEASES[1]}",
        f"DROP TRIGGER {COUNTING[0]} ON {home}.threadmill_jobs",
        f"ALTER TABLE {home}.threadmill_jobs DISABLE TRIGGER {COUNTING[1]}",
    )

    SchemaManager(pg_engine).validate()
    error = refused(pg_engine, name)

    assert error.missing == [COUNTING[0], COUNTING[1], LEASES[1]]
    run(pg_engine, *error.statements)
    assert refused(pg_engine, name).missing == [COUNTING[0]]


def test_a_counting_trigger_is_missed_and_comes_back_as_the_page_says(sql_engine: Engine) -> None:
    where = " ON threadmill_jobs" if sql_engine.dialect.name == "postgresql" else ""
    run(sql_engine, f"DROP TRIGGER {COUNTING[0]}{where}")
    insert_jobs(sql_engine, ("ENQUEUED", "a"), ("FAILED", "b"))
    assert refused(sql_engine).missing == [COUNTING[0]]

    script = SchemaManager(sql_engine).emit_clean_install_sql()
    [trigger] = [part for part in script.split("\n\n") if f"CREATE TRIGGER {COUNTING[0]}" in part]
    recount = [part for part in script.split("\n\n") if "count(*) FROM threadmill_jobs" in part]
    tables = ("count_deltas", "job_counts", "queue_counts")
    run(sql_engine, trigger, *[f"DELETE FROM threadmill_{each}" for each in tables], *recount)

    SchemaManager(sql_engine).validate()
    with sql_engine.connect() as connection:
        assert counts_of(connection) == ({"ENQUEUED": 1, "FAILED": 1}, {"a": 1})


def test_a_table_is_missed_and_its_keys_are_not_told_beside_it(sql_engine: Engine) -> None:
    run(sql_engine, "DROP TABLE threadmill_nodes")

    error = refused(sql_engine)

    assert error.missing == ["threadmill_nodes"]
    run(sql_engine, *error.statements)
    SchemaManager(sql_engine).validate()


def test_a_missing_index_is_told_and_stops_nobody(
    sql_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    before = read_catalog(sql_engine)
    run(sql_engine, "DROP INDEX ix_threadmill_jobs_finished")

    with caplog.at_level(logging.WARNING):
        SchemaManager(sql_engine).validate()

    [message] = [record.getMessage() for record in caplog.records]
    assert "ix_threadmill_jobs_finished is missing" in message
    run(sql_engine, message.split("`")[1])
    assert read_catalog(sql_engine) == before


def test_an_index_that_is_not_valid_is_told(
    pg_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    run(
        pg_engine,
        "UPDATE pg_index SET indisvalid = false"
        " WHERE indexrelid = 'ix_threadmill_jobs_ready'::regclass",
    )
    with caplog.at_level(logging.WARNING):
        SchemaManager(pg_engine).validate()

    [message] = [record.getMessage() for record in caplog.records]
    assert "ix_threadmill_jobs_ready is not valid" in message
    run_alone(pg_engine, message.split("`")[1])
    caplog.clear()
    SchemaManager(pg_engine).validate()
    assert caplog.records == []


def test_a_whole_schema_is_no_news(sql_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        SchemaManager(sql_engine).validate()
    assert caplog.records == []


def test_a_role_that_reads_the_history_alone_can_look(pg_engine: Engine) -> None:
    role = f"tm_looks_{uuid4().hex[:8]}"

    def look(connection: Connection) -> None:
        connection.execute(text(f"SET LOCAL ROLE {role}"))
        require_intact(connection, None)

    with pg_engine.connect() as connection:  # rolled back, the role with it
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(f"GRANT SELECT ON threadmill_schema_history TO {role}"))
        look(connection)
        connection.execute(text("RESET ROLE"))
        connection.execute(text(DROP_NUDGES))
        with pytest.raises(SchemaEditedError, match=NUDGES):
            look(connection)
