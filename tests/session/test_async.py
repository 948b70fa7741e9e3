from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from tests.fixtures.servers import Server, postgres_keys, with_driver
from tests.fixtures.sql import engine_for
from tests.session.conftest import OTHER, PAUSED, PUMP, Desk, Order, open_desk
from threadmill_sa import sqlite
from threadmill_sa.errors import (
    AfterCommitError,
    TaskDisabledError,
    UnknownTaskError,
    UnsupportedSessionError,
)
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.nudge import EnqueueMode
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.sql.store import SqlStore

WAIT_SECONDS = 10.0
POSTGRES = [f"{key}/{driver}" for key in postgres_keys() for driver in ("psycopg", "asyncpg")]


@dataclass
class AsyncDesk:
    """A desk, and how a producer with an event loop reaches its database."""

    desk: Desk
    url: str
    engines: list[AsyncEngine]

    @asynccontextmanager
    async def engine(self, **options) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url, **options)
        if engine.dialect.name == "sqlite":
            sqlite.configure(engine)
        # What Threadmill(engine, also=[...]) does: the store knows the producer's engine.
        if isinstance(self.desk.store, SqlStore):
            self.desk.store._joining._engines += (engine.sync_engine,)
        try:
            yield engine
        finally:
            await engine.dispose()

    def run(self, work: Callable[[AsyncEngine], Awaitable[None]], **options) -> None:
        async def main() -> None:
            async with self.engine(**options) as engine, asyncio.timeout(WAIT_SECONDS):
                await work(engine)

        asyncio.run(main())


@pytest.fixture(params=["sqlite/aiosqlite", *POSTGRES])
def adesk(request, postgres_servers: Callable[[str], Server]):
    key, driver = request.param.split("/")
    if key == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        with engine_for(url) as engine:
            yield sql_desk(engine, with_driver(url, driver))
        return
    with postgres_servers(key).fresh_database() as url, engine_for(url) as engine:
        yield sql_desk(engine, with_driver(url, driver))


@pytest.fixture(params=POSTGRES)
def pg_adesk(request, postgres_servers: Callable[[str], Server]):
    key, driver = request.param.split("/")
    with postgres_servers(key).fresh_database() as url, engine_for(url) as engine:
        yield sql_desk(engine, with_driver(url, driver))


@pytest.fixture
def memory_adesk(sqlite_engine, sqlite_url):
    desk = open_desk(sqlite_engine, MemoryStore())
    return AsyncDesk(desk, with_driver(sqlite_url, "aiosqlite"), [])


def sql_desk(engine: Engine, url: str) -> AsyncDesk:
    return AsyncDesk(open_desk(engine, SqlStore(engine)), url, [])


def new_job() -> NewJob:
    return NewJob(id=JobId(uuid4()), handler="mail")


def jobs(desk: Desk) -> int:
    return sum(desk.store.jobs.counts().values())


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_a_commit_nudges_and_a_rollback_does_not(adesk, mode):
    boundary = adesk.desk.boundary

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order())
            [receipt] = await boundary.anudge([PUMP], session, mode=mode)
            await boundary.ainsert([new_job()], session, mode=mode)
            assert receipt.mode == mode
            await session.commit()
        async with AsyncSession(engine) as session:
            session.add(Order())
            await boundary.anudge([OTHER], session, mode=mode)
            await boundary.ainsert([new_job()], session, mode=mode)
            await session.rollback()
        async with AsyncSession(engine) as session:
            await boundary.anudge([OTHER], session, mode=mode)  # closed without a commit

    adesk.run(work)
    desk = adesk.desk
    assert (desk.orders(), desk.pending(PUMP), desk.pending(OTHER), jobs(desk)) == (1, 1, 0, 1)
    assert desk.wakes >= 1
    assert desk.written == []  # through the session's own engine, not the store's


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_savepoints(adesk, mode):
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order())
            async with session.begin_nested():
                await adesk.desk.boundary.anudge([PUMP], session, mode=mode)
            inner = await session.begin_nested()
            await adesk.desk.boundary.anudge([OTHER], session, mode=mode)
            await inner.rollback()

    adesk.run(work)
    assert (adesk.desk.pending(PUMP), adesk.desk.pending(OTHER)) == (1, 0)


def test_after_commit_with_a_pool_of_one(adesk):
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order())
            await adesk.desk.boundary.anudge([PUMP], session, mode="after_commit")
            await session.commit()
            assert await session.scalar(select(1)) == 1

    adesk.run(work, pool_size=1, max_overflow=0, pool_timeout=0.5)
    assert adesk.desk.pending() == 1


def test_an_async_connection_and_a_scoped_session_join(adesk):
    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await adesk.desk.boundary.anudge([PUMP], connection)
        async with engine.connect() as connection:
            with pytest.raises(AfterCommitError):
                await adesk.desk.boundary.anudge([OTHER], connection, mode="after_commit")
            await adesk.desk.boundary.anudge([OTHER], connection)
            await connection.rollback()
        registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await adesk.desk.boundary.ainsert([new_job()], registry)
        await registry.commit()
        await registry.remove()

    adesk.run(work)
    desk = adesk.desk
    assert (desk.pending(PUMP), desk.pending(OTHER), jobs(desk)) == (1, 0, 1)


