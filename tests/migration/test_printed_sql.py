"""Printed SQL builds the same schema, and printing changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

from tests.migration.support import (
    insert_jobs,
    names_of,
    plain_engine,
    read_catalog,
    run_script,
    upgrade_to,
)
from tests.migration.test_catalog import TABLES
from threadmill_sa.stores.sql.frozen import HEAD
from threadmill_sa.stores.sql.migrate import SchemaManager

ROOT = Path(__file__).parents[2]


def alembic(*arguments: str, url: str | None = None, check: bool = True) -> str:
    """Standard output of the alembic command, run where alembic.ini lies."""
    environment = {key: value for key, value in os.environ.items() if key != "THREADMILL_URL"}
    if url is not None:
        environment["THREADMILL_URL"] = url
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done.stdout if check else done.stdout + done.stderr


def test_a_clean_install_script_builds_the_same_catalog(sql_empty_url: str) -> None:
    engine = plain_engine(sql_empty_url)
    manager = SchemaManager(engine)
    script = manager.emit_clean_install_sql()
    assert read_catalog(engine) == {}
    run_script(sql_empty_url, script)
    printed = read_catalog(engine)
    manager.validate()
    manager.drop_and_migrate(allow_destructive_reset=True)
    assert read_catalog(engine) == printed


def test_alembic_prints_and_runs_the_same_from_the_root(sql_empty_url: str) -> None:
    engine = plain_engine(sql_empty_url)
    script = alembic("upgrade", "head", "--sql", url=sql_empty_url)
    assert read_catalog(engine) == {}
    run_script(sql_empty_url, script)
    SchemaManager(engine).validate()
    printed = read_catalog(engine)
    run_script(
        sql_empty_url, alembic("-x", f"url={sql_empty_url}", "downgrade", f"{HEAD}:base", "--sql")
    )
    assert read_catalog(engine) == {}
    alembic("-x", f"url={sql_empty_url}", "upgrade", "head", url="postgresql://nobody@0.0.0.0/no")
    assert read_catalog(engine) == printed
    SchemaManager(engine).validate()
    assert f"{HEAD} (head)" in alembic("current", url=sql_empty_url)
    alembic("check", url=sql_empty_url)
    alembic("downgrade", "base", url=sql_empty_url)
    assert read_catalog(engine) == {}


def test_alembic_reads_a_plain_postgresql_url_and_a_schema(pg_empty_url: str) -> None:
    url = pg_empty_url.replace("postgresql+psycopg://", "postgresql://")
    engine = plain_engine(pg_empty_url)
    alembic("-x", "schema=tm", "upgrade", "head", url=url)
    SchemaManager(engine, "tm").validate()
    assert read_catalog(engine) == {}
    alembic("-x", "schema=tm", "check", url=url)
    alembic("-x", "schema=tm", "downgrade", "base", url=url)
    run_script(pg_empty_url, alembic("-x", "schema=tm", "upgrade", "head", "--sql", url=url))
    SchemaManager(engine, "tm").validate()


def test_alembic_without_a_database_says_how_to_name_one() -> None:
    answer = alembic("upgrade", "head", check=False)
    assert "THREADMILL_URL" in answer
    assert "Traceback" not in answer


def test_alembic_refuses_an_unsupported_database_without_a_traceback() -> None:
    answer = alembic("upgrade", "head", url="sqlite://", check=False)
    assert "Threadmill.in_memory()" in answer
    assert "Traceback" not in answer


def test_pending_sql_holds_exactly_what_is_missing(sql_empty_url: str) -> None:
    engine = plain_engine(sql_empty_url)
    manager = SchemaManager(engine)
    upgrade_to(engine, "0002")
    insert_jobs(engine, ("ENQUEUED", "a"))
    before = read_catalog(engine)
    script = manager.emit_pending_sql()
    assert read_catalog(engine) == before
    assert manager.current() == ["0001", "0002"]
    assert "threadmill_cron_tasks" in script
    assert "CREATE TABLE threadmill_jobs" not in script
    run_script(sql_empty_url, script)
    manager.validate()
    assert manager.emit_pending_sql() == ""


def test_pending_sql_of_an_empty_database_is_the_clean_install(sql_empty_url: str) -> None:
    manager = SchemaManager(plain_engine(sql_empty_url))
    assert manager.emit_pending_sql() == manager.emit_clean_install_sql()


def test_a_printed_schema_name_is_quoted(pg_empty_url: str) -> None:
    engine = plain_engine(pg_empty_url)
    schema = 'It\'s "odd" one'
    run_script(pg_empty_url, SchemaManager(engine, schema).emit_clean_install_sql())
    SchemaManager(engine, schema).validate()
    with engine.connect() as connection:
        found = connection.scalar(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = :schema"), {"schema": schema}
        )
    assert found == len(TABLES)
    assert names_of(read_catalog(engine), "column") == set()
