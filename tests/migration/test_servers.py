"""Databases that cannot hold a store are refused with the advice, before anything is written."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.pool import NullPool

from tests.fixtures.servers import with_driver
from threadmill_sa.errors import InvalidValueError, UnsupportedStoreError
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.servers import (
    check_server,
    check_supported,
    engine_url,
    is_supported,
    require_postgresql,
    require_sqlite,
)

IN_MEMORY = [
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite:///file::memory:?uri=true",
    "sqlite:///file::memory:?cache=shared&uri=true",
    "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
    "sqlite:///file:/shared?vfs=memdb&uri=true",
]


class OtherDialect(DefaultDialect):
    name = "otherdb"
    driver = "none"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls):
        return sqlite3


registry.register("otherdb", __name__, "OtherDialect")


@pytest.mark.parametrize("url", IN_MEMORY)
def test_every_spelling_of_an_in_memory_database_is_refused(url: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    assert not is_supported(engine)
    for operation in (
        lambda: check_supported(engine),
        lambda: check_server(engine),
        SchemaManager(engine).migrate,
        SchemaManager(engine).emit_clean_install_sql,
    ):
        with pytest.raises(UnsupportedStoreError, match=r"Threadmill\.in_memory\(\)"):
            operation()


def test_an_in_memory_database_behind_a_creator_is_refused_on_connect(tmp_path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path / 'a.db'}", creator=lambda: sqlite3.connect(":memory:")
    )
    with pytest.raises(UnsupportedStoreError, match="in-memory"):
        check_server(engine)
    engine.dispose()


def test_another_dialect_is_refused_by_name() -> None:
    engine = create_engine("otherdb://host/db")
    assert not is_supported(engine)
    with pytest.raises(UnsupportedStoreError, match="'otherdb' is not supported") as caught:
        SchemaManager(engine).migrate()
    assert caught.value.dialect == "otherdb"


def test_a_sync_engine_on_an_async_driver_is_refused(pg_url: str) -> None:
    engine = create_engine(with_driver(pg_url, "asyncpg"))
    with pytest.raises(UnsupportedStoreError, match="also="):
        check_supported(engine)


def test_supported_servers_pass(sql_engine) -> None:
    assert is_supported(sql_engine)
    check_server(sql_engine)


def test_a_named_schema_on_sqlite_is_refused(sqlite_empty_engine) -> None:
    manager = SchemaManager(sqlite_empty_engine, "tm")
    for operation in (manager.migrate, manager.validate, manager.emit_clean_install_sql):
        with pytest.raises(UnsupportedStoreError, match="'tm'"):
            operation()


@pytest.mark.parametrize(("number", "ok"), [(140_012, False), (150_000, True), (180_004, True)])
def test_postgresql_is_gated_by_its_version_number(number: int, ok: bool) -> None:
    if ok:
        require_postgresql(number)
        return
    with pytest.raises(UnsupportedStoreError, match="14 is too old, expected 15") as caught:
        require_postgresql(number)
    assert (caught.value.found, caught.value.expected) == (number, 150_000)


@pytest.mark.parametrize(("version", "ok"), [("3.34.1", False), ("3.35.0", True), ("4.0", True)])
def test_sqlite_is_gated_by_its_version(version: str, ok: bool) -> None:
    if ok:
        require_sqlite(version)
        return
    with pytest.raises(UnsupportedStoreError, match=r"3\.34\.1 is too old"):
        require_sqlite(version)


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("postgresql://a@b/c", "postgresql+psycopg"),
        ("postgres://a@b/c", "postgresql+psycopg"),
        ("postgresql+asyncpg://a@b/c", "postgresql+psycopg"),
        ("postgresql+psycopg://a@b/c", "postgresql+psycopg"),
        ("sqlite+aiosqlite:///a.db", "sqlite"),
        ("sqlite:///a.db", "sqlite"),
    ],
)
def test_a_url_gets_the_sync_driver(given: str, driver: str) -> None:
    assert engine_url(given).drivername == driver


def test_a_url_keeps_its_password_and_query() -> None:
    url = engine_url("postgresql://u:p%40w@h:5433/db?sslmode=require")
    assert (url.password, url.port, url.query["sslmode"]) == ("p@w", 5433, "require")


def test_a_text_that_is_no_url_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidValueError) as caught:
        engine_url("password=hunter2")
    assert "hunter2" not in str(caught.value)
