"""A host's `alembic revision --autogenerate` leaves our tables alone, and only ours."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, Column, Engine, Integer, MetaData, String, Table

from threadmill_sa import migrations
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.schema import Schema

HELPERS: dict[str, dict[str, Any]] = {
    "include_name": {"include_name": migrations.include_name},
    "include_object": {"include_object": migrations.include_object},
    "both": {
        "include_name": migrations.include_name,
        "include_object": migrations.include_object,
    },
}
CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def host_metadata(**options: Any) -> MetaData:
    metadata = MetaData(**options)
    Table(
        "orders",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("number", String(20), index=True, unique=True),
        CheckConstraint("id > 0", name="positive"),
    )
    return metadata


def operations(engine: Engine, metadata: MetaData, **options: Any) -> list[Any]:
    """The operations that autogenerate would write, as (kind, table)."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)
    return [(kind, getattr(item, "name", item)) for kind, item, *_ in found]


@pytest.mark.parametrize("helper", HELPERS)
def test_the_diff_is_empty_with_a_helper(sql_engine: Engine, helper: str) -> None:
    metadata = host_metadata()
    metadata.create_all(sql_engine)
    assert operations(sql_engine, metadata, **HELPERS[helper]) == []


def test_without_a_helper_our_tables_would_be_dropped(sql_engine: Engine) -> None:
    dropped = {name for kind, name in operations(sql_engine, MetaData()) if kind == "remove_table"}
    assert {"threadmill_jobs", "threadmill_alembic_version"} <= dropped


@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("schema", ["tm", "Odd schema"])
def test_the_diff_is_empty_with_schemas_included(
    pg_empty_engine: Engine, helper: str, schema: str
) -> None:
    SchemaManager(pg_empty_engine, schema).migrate()
    metadata = host_metadata()
    metadata.create_all(pg_empty_engine)
    assert operations(pg_empty_engine, metadata, include_schemas=True, **HELPERS[helper]) == []


@pytest.mark.parametrize("helper", HELPERS)
def test_a_naming_convention_of_the_host_changes_nothing(sql_engine: Engine, helper: str) -> None:
    metadata = host_metadata(naming_convention=CONVENTION)
    metadata.create_all(sql_engine)
    assert operations(sql_engine, metadata, **HELPERS[helper]) == []


@pytest.mark.parametrize("helper", HELPERS)
def test_a_model_that_the_user_removes_is_still_dropped(sql_engine: Engine, helper: str) -> None:
    host_metadata().create_all(sql_engine)
    found = operations(sql_engine, MetaData(), **HELPERS[helper])
    assert ("remove_table", "orders") in found
    assert not [name for _, name in found if str(name).startswith("threadmill_")]


def test_tables_of_ours_in_the_hosts_metadata_are_not_created(sql_empty_engine: Engine) -> None:
    metadata = host_metadata()
    for table in Schema().metadata.sorted_tables:
        table.to_metadata(metadata)
    found = operations(sql_empty_engine, metadata, include_object=migrations.include_object)
    assert {name for kind, name in found if kind == "add_table"} == {"orders"}


@pytest.mark.parametrize("helper", HELPERS)
def test_an_index_added_to_our_table_by_hand_is_left_alone(
    sql_engine: Engine, helper: str
) -> None:
    with sql_engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX by_hand ON threadmill_jobs (handler)")
    assert operations(sql_engine, MetaData(), **HELPERS[helper]) == []
