"""Our revisions beside the host's history, or inside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import op
from sqlalchemy import Engine, MetaData, text
from sqlalchemy.exc import DBAPIError

from tests.migration.host import Host, make_host
from tests.migration.support import plain_engine, read_catalog, run_script, upgrade_to
from threadmill_sa import migrations
from threadmill_sa.errors import InvalidValueError
from threadmill_sa.stores.sql.frozen import HEAD
from threadmill_sa.stores.sql.migrate import SchemaManager

CONVENTION = {"ck": "ck_%(table_name)s_%(constraint_name)s", "pk": "pk_%(table_name)s_x"}


@pytest.fixture
def host(sql_empty_engine: Engine, tmp_path: Path) -> Host:
    host = make_host(tmp_path / "host", sql_empty_engine)
    host.add_table("h1", None, "orders")
    return host


def ours(engine: Engine, schema: str | None = None) -> dict[str, str]:
    return {
        name: definition
        for name, definition in read_catalog(engine, schema).items()
        if "threadmill" in name
    }


def add_our_revisions(host: Host, schema: str | None = None) -> None:
    """h2 brings our schema to 0003, h3 is the host's own, h4 brings it to head."""
    host.add(
        "h2",
        migrations.host_revision_text(revision="h2", down_revision="h1", to="0003", schema=schema),
    )
    host.add_table("h3", "h2", "invoices")
    host.add(
        "h4",
        migrations.host_revision_text(
            revision="h4", down_revision="h3", since="0003", schema=schema
        ),
    )


def test_neither_chain_sees_the_other(host: Host) -> None:
    manager = SchemaManager(host.engine)
    host.upgrade()
    manager.migrate()
    assert host.current() == "h1 (head)"
    host.downgrade("-1")
    manager.validate()
    host.upgrade()
    manager.drop_and_migrate(allow_destructive_reset=True)
    assert host.current() == "h1 (head)"
    manager.migrate()
    manager.validate()


def test_the_hosts_chain_starts_after_ours_as_before(host: Host) -> None:
    SchemaManager(host.engine).migrate()
    host.upgrade()
    assert host.current() == "h1 (head)"
    SchemaManager(host.engine).validate()


def test_a_host_revision_brings_our_schema_in_one_line_of_history(host: Host) -> None:
    add_our_revisions(host)
    assert host.heads() == ["h4"]
    host.upgrade()
    manager = SchemaManager(host.engine)
    manager.validate()
    brought = ours(host.engine)
    host.downgrade("-1")
    assert manager.current() == ["0001", "0002", "0003"]
    host.downgrade("h1")
    assert ours(host.engine) == {}
    assert host.current() == "h1"
    host.upgrade("+1")
    assert manager.current() == ["0001", "0002", "0003"]
    host.upgrade()
    assert host.current() == "h4 (head)"
    assert ours(host.engine) == brought
    manager.migrate()


def test_a_host_revision_skips_what_is_applied_already(host: Host) -> None:
    add_our_revisions(host)
    SchemaManager(host.engine).migrate()
    host.upgrade()
    SchemaManager(host.engine).validate()


def test_printed_host_revisions_build_the_same_schema(host: Host, sql_empty_url: str) -> None:
    add_our_revisions(host)
    whole, half = host.printed("head"), host.printed("h3:h4")
    assert read_catalog(host.engine) == {}
    assert "CREATE TABLE threadmill_jobs" not in half
    run_script(sql_empty_url, whole)
    SchemaManager(host.engine).validate()
    printed = read_catalog(host.engine)
    run_script(sql_empty_url, host.printed("h4:h1", down=True))
    assert ours(host.engine) == {}
    host.upgrade("h3")
    run_script(sql_empty_url, half)
    assert read_catalog(host.engine) == printed
    SchemaManager(host.engine).validate()


def test_a_hosts_naming_convention_and_renaming_map_do_not_reach_our_tables(
    pg_empty_engine: Engine, tmp_path: Path
) -> None:
    with pg_empty_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
    mapped = pg_empty_engine.execution_options(schema_translate_map={None: "elsewhere"})
    host = make_host(tmp_path / "host", mapped, MetaData(naming_convention=CONVENTION))
    host.add_table("h1", None, "orders")
    add_our_revisions(host)
    host.upgrade()
    assert {name.split(".")[0] for name in read_catalog(pg_empty_engine, "elsewhere")} >= {
        "column orders",
        "column invoices",
    }
    within = ours(pg_empty_engine)
    SchemaManager(pg_empty_engine).drop_and_migrate(allow_destructive_reset=True)
    assert ours(pg_empty_engine) == within


