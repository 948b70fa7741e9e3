"""Every driver and every kind of session carries a nudge and a job in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import threadmill_sa.sqlite
from tests.fixtures.servers import with_driver
from tests.promises.shop import OTHER, PUMP, WAIT_SECONDS, Shop
from threadmill_sa import Threadmill
from threadmill_sa.errors import (
    AutocommitError,
    ForeignSessionError,
    StoreUnavailableError,
    TaskDisabledError,
    UnknownTaskError,
)

ISOLATIONS = [None, "REPEATABLE READ", "SERIALIZABLE"]


class OwnSession(Session):
    """A host's subclass."""


class OwnAsyncSession(AsyncSession):
    """A host's subclass."""


def _scoped(engine: Engine) -> Any:
    return scoped_session(sessionmaker(engine))


SYNC: dict[str, Callable[[Engine], Any]] = {
    "Session": Session,
    "a subclass": OwnSession,
    "sessionmaker": lambda engine: sessionmaker(engine, expire_on_commit=False)(),
    "sessionmaker of a class": lambda engine: sessionmaker(engine, class_=OwnSession)(),
    "scoped_session": _scoped,
    "Connection": lambda engine: engine.connect(),
    "execution options": lambda engine: Session(engine.execution_options(logging_token="x")),
}


@contextmanager
def _shop(url: str) -> Iterator[Shop]:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        threadmill_sa.sqlite.configure(engine)
    tm = Threadmill(engine)
    try:
        yield Shop(tm, engine)
    finally:
        tm.close()
        engine.dispose()


@pytest.fixture
def shop(sql_url: str) -> Iterator[Shop]:
    with _shop(sql_url) as shop:
        yield shop


@pytest.mark.parametrize("kind", SYNC)
def test_a_sync_handle_joins_and_shares_the_fate_of_the_rows(shop: Shop, kind: str):
    for end, expected in (("rollback", 0), ("commit", 1)):
        caller = SYNC[kind](shop.sql)
        caller.execute(text("INSERT INTO orders DEFAULT VALUES"))
        shop.tm.nudge(PUMP, caller)
        shop.tm.nudge_many([PUMP, OTHER], caller)
        shop.tm.enqueue("mail", 1, session=caller)
        shop.tm.enqueue_many([("mail", 1), ("mail", 2)], caller)
        getattr(caller, end)()
        getattr(caller, "remove", caller.close)()

        assert (shop.pending(PUMP), shop.pending(OTHER)) == (bool(expected), bool(expected))
        assert len(shop.tm.list_jobs()) == 3 * expected


@pytest.mark.parametrize("kind", [kind for kind in SYNC if kind != "Connection"])
def test_a_sync_session_writes_after_its_commit(shop: Shop, kind: str):
    for end, expected in (("rollback", 0), ("commit", 1)):
        caller = SYNC[kind](shop.sql)
        caller.execute(text("INSERT INTO orders DEFAULT VALUES"))
        shop.tm.nudge(PUMP, caller, mode="after_commit")
        shop.tm.enqueue("mail", 1, session=caller, mode="after_commit")
        assert not shop.pending()
        getattr(caller, end)()
        getattr(caller, "remove", caller.close)()

        assert shop.pending() is bool(expected)
        assert len(shop.tm.list_jobs()) == expected


ASYNC_DRIVERS = {"postgresql": ["psycopg", "asyncpg"], "sqlite": ["aiosqlite"]}


def _async_drivers(url: str) -> list[str]:
    return ASYNC_DRIVERS["sqlite" if url.startswith("sqlite") else "postgresql"]


def _run(
    url: str, driver: str, work: Callable[[Shop, AsyncEngine], Coroutine[Any, Any, None]]
) -> None:
    """Run `work` with a Threadmill that also knows an async engine of the same database."""

    async def main() -> None:
        engine = create_engine(url)
        also = create_async_engine(with_driver(url, driver))
        if engine.dialect.name == "sqlite":
            threadmill_sa.sqlite.configure(engine)
            threadmill_sa.sqlite.configure(also)
        tm = Threadmill(engine, also=[also])
        try:
            await asyncio.wait_for(work(Shop(tm, engine), also), WAIT_SECONDS)
        finally:
            tm.close()
            await also.dispose()
            engine.dispose()

    asyncio.run(main())


