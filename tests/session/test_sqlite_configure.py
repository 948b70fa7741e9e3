from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import weakref
from typing import Any

import pytest
from sqlalchemy import create_engine, event, exc, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.session.conftest import PUMP
from threadmill_sa.errors import InvalidValueError, UnsupportedStoreError
from threadmill_sa.sqlite import configure, is_configured


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'plain.db'}"


@pytest.fixture
def engine(url):
    engine = create_engine(url)
    configure(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER PRIMARY KEY)"))
    yield engine
    engine.dispose()


def count(engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM t")) or 0)


def statements(engine) -> list[str]:
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    return seen


def test_a_savepoint_first_is_undone_by_the_outer_rollback(engine):
    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(text("INSERT INTO t VALUES (1)"))
        connection.rollback()
    assert count(engine) == 0


def test_wal_and_the_busy_timeout_are_set(url):
    engine = create_engine(url)
    configure(engine, busy_timeout=1.5)
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA busy_timeout")) == 1500
    engine.dispose()


def test_wal_can_be_left_out(url):
    engine = create_engine(url)
    configure(engine, wal=False)
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "delete"
    engine.dispose()


def test_configuring_again_replaces_the_settings_and_begins_once(engine):
    configure(engine, busy_timeout=2)
    configure(engine.execution_options(tag="copy"), busy_timeout=3)
    engine.dispose()
    seen = statements(engine)
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA busy_timeout")) == 3000
    assert seen.count("BEGIN") == 1


def test_an_engine_that_was_used_before_is_configured_too(url):
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    configure(engine, busy_timeout=4)
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA busy_timeout")) == 4000
    engine.dispose()


def test_copies_share_the_recipe_whichever_was_configured(url):
    engine = create_engine(url)
    copy = engine.execution_options(tag="copy").execution_options(tag="copy of the copy")
    configure(copy)
    assert is_configured(engine)
    assert is_configured(copy)
    assert is_configured(engine.execution_options(tag="later"))
    for one in (engine, copy):
        seen = statements(one)
        with one.connect() as connection:
            connection.execute(text("SELECT 1"))
        assert "BEGIN" in seen
    engine.dispose()


def test_an_option_takes_the_write_lock_at_once(engine):
    seen = statements(engine)
    with engine.execution_options(threadmill_begin="IMMEDIATE").begin() as connection:
        connection.execute(text("SELECT 1"))
    assert seen[0] == "BEGIN IMMEDIATE"
    with (
        pytest.raises(InvalidValueError, match="DEFERRED, IMMEDIATE, EXCLUSIVE"),
        engine.execution_options(threadmill_begin="NOW; DROP").begin(),
    ):
        pass


def test_autocommit_connections_stay_autocommit_and_do_no_harm_afterwards(engine):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("INSERT INTO t VALUES (1)"))
        assert not connection.connection.dbapi_connection.in_transaction
    assert count(engine) == 1
    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(text("INSERT INTO t VALUES (2)"))
        connection.rollback()
    assert count(engine) == 1


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "READ UNCOMMITTED"])
def test_a_use_at_another_isolation_level_leaves_joining_in_savepoints_intact(sqlite_desk, level):
    with sqlite_desk.engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT 1"))
    with Session(sqlite_desk.engine) as session, session.begin(), session.begin_nested():
        sqlite_desk.nudge([PUMP], session)
    assert sqlite_desk.pending() == 1


def test_an_async_use_in_autocommit_leaves_the_begin_to_sqlalchemy(url):
    async def run() -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        configure(engine)
        async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            await connection.execute(text("SELECT 1"))
        async with engine.begin() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            assert driver.isolation_level is None
            assert driver.in_transaction
        await engine.dispose()

    asyncio.run(run())


def test_a_refused_commit_leaves_no_transaction_in_the_pool(engine):
    @event.listens_for(engine, "connect")
    def foreign_keys(dbapi_connection, _record) -> None:
        dbapi_connection.execute("PRAGMA foreign_keys = ON")

    engine.dispose()
    child = "CREATE TABLE c (x INTEGER REFERENCES t (x) DEFERRABLE INITIALLY DEFERRED)"
    with engine.begin() as connection:
        connection.execute(text(child))
    with Session(engine) as session:
        session.execute(text("INSERT INTO c VALUES (4711)"))
        with pytest.raises(exc.IntegrityError):
            session.commit()
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM c")) == 0