def test_a_named_schema_inside_the_hosts_history(pg_empty_engine: Engine, tmp_path: Path) -> None:
    host = make_host(tmp_path / "host", pg_empty_engine)
    host.add_table("h1", None, "orders")
    add_our_revisions(host, schema="tm")
    host.upgrade()
    SchemaManager(pg_empty_engine, "tm").validate()
    assert ours(pg_empty_engine) == {}


def test_a_failing_host_revision_leaves_our_schema_whole_or_absent(host: Host) -> None:
    host.add(
        "h2",
        migrations.host_revision_text(revision="h2", down_revision="h1").replace(
            "def upgrade() -> None:",
            "def upgrade() -> None:\n    import tests.migration.test_host_history as t\n"
            "    t.break_in_the_middle(op)",
        ),
    )
    host.upgrade("h1")
    with pytest.raises(DBAPIError):
        host.upgrade()
    assert ours(host.engine) == {}
    assert host.current() == "h1"


def break_in_the_middle(op_: object) -> None:
    """Occupy a name that revision 0004 needs."""
    op.execute("CREATE TABLE threadmill_cron_tasks (id integer)")
    try:
        migrations.upgrade(op_, to=HEAD)
    finally:
        if op.get_bind().dialect.name == "sqlite":  # whose driver commits the host's own DDL
            op.execute("DROP TABLE threadmill_cron_tasks")


def test_the_hosts_operations_work_after_ours(host: Host) -> None:
    text_ = migrations.host_revision_text(revision="h2", down_revision="h1").replace(
        "def downgrade",
        "    op.execute('CREATE TABLE afterwards (id integer)')\n\n\ndef downgrade",
    )
    host.add("h2", text_)
    host.upgrade()
    assert any("afterwards" in name for name in read_catalog(host.engine))


def test_lock_timeout_of_the_host_is_as_before(pg_empty_engine: Engine, tmp_path: Path) -> None:
    host = make_host(tmp_path / "host", pg_empty_engine)
    host.add(
        "h1",
        migrations.host_revision_text(revision="h1", down_revision=None)
        .replace(
            "upgrade() -> None:", "upgrade() -> None:\n    op.execute(\"SET lock_timeout='7s'\")"
        )
        .replace(
            "def downgrade",
            "    op.execute(\"CREATE TABLE seen AS SELECT current_setting('lock_timeout') AS v\")"
            "\n\n\ndef downgrade",
        ),
    )
    host.upgrade()
    with pg_empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT v FROM seen")) == "7s"


@pytest.mark.parametrize("to", ["head", "9999", "", "base"])
def test_a_host_names_a_revision_that_exists(host: Host, to: str) -> None:
    with pytest.raises(InvalidValueError, match=f"expected '0001' to '{HEAD}'"):
        migrations.host_revision_text(revision="h2", down_revision="h1", to=to)
    with pytest.raises(InvalidValueError):
        migrations.upgrade(op, to=to)


def test_a_host_revision_goes_forward() -> None:
    with pytest.raises(InvalidValueError, match="does not come after"):
        migrations.host_revision_text(revision="h", down_revision=None, since="0004", to="0004")


def test_a_printed_downgrade_needs_to_know_what_is_applied(host: Host) -> None:
    text_ = migrations.host_revision_text(revision="h2", down_revision="h1")
    host.add("h2", text_.replace(f"to='base', since='{HEAD}'", "to='base'"))
    with pytest.raises(InvalidValueError, match="pass since="):
        host.printed("h2:h1", down=True)


def test_a_populated_database_moves_from_our_command_to_the_hosts_history(
    sql_empty_url: str, tmp_path: Path
) -> None:
    engine = plain_engine(sql_empty_url)
    upgrade_to(engine, "0003")
    host = make_host(tmp_path / "host", engine)
    host.add_table("h1", None, "orders")
    add_our_revisions(host)
    host.upgrade()
    SchemaManager(engine).validate()