ASYNC: dict[str, Callable[[AsyncEngine], Any]] = {
    "AsyncSession": AsyncSession,
    "a subclass": OwnAsyncSession,
    "async_sessionmaker": lambda engine: async_sessionmaker(engine, expire_on_commit=False)(),
    "async_scoped_session": lambda engine: async_scoped_session(
        async_sessionmaker(engine), scopefunc=asyncio.current_task
    ),
    "with a sync class": lambda engine: AsyncSession(engine, sync_session_class=OwnSession),
}


async def _close(caller: Any) -> None:
    if isinstance(caller, async_scoped_session):
        await caller.remove()
    else:
        await caller.close()


@pytest.mark.parametrize("number", [0, 1])
def test_an_async_session_of_each_kind_joins_waits_and_writes_at_once(sql_url: str, number: int):
    drivers = _async_drivers(sql_url)
    driver = drivers[number % len(drivers)]

    async def work(shop: Shop, engine: AsyncEngine) -> None:
        for count, (kind, make) in enumerate(ASYNC.items(), 1):
            undone = make(engine)
            await shop.tm.anudge(PUMP, undone)
            await shop.tm.aenqueue("mail", 1, session=undone)
            await undone.rollback()
            await _close(undone)
            assert not shop.pending(), kind

            caller = make(engine)
            await caller.execute(text("INSERT INTO orders DEFAULT VALUES"))
            await shop.tm.anudge_many([OTHER, PUMP], caller)
            await shop.tm.aenqueue_many([("mail", 1), ("mail", 2)], caller)
            async with caller.begin_nested():
                await shop.tm.aenqueue("mail", 3, session=caller, delay=9)
            await caller.commit()
            await _close(caller)
            assert shop.pending(PUMP), kind
            assert len(shop.tm.list_jobs()) == 3 * count
            shop.tm.set_enabled(PUMP, False)
            shop.tm.set_enabled(PUMP, True)

    _run(sql_url, driver, work)


