"""A schema that is missing, behind, ahead or edited is refused by name, with the command."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tests.migration.support import read_catalog, upgrade_to
from threadmill_sa.errors import (
    SchemaAheadError,
    SchemaBehindError,
    SchemaEditedError,
    SchemaMissingError,
)
from threadmill_sa.stores.sql.frozen import FROZEN, HEAD
from threadmill_sa.stores.sql.migrate import SchemaManager


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def test_a_migrated_database_is_valid(sql_engine: Engine) -> None:
    SchemaManager(sql_engine).validate()
    assert SchemaManager(sql_engine).current() == [entry.revision for entry in FROZEN]


def test_an_empty_database_is_missing_the_schema(sql_empty_engine: Engine) -> None:
    with pytest.raises(SchemaMissingError, match="threadmill-sa db upgrade") as caught:
        SchemaManager(sql_empty_engine).validate()
    assert caught.value.command == "threadmill-sa db upgrade"
    assert read_catalog(sql_empty_engine) == {}
    assert SchemaManager(sql_empty_engine).current() == []


def test_a_database_of_an_older_release_is_behind(sql_empty_engine: Engine) -> None:
    upgrade_to(sql_empty_engine, "0004")
    missing = [entry.revision for entry in FROZEN if entry.revision > "0004"]
    with pytest.raises(SchemaBehindError, match="'0005', '0006'") as caught:
        SchemaManager(sql_empty_engine).validate()
    assert caught.value.revisions == missing


def test_a_hole_in_the_history_is_behind(sql_engine: Engine) -> None:
    run(sql_engine, "DELETE FROM threadmill_schema_history WHERE revision = '0003'")
    with pytest.raises(SchemaBehindError) as caught:
        SchemaManager(sql_engine).validate()
    assert caught.value.revisions == ["0003"]


def test_a_revision_of_a_newer_release_is_ahead(sql_engine: Engine) -> None:
    run(
        sql_engine,
        "INSERT INTO threadmill_schema_history"
        " SELECT '0999', 'newer', checksum, applied_at FROM threadmill_schema_history"
        " WHERE revision = '0001'",
    )
    manager = SchemaManager(sql_engine)
    for operation in (manager.validate, manager.migrate, manager.emit_pending_sql):
        with pytest.raises(SchemaAheadError, match="'0999'"):
            operation()
    with pytest.raises(SchemaAheadError):
        manager.drop_and_migrate(allow_destructive_reset=True)


def test_an_edited_revision_is_refused_before_anything_is_applied(
    sql_empty_engine: Engine,
) -> None:
    upgrade_to(sql_empty_engine, "0003")
    run(
        sql_empty_engine,
        "UPDATE threadmill_schema_history SET checksum = 'other' WHERE revision = '0002'",
    )
    before = read_catalog(sql_empty_engine)
    manager = SchemaManager(sql_empty_engine)
    for operation in (manager.validate, manager.migrate, manager.emit_pending_sql):
        with pytest.raises(SchemaEditedError, match="'0002'") as caught:
            operation()
        assert caught.value.found == {"0002": "other"}
    assert read_catalog(sql_empty_engine) == before


def test_a_database_stamped_by_somebody_else_is_refused_by_name(sql_engine: Engine) -> None:
    run(sql_engine, "UPDATE threadmill_alembic_version SET version_num = 'ae1027a6acf'")
    with pytest.raises(SchemaAheadError, match="'ae1027a6acf'"):
        SchemaManager(sql_engine).migrate()


def test_a_stamp_that_contradicts_the_history_is_refused(sql_engine: Engine) -> None:
    run(sql_engine, "UPDATE threadmill_alembic_version SET version_num = '0002'")
    with pytest.raises(SchemaEditedError, match=HEAD):
        SchemaManager(sql_engine).migrate()


def test_migrating_at_head_changes_nothing(sql_engine: Engine) -> None:
    before = read_catalog(sql_engine)
    history = text("SELECT * FROM threadmill_schema_history ORDER BY revision")
    with sql_engine.connect() as connection:
        rows = connection.execute(history).all()
    SchemaManager(sql_engine).migrate()
    with sql_engine.connect() as connection:
        assert connection.execute(history).all() == rows
    assert read_catalog(sql_engine) == before


def test_the_users_own_engine_options_do_not_redirect_a_migration(
    pg_empty_engine: Engine,
) -> None:
    options = {"schema_translate_map": {None: "elsewhere"}, "isolation_level": "AUTOCOMMIT"}
    run(pg_empty_engine, "CREATE SCHEMA elsewhere")
    engine = pg_empty_engine.execution_options(**options)
    SchemaManager(engine).migrate()
    SchemaManager(engine).validate()
    assert read_catalog(pg_empty_engine, "elsewhere") == {}
    SchemaManager(pg_empty_engine).validate()
