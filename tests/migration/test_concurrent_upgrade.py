"""Many upgraders at once, and producers while one waits."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from tests.migration.support import (
    counts_of,
    insert_jobs,
    job_row,
    plain_engine,
    read_catalog,
    true_counts,
    upgrade_to,
    wait_until,
)
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.upgrader import LOCK_KEY

UPGRADERS = 10
# One interpreter imports, then forks: ten imports would take longer than ten upgrades.
CROWD = """
import os, sys
from sqlalchemy import create_engine
from threadmill_sa.stores.sql.migrate import SchemaManager
reader, writer = os.pipe()
children = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # returns for all of them when the parent closes its end
        status = 1
        try:
            manager = SchemaManager(create_engine(sys.argv[1]))
            manager.migrate()
            manager.validate()
            status = 0
        finally:
            os._exit(status)
    children.append(pid)
os.close(writer)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""
HALF_WAY = """
import sys
from sqlalchemy import create_engine
from threadmill_sa.stores.sql.revisions import run_upgrade
from threadmill_sa.stores.sql.upgrader import run_alone
connection = create_engine(sys.argv[1]).connect()
def work():
    run_upgrade(connection, to="0004", schema=None)
    print("half way", flush=True)
    sys.stdin.readline()
run_alone(connection, work, schema=None)
"""


@pytest.mark.parametrize("start", ["nothing", "0002"])
def test_ten_processes_migrate_at_once_and_all_end_at_head(sql_empty_url: str, start: str) -> None:
    engine = plain_engine(sql_empty_url)
    if start != "nothing":
        upgrade_to(engine, start)
        insert_jobs(engine, ("ENQUEUED", "a"))
    crowd = subprocess.run(
        [sys.executable, "-c", CROWD, sql_empty_url, str(UPGRADERS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert crowd.stdout == f"{[0] * UPGRADERS}\n", crowd.stderr
    with engine.connect() as connection:
        assert counts_of(connection) == true_counts(connection)


def test_a_killed_upgrader_leaves_the_old_state(sql_empty_url: str) -> None:
    engine = plain_engine(sql_empty_url)
    upgrade_to(engine, "0002")
    before = read_catalog(engine)
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, sql_empty_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as upgrader:
        assert upgrader.stdout is not None
        assert upgrader.stdout.readline() == "half way\n"
        upgrader.kill()
    assert read_catalog(engine) == before
    SchemaManager(engine).migrate()
    SchemaManager(engine).validate()


def test_threads_of_one_process_migrate_several_databases_at_once(
    pg_empty_engine: Engine, sqlite_empty_engine: Engine
) -> None:
    managers = [
        SchemaManager(pg_empty_engine),
        SchemaManager(pg_empty_engine, "other"),
        SchemaManager(sqlite_empty_engine),
    ] * 2
    with ThreadPoolExecutor(len(managers)) as pool:
        for done in [pool.submit(manager.migrate) for manager in managers]:
            done.result(timeout=60)
    for manager in managers:
        manager.validate()


def test_an_upgrade_that_waits_too_long_says_where_to_look(pg_empty_engine: Engine) -> None:
    key = LOCK_KEY.format(schema="NULL")
    with pg_empty_engine.connect() as holder:
        holder.execute(text(f"SELECT pg_advisory_xact_lock({key})"))
        with pytest.raises(StoreUnavailableError, match="pg_locks"):
            SchemaManager(pg_empty_engine, wait_seconds=0).migrate()
    SchemaManager(pg_empty_engine).migrate()
    SchemaManager(pg_empty_engine).validate()


def test_an_sqlite_upgrade_waits_for_the_writer(
    sqlite_empty_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = plain_engine(f"{sqlite_empty_url}?timeout=0.01")
    with engine.connect() as holder:
        holder.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            SchemaManager(engine, wait_seconds=0).migrate()
        with ThreadPoolExecutor(1) as pool:
            upgrade = pool.submit(SchemaManager(engine).migrate)
            wait_until(lambda: "waits" in caplog.text, named="upgrade meets the writer")
            assert not upgrade.done()
            holder.exec_driver_sql("COMMIT")
            upgrade.result(timeout=30)
    SchemaManager(engine).validate()


def test_producers_are_not_queued_behind_a_waiting_upgrade(pg_empty_engine: Engine) -> None:
    upgrade_to(pg_empty_engine, "0002")
    jobs = Schema().jobs
    with pg_empty_engine.connect() as caller, ThreadPoolExecutor(1) as pool:
        caller.execute(jobs.insert(), [job_row("ENQUEUED", "a")])  # open: holds the table's lock
        upgrade = pool.submit(SchemaManager(pg_empty_engine).migrate)
        wait_until(lambda: waiting_for_jobs(pg_empty_engine), named="upgrade waits for jobs")
        with pg_empty_engine.begin() as producer:
            # More than one lock timeout, less than the caller's transaction lasts.
            producer.execute(text("SET LOCAL lock_timeout = '4s'"))
            producer.execute(jobs.insert(), [job_row("ENQUEUED", "a")])
        assert not upgrade.done()
        caller.commit()
        upgrade.result(timeout=30)
    with pg_empty_engine.connect() as connection:
        assert counts_of(connection) == ({"ENQUEUED": 2}, {"a": 2})


def waiting_for_jobs(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(
            connection.scalar(
                text(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted"
                    " AND relation = 'threadmill_jobs'::regclass"
                )
            )
        )