@pytest.mark.parametrize("mode", list(EnqueueMode))
def test_refusals_come_at_the_call_and_leave_the_transaction_usable(adesk, mode):
    boundary = adesk.desk.boundary

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(UnknownTaskError):
                await boundary.anudge(["nobody"], session, mode=mode)
            with pytest.raises(TaskDisabledError):
                await boundary.anudge([PAUSED], session, mode=mode)
            session.add(Order())
            await session.commit()

    adesk.run(work)
    assert adesk.desk.orders() == 1


def test_the_sync_call_inside_run_sync_joins(adesk):
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order())
            await session.run_sync(lambda sync: adesk.desk.nudge([PUMP], sync))
            await session.run_sync(
                lambda sync: adesk.desk.nudge([OTHER], sync, mode="after_commit")
            )
            await session.commit()

    adesk.run(work)
    assert (adesk.desk.pending(PUMP), adesk.desk.pending(OTHER)) == (1, 1)


def test_the_same_boundary_serves_a_second_event_loop(adesk):
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await adesk.desk.boundary.anudge([PUMP], session, mode="after_commit")
            await session.commit()
        await adesk.desk.boundary.anudge([OTHER])

    adesk.run(work)
    adesk.run(work)
    assert (adesk.desk.pending(PUMP) >= 1, adesk.desk.written) == (True, [OTHER, OTHER])


def gate(desk: Desk) -> tuple[threading.Event, threading.Event]:
    """Make each write of the store's own wait for the second event, after setting the first."""
    begun, go = threading.Event(), threading.Event()

    def wait(_name: str) -> None:
        begun.set()
        assert go.wait(WAIT_SECONDS)

    desk.fail = wait
    return begun, go


@pytest.mark.parametrize("deferred", [False, True])
def test_the_event_loop_goes_on_during_a_write_of_the_stores_own(memory_adesk, deferred):
    desk = memory_adesk.desk
    begun, go = gate(desk)

    async def produce(engine: AsyncEngine) -> None:
        if not deferred:
            await desk.boundary.anudge([PUMP])
            return
        async with AsyncSession(engine) as session:
            session.add(Order())
            await desk.boundary.anudge([PUMP], session)
            await session.commit()

    async def work(engine: AsyncEngine) -> None:
        producing = asyncio.create_task(produce(engine))
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        assert not producing.done()  # and this very line runs: the loop is free
        go.set()
        await producing

    memory_adesk.run(work)
    assert desk.pending() == 1


def test_a_failing_deferred_write_never_reaches_the_async_commit(memory_adesk, counted):
    def fail(_name: str) -> None:
        raise OSError("away")

    memory_adesk.desk.fail = fail

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order())
            await memory_adesk.desk.boundary.anudge([PUMP], session)
            await session.commit()

    memory_adesk.run(work)
    assert memory_adesk.desk.orders() == 1
    assert counted("failed") == 1


SLOW_COMMIT = (
    """CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$""",
    """CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON desk_orders
       DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit()""",
)


def until_somebody_waits(engine: Engine) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        with engine.connect() as connection:
            if connection.scalar(waiting):
                return
        pause.wait(0.01)
    raise AssertionError("the commit did not reach the server in time")


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_a_cancelled_commit_never_nudges_without_its_rows(pg_adesk, mode):
    desk = pg_adesk.desk
    with desk.engine.begin() as connection:
        for statement in SLOW_COMMIT:
            connection.execute(text(statement))

    async def produce(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order())
            await desk.boundary.anudge([PUMP], session, mode=mode)
            await session.commit()

    async def work(engine: AsyncEngine) -> None:
        with desk.engine.connect() as holder:
            holder.execute(text("SELECT pg_advisory_xact_lock(4711)"))
            producing = asyncio.create_task(produce(engine))
            await asyncio.to_thread(until_somebody_waits, desk.engine)
            producing.cancel()
            with pytest.raises((asyncio.CancelledError, DBAPIError)):
                await producing
            holder.rollback()

    pg_adesk.run(work)
    if mode == "after_commit":
        assert desk.pending() == 0
    else:
        assert desk.pending() == desk.orders()


def test_a_task_cancelled_before_its_commit_nudges_nothing(adesk):
    ready = asyncio.Event()

    async def produce(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order())
            await adesk.desk.boundary.anudge([PUMP], session, mode="after_commit")
            await adesk.desk.boundary.anudge([OTHER], session)
            ready.set()
            await asyncio.Event().wait()
            await session.commit()

    async def work(engine: AsyncEngine) -> None:
        producing = asyncio.create_task(produce(engine))
        await ready.wait()
        producing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await producing

    adesk.run(work)
    desk = adesk.desk
    assert (desk.orders(), desk.pending(PUMP), desk.pending(OTHER)) == (0, 0, 0)


def test_handles_of_the_wrong_kind_are_refused_with_the_cure(memory_adesk):
    desk = memory_adesk.desk

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, engine.connect() as connection:
            registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            for handle in (session, connection, registry):
                with pytest.raises(UnsupportedSessionError, match="anudge"):
                    desk.nudge([PUMP], handle)
            for wrong in (engine, engine.sync_engine, "session", 7):
                with pytest.raises(UnsupportedSessionError, match="AsyncSession"):
                    await desk.boundary.anudge([PUMP], wrong)
            with pytest.raises(UnsupportedSessionError, match=r"tm\.nudge"):
                await desk.boundary.anudge([PUMP], session.sync_session)
        with pytest.raises(UnsupportedSessionError, match="not started"):
            await desk.boundary.anudge([PUMP], engine.connect())

    memory_adesk.run(work)
    assert desk.written == []