def test_the_switch_to_wal_waits_for_a_writer(url, tmp_path):
    engine = create_engine(url)
    configure(engine)
    waiting, modes = threading.Event(), []

    @event.listens_for(engine, "connect", insert=True)
    def watch(dbapi_connection, _record) -> None:
        dbapi_connection.set_trace_callback(
            lambda statement: waiting.set() if statement == "BEGIN IMMEDIATE" else None
        )

    def connect() -> None:
        with engine.connect() as connection:
            modes.append(connection.scalar(text("PRAGMA journal_mode")))

    writer = sqlite3.connect(tmp_path / "plain.db", isolation_level=None)
    writer.execute("CREATE TABLE t (x INTEGER)")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES (1)")
    thread = threading.Thread(target=connect)
    thread.start()
    assert waiting.wait(timeout=10.0)
    writer.execute("COMMIT")
    writer.close()
    thread.join(timeout=10.0)
    assert modes == ["wal"]
    engine.dispose()


def test_many_first_connections_at_once_all_reach_wal(url):
    barrier, failures = threading.Barrier(8), []

    def first(number: int) -> None:
        engine = create_engine(url)
        configure(engine)
        barrier.wait(timeout=10.0)
        try:
            with engine.begin() as connection:
                connection.execute(text(f"CREATE TABLE t{number} (x INTEGER)"))
                assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        except exc.DBAPIError as error:
            failures.append(error)
        engine.dispose()

    threads = [threading.Thread(target=first, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30.0)
    assert failures == []


def test_an_async_engine_is_configured_the_same(tmp_path):
    async def main() -> list[object]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}")
        assert not is_configured(engine)
        configure(engine, busy_timeout=1)
        assert is_configured(engine)
        assert is_configured(engine.sync_engine)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE t (x INTEGER)"))
        async with engine.connect() as connection:
            async with connection.begin_nested():
                await connection.execute(text("INSERT INTO t VALUES (1)"))
            await connection.rollback()
            rows = await connection.scalar(text("SELECT count(*) FROM t"))
            mode = await connection.scalar(text("PRAGMA journal_mode"))
            busy = await connection.scalar(text("PRAGMA busy_timeout"))
        await engine.dispose()
        return [rows, mode, busy]

    assert asyncio.run(main()) == [0, "wal", 1000]


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:name?mode=memory&uri=true",
        "postgresql+psycopg://localhost/nowhere",
    ],
)
def test_memory_and_other_dialects_are_refused(url):
    engine = create_engine(url, poolclass=NullPool)
    with pytest.raises(UnsupportedStoreError):
        configure(engine)
    assert not is_configured(engine)


@pytest.mark.parametrize("wrong", [None, "sqlite:///x.db", object()])
def test_anything_but_an_engine_is_refused(wrong):
    with pytest.raises(UnsupportedStoreError, match="needs an Engine"):
        configure(wrong)


def test_an_engine_that_would_skip_rollbacks_is_refused(url):
    try:
        engine = create_engine(url, skip_autocommit_rollback=True)
    except TypeError:
        pytest.skip("this SQLAlchemy has no such option")
    with pytest.raises(UnsupportedStoreError, match="skip_autocommit_rollback"):
        configure(engine)


@pytest.mark.parametrize("wrong", [-1, float("nan"), 1e9, "30", True, None])
def test_a_busy_timeout_out_of_bounds_is_refused(url, wrong):
    engine = create_engine(url)
    with pytest.raises(InvalidValueError, match="busy_timeout"):
        configure(engine, busy_timeout=wrong)
    assert not is_configured(engine)


def test_a_configured_engine_is_not_kept_alive(url):
    engine = create_engine(url)
    configure(engine)
    gone = weakref.ref(engine)
    engine.dispose()
    del engine
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(
    not hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"), reason="Python 3.12 brought this control"
)
@pytest.mark.parametrize("control", [True, False])
def test_the_drivers_newer_transaction_control_is_put_back(url, control):
    engine = create_engine(url, connect_args={"autocommit": control})
    configure(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO t VALUES (1)"))
        connection.rollback()
    assert count(engine) == 0
    engine.dispose()
