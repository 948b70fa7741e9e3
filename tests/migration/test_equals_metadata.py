"""A fresh upgrade arrives exactly at the declared schema."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text

from tests.fixtures.servers import Server
from tests.migration.support import plain_engine, read_catalog
from threadmill_sa.stores.sql.history import VERSION_TABLE
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.schema import Schema

BY_REVISIONS_ONLY = ("trigger ", "function ")


def differences(engine: Engine, schema: str | None) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "version_table_schema": schema,
                "include_schemas": schema is not None,
                "compare_type": True,
            },
        )
        return list(compare_metadata(context, Schema(schema).metadata))


def test_alembic_sees_no_difference_after_a_fresh_upgrade(sql_engine: Engine) -> None:
    assert differences(sql_engine, None) == []


@pytest.mark.parametrize("schema", ["tm", "Odd schema"])
def test_alembic_sees_no_difference_in_a_named_schema(
    pg_empty_engine: Engine, schema: str
) -> None:
    SchemaManager(pg_empty_engine, schema).migrate()
    assert differences(pg_empty_engine, schema) == []


def test_postgresql_catalog_equals_the_metadata_created_directly(
    pg_engine: Engine, pg_server: Server
) -> None:
    with pg_server.fresh_database(template="template0") as url:
        direct = plain_engine(url)
        Schema().metadata.create_all(direct)
        declared = read_catalog(direct)
    assert tables_and_indexes(read_catalog(pg_engine)) == declared


def test_sqlite_catalog_equals_the_metadata_created_directly(
    sqlite_engine: Engine, sqlite_empty_url: str
) -> None:
    direct = plain_engine(sqlite_empty_url)
    Schema().metadata.create_all(direct)
    assert tables_and_indexes(read_catalog(sqlite_engine)) == read_catalog(direct)


def test_a_named_schema_has_the_same_catalog_as_the_default_one(pg_engine: Engine) -> None:
    SchemaManager(pg_engine, "Odd schema").migrate()
    assert read_catalog(pg_engine, "Odd schema") == read_catalog(pg_engine)


def test_the_identity_names_the_cluster_and_counts_no_epoch_yet(sql_engine: Engine) -> None:
    identity = Schema().store_identity
    with sql_engine.connect() as connection:
        row = connection.execute(identity.select()).one()
        expected = None
        if sql_engine.dialect.name == "postgresql":
            expected = connection.scalar(
                text("SELECT system_identifier::text FROM pg_control_system()")
            )
    assert (row.id, row.system_identifier, row.last_epoch) == (1, expected, 0)


def test_the_identity_is_null_where_the_server_keeps_it_to_itself(
    pg_empty_engine: Engine,
) -> None:
    with pg_empty_engine.begin() as connection:
        connection.execute(text("CREATE ROLE tm_identity_probe"))
        connection.execute(text("GRANT CREATE ON SCHEMA public TO tm_identity_probe"))
        connection.execute(text("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))
    try:
        limited = plain_engine(
            pg_empty_engine.url.update_query_dict(
                {"options": "-c role=tm_identity_probe"}
            ).render_as_string(hide_password=False)
        )
        SchemaManager(limited).migrate()
        with limited.connect() as connection:
            row = connection.execute(Schema().store_identity.select()).one()
        assert row.system_identifier is None
    finally:
        with pg_empty_engine.begin() as connection:
            connection.execute(text("DROP OWNED BY tm_identity_probe"))
            connection.execute(text("DROP ROLE tm_identity_probe"))


def tables_and_indexes(catalog: dict[str, str]) -> dict[str, str]:
    return {
        name: definition
        for name, definition in catalog.items()
        if not name.startswith(BY_REVISIONS_ONLY) and VERSION_TABLE not in name
    }