@pytest.mark.parametrize("number", [0, 1])
def test_an_async_connection_joins(sql_url: str, number: int):
    drivers = _async_drivers(sql_url)
    driver = drivers[number % len(drivers)]

    async def work(shop: Shop, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await _write(shop, connection)
            await connection.rollback()
            assert not shop.pending()
            await _write(shop, connection)
            await connection.commit()
        assert shop.pending()
        assert len(shop.tm.list_jobs()) == 1

    _run(sql_url, driver, work)


async def _write(shop: Shop, connection: AsyncConnection) -> None:
    await shop.tm.anudge(PUMP, connection)
    async with connection.begin_nested() as savepoint:
        await shop.tm.anudge(OTHER, connection)
        await savepoint.rollback()
    await shop.tm.aenqueue("mail", 1, session=connection)


@pytest.mark.parametrize("number", [0, 1])
def test_an_async_session_writes_after_its_commit_and_refuses_at_the_call(
    sql_url: str, number: int
):
    drivers = _async_drivers(sql_url)
    driver = drivers[number % len(drivers)]

    async def work(shop: Shop, engine: AsyncEngine) -> None:
        shop.tm.set_enabled(OTHER, False)
        async with AsyncSession(engine) as session:
            for mode in ("after_commit", "join_transaction"):
                with pytest.raises(TaskDisabledError):
                    await shop.tm.anudge(OTHER, session, mode=mode)
                with pytest.raises(UnknownTaskError):
                    await shop.tm.anudge("nobody", session, mode=mode)
            await shop.tm.anudge(PUMP, session, mode="after_commit")
            await session.rollback()
            assert not shop.pending()
            await session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            await shop.tm.anudge(PUMP, session, mode="after_commit")
            await shop.tm.aenqueue("mail", 1, session=session, mode="after_commit")
            assert not shop.pending()
            await session.commit()
        assert shop.pending()
        assert len(shop.tm.list_jobs()) == 1
        await shop.tm.anudge(PUMP)
        await shop.tm.aenqueue("mail", 2)
        assert len(shop.tm.list_jobs()) == 2

    _run(sql_url, driver, work)


@pytest.mark.parametrize("driver", ASYNC_DRIVERS["postgresql"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_async_caller_of_any_isolation_meets_no_error_beside_ticks(
    pg_url: str, driver: str, isolation: str | None
):
    async def produce(shop: Shop, engine: AsyncEngine, names: list[str]) -> None:
        options = {} if isolation is None else {"isolation_level": isolation}
        for _ in range(5):
            async with AsyncSession(engine.execution_options(**options)) as session:
                await session.execute(text("INSERT INTO orders DEFAULT VALUES"))
                for name in names:
                    await shop.tm.anudge(name, session)
                await shop.tm.aenqueue("mail", 1, session=session)
                await session.commit()

    async def work(shop: Shop, engine: AsyncEngine) -> None:
        names = [PUMP, OTHER]
        producers = [produce(shop, engine, names[:: 1 if n % 2 else -1]) for n in range(6)]
        ticking = asyncio.create_task(_tick(shop))
        await asyncio.gather(*producers)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        shop.settle()
        assert not shop.pending(PUMP)

    _run(pg_url, driver, work)


async def _tick(shop: Shop) -> None:
    while True:
        await asyncio.to_thread(shop.tick)
        await asyncio.to_thread(shop.run_all)


@pytest.mark.parametrize("number", [0, 1])
def test_async_autocommit_is_refused_by_name(sql_url: str, number: int):
    drivers = _async_drivers(sql_url)
    driver = drivers[number % len(drivers)]

    async def work(shop: Shop, engine: AsyncEngine) -> None:
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as connection:
            with pytest.raises(AutocommitError):
                await shop.tm.anudge(PUMP, connection)
        async with AsyncSession(autocommit) as session:
            with pytest.raises(AutocommitError):
                await shop.tm.aenqueue("mail", 1, session=session)
        assert not shop.pending()

    _run(sql_url, driver, work)


def test_an_async_engine_that_threadmill_does_not_know_is_refused_and_also_is_named(sql_url: str):
    async def main() -> None:
        engine = create_async_engine(with_driver(sql_url, _async_drivers(sql_url)[0]))
        with _shop(sql_url) as shop:
            async with AsyncSession(engine) as session:
                with pytest.raises(ForeignSessionError, match="also="):
                    await shop.tm.anudge(PUMP, session)
        await engine.dispose()

    asyncio.run(main())


def test_a_pool_of_one_serves_every_mode_and_immediate_beside_it_names_join(sql_url: str):
    engine = create_engine(sql_url, pool_size=1, max_overflow=0, pool_timeout=0.2)
    if engine.dialect.name == "sqlite":
        threadmill_sa.sqlite.configure(engine)
    shop = Shop(Threadmill(engine), engine)
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        shop.tm.nudge(PUMP, session)
        shop.tm.enqueue("mail", 1, session=session)
        session.commit()
        shop.tm.nudge(OTHER, session, mode="after_commit")
        shop.tm.enqueue("mail", 1, session=session, mode="after_commit")
        session.commit()
        session.execute(text("SELECT 1"))
        for call in (lambda: shop.tm.nudge(PUMP), lambda: shop.tm.enqueue("mail", 2)):
            with pytest.raises(StoreUnavailableError, match="join"):
                call()
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        session.commit()

    assert (shop.pending(PUMP), shop.pending(OTHER)) == (True, True)
    assert len(shop.tm.list_jobs()) == 2
    shop.tm.close()
    engine.dispose()


def test_an_async_pool_of_one_serves_after_commit_and_join(sql_url: str):
    driver = _async_drivers(sql_url)[0]

    async def main() -> None:
        engine = create_engine(sql_url)
        also = create_async_engine(
            with_driver(sql_url, driver), pool_size=1, max_overflow=0, pool_timeout=1
        )
        if engine.dialect.name == "sqlite":
            threadmill_sa.sqlite.configure(engine)
            threadmill_sa.sqlite.configure(also)
        tm = Threadmill(engine, also=[also])
        shop = Shop(tm, engine)
        async with AsyncSession(also) as session:
            await shop.tm.anudge(PUMP, session)
            await shop.tm.aenqueue("mail", 1, session=session)
            await session.commit()
            await shop.tm.anudge(OTHER, session, mode="after_commit")
            await session.commit()
        assert (shop.pending(PUMP), shop.pending(OTHER)) == (True, True)
        tm.close()
        await also.dispose()
        engine.dispose()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def test_a_failed_transaction_of_the_caller_gets_its_own_error_and_no_other(pg_url: str):
    with _shop(pg_url) as shop, Session(shop.sql) as session:
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT 1/0"))
        with pytest.raises(DBAPIError, match="aborted"):
            shop.tm.nudge(PUMP, session)
        session.rollback()
        shop.tm.nudge(PUMP, session)
        session.commit()
        assert shop.pending()
