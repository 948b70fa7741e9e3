"""Every revision upgrades a populated database, and all of them can be taken back."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tests.migration.support import (
    counts_of,
    downgrade_to,
    insert_jobs,
    job_row,
    read_catalog,
    run_script,
    true_counts,
    upgrade_to,
    wait_until,
)
from threadmill_sa.stores.sql import revisions
from threadmill_sa.stores.sql.frozen import FROZEN
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.schema import Schema

ROOT = Path(__file__).parents[2]
REVISIONS = [entry.revision for entry in FROZEN]
POPULATE = {
    "0004": (
        "INSERT INTO threadmill_cron_tasks (name, trigger_kind, trigger_value, zone, handler,"
        " queue, priority, missed_run_policy, enabled, epoch, anchor_at, created_at, updated_at)"
        " VALUES ('pump', 'every', '60', 'UTC', 'h', 'q', 0, 'drop', true, 1, {now}, {now}, {now})"
    ),
    "0005": (
        "INSERT INTO threadmill_cron_nudges (revision, task_name, slot, epoch, requested_at)"
        " VALUES (7, 'pump', 1, 1, {now})"
    ),
    "0006": (
        "INSERT INTO threadmill_nodes (id, host, pid, workers, started_at, heartbeat_at)"
        " VALUES ('00000000-0000-0000-0000-000000000001', 'a', 1, 1, {now}, {now})"
    ),
    "0007": (
        "INSERT INTO threadmill_nudge_records (task_name, epoch, slot, revision, requested_at)"
        " VALUES ('pump', 1, 1, 7, {now})"
    ),
    "0008": (
        "INSERT INTO threadmill_leases (name, holder, term, acquired_at, expires_at)"
        " VALUES ('settle', 'a', 7, {now}, {now})"
    ),
}


def populate(engine: Engine, revision: str) -> None:
    if revision >= "0002":
        insert_jobs(engine, ("ENQUEUED", "a"), ("ENQUEUED", "b"), ("SUCCEEDED", "a"))
    if statement := POPULATE.get(revision):
        now = "1" if engine.dialect.name == "sqlite" else "now()"
        with engine.begin() as connection:
            connection.execute(text(statement.format(now=now)))


def test_each_revision_upgrades_a_populated_database_in_place(sql_empty_engine: Engine) -> None:
    for applied, revision in enumerate(REVISIONS, start=1):
        upgrade_to(sql_empty_engine, revision)
        assert SchemaManager(sql_empty_engine).current() == REVISIONS[:applied]
        populate(sql_empty_engine, revision)
        if revision >= "0003":
            with sql_empty_engine.connect() as connection:
                assert counts_of(connection) == true_counts(connection)
    SchemaManager(sql_empty_engine).validate()
    with sql_empty_engine.connect() as connection:
        jobs = connection.scalar(text("SELECT count(*) FROM threadmill_jobs"))
    assert jobs == 3 * (len(REVISIONS) - 1)


def test_counts_of_jobs_older_than_the_triggers_are_exact(sql_empty_engine: Engine) -> None:
    upgrade_to(sql_empty_engine, "0002")
    insert_jobs(sql_empty_engine, *[("ENQUEUED", "a")] * 5, *[("FAILED", "b")] * 2)
    SchemaManager(sql_empty_engine).migrate()
    with sql_empty_engine.connect() as connection:
        assert counts_of(connection) == ({"ENQUEUED": 5, "FAILED": 2}, {"a": 5})


def test_a_downgrade_undoes_one_revision_at_a_time(sql_empty_engine: Engine) -> None:
    seen = [read_catalog(sql_empty_engine)]
    for revision in REVISIONS:
        upgrade_to(sql_empty_engine, revision)
        populate(sql_empty_engine, revision)
        seen.append(read_catalog(sql_empty_engine))
    for applied in range(len(REVISIONS) - 1, 0, -1):
        downgrade_to(sql_empty_engine, REVISIONS[applied - 1])
        assert read_catalog(sql_empty_engine) == seen[applied]
        assert SchemaManager(sql_empty_engine).current() == REVISIONS[:applied]


def test_a_downgrade_to_base_leaves_nothing_of_ours(sql_engine: Engine) -> None:
    insert_jobs(sql_engine, ("ENQUEUED", "a"))
    with sql_engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))
    downgrade_to(sql_engine, "base")
    assert [name for name in read_catalog(sql_engine) if "threadmill" in name] == []
    assert any("orders" in name for name in read_catalog(sql_engine))


def test_a_failing_revision_leaves_nothing_half(
    sql_empty_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade_to(sql_empty_engine, "0001")
    before = read_catalog(sql_empty_engine)
    broken = shutil.copytree(revisions.scripts_path(), tmp_path / "alembic")
    with (broken / "versions" / "0003_counts.py").open("a") as script:
        script.write("\n\ndef record(_): op.execute('SELECT * FROM no_such_table')\n")
    monkeypatch.setattr(revisions, "scripts_path", lambda: broken)
    with pytest.raises(DBAPIError, match="no_such_table"):
        SchemaManager(sql_empty_engine).migrate()
    monkeypatch.undo()
    assert read_catalog(sql_empty_engine) == before
    SchemaManager(sql_empty_engine).migrate()
    SchemaManager(sql_empty_engine).validate()


def test_a_reset_drops_our_rows_and_objects_only(sql_engine: Engine) -> None:
    insert_jobs(sql_engine, ("ENQUEUED", "a"))
    with sql_engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))
    before = read_catalog(sql_engine)
    SchemaManager(sql_engine).drop_and_migrate(allow_destructive_reset=True)
    assert read_catalog(sql_engine) == before
    with sql_engine.connect() as connection:
        assert true_counts(connection) == counts_of(connection) == ({}, {})


def test_a_reset_is_refused_without_the_flag(sql_engine: Engine) -> None:
    from threadmill_sa.errors import InvalidValueError

    insert_jobs(sql_engine, ("ENQUEUED", "a"))
    with pytest.raises(InvalidValueError, match="allow_destructive_reset=True"):
        SchemaManager(sql_engine).drop_and_migrate()
    with sql_engine.connect() as connection:
        assert counts_of(connection) == ({"ENQUEUED": 1}, {"a": 1})


def build_beside(engine: Engine, schema: str | None = None, *, patience: str = "0") -> None:
    """Build the index of finished jobs as the page on the schema says, before revision 0009."""
    page = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")
    [statement] = re.findall(r"`(CREATE INDEX CONCURRENTLY [^`]*)`", page)
    with engine.connect() as connection:
        beside = connection.execution_options(isolation_level="AUTOCOMMIT")
        beside.execute(text(f"SET search_path TO {schema or 'public'}"))
        beside.execute(text(f"SET lock_timeout TO '{patience}'"))
        try:
            beside.execute(text(statement))
        finally:
            connection.invalidate()  # with its settings


def finished_index(connection: Connection, schema: str | None = None) -> tuple[int, bool] | None:
    """Its number, and whether queries use it; None when there is none."""
    row = connection.execute(
        text(
            "SELECT indexrelid, indisvalid FROM pg_index"
            " WHERE indexrelid = to_regclass(:home || '.ix_threadmill_jobs_finished')"
        ),
        {"home": schema or "public"},
    ).one_or_none()
    connection.rollback()
    return None if row is None else (row.indexrelid, row.indisvalid)


def test_the_index_of_finished_jobs_may_have_been_built_beside_the_writers(
    pg_empty_engine: Engine,
) -> None:
    upgrade_to(pg_empty_engine, "0008")
    insert_jobs(pg_empty_engine, ("SUCCEEDED", "a"))
    build_beside(pg_empty_engine)

    SchemaManager(pg_empty_engine).migrate()

    found = read_catalog(pg_empty_engine)["index ix_threadmill_jobs_finished"]
    downgrade_to(pg_empty_engine, "0008")
    SchemaManager(pg_empty_engine).migrate()
    assert found == read_catalog(pg_empty_engine)["index ix_threadmill_jobs_finished"]


@pytest.mark.parametrize("schema", [None, "tm"])
@pytest.mark.parametrize("how", ["migrate", "script"])
def test_a_broken_off_build_of_the_index_of_finished_jobs_is_built_again(
    pg_empty_engine: Engine, schema: str | None, how: str
) -> None:
    manager = SchemaManager(pg_empty_engine, schema)
    upgrade_to(pg_empty_engine, "0008", schema)
    insert_jobs(pg_empty_engine, ("SUCCEEDED", "a"), schema=schema)
    with pg_empty_engine.begin() as writer:
        writer.execute(Schema(schema).jobs.insert(), [job_row("SUCCEEDED", "a")])
        with pytest.raises(DBAPIError, match="lock timeout"):  # it waits for every writer
            build_beside(pg_empty_engine, schema, patience="50ms")
    with pg_empty_engine.connect() as connection:
        left = finished_index(connection, schema)
    assert left is not None
    assert left[1] is False

    if how == "migrate":
        manager.migrate()
    else:
        run_script(
            pg_empty_engine.url.render_as_string(hide_password=False), manager.emit_pending_sql()
        )

    manager.validate()
    with pg_empty_engine.connect() as connection:
        found = finished_index(connection, schema)
    assert found is not None
    assert found[1] is True
    built = read_catalog(pg_empty_engine, schema)["index ix_threadmill_jobs_finished"]
    downgrade_to(pg_empty_engine, "0008", schema)
    manager.migrate()
    assert built == read_catalog(pg_empty_engine, schema)["index ix_threadmill_jobs_finished"]


def test_a_build_of_the_index_that_still_goes_on_is_waited_for_and_kept(
    pg_empty_engine: Engine,
) -> None:
    upgrade_to(pg_empty_engine, "0008")
    insert_jobs(pg_empty_engine, ("SUCCEEDED", "a"))
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE :query"
    )
    with ThreadPoolExecutor(2) as threads, pg_empty_engine.connect() as observer:

        def is_stuck(query: str) -> bool:
            found = observer.scalar(waiting, {"query": query})
            observer.rollback()
            return bool(found)

        with pg_empty_engine.connect() as reader:
            reader.execution_options(isolation_level="REPEATABLE READ").execute(text("SELECT 1"))
            build = threads.submit(build_beside, pg_empty_engine)
            wait_until(lambda: is_stuck("CREATE INDEX CONCURRENTLY%"), named="the build waits")
            begun = finished_index(observer)
            upgrade = threads.submit(SchemaManager(pg_empty_engine).migrate)
            wait_until(lambda: is_stuck("%broken_off%"), named="the upgrade waits")
        build.result(timeout=60)
        upgrade.result(timeout=60)
        kept = finished_index(observer)

    assert begun is not None
    assert begun[1] is False
    assert kept == (begun[0], True)
