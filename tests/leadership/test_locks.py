"""Locks, their decorators, and what only a leader calls."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.fixtures.servers import with_driver
from tests.leadership.conftest import FAST, STEADY
from threadmill_sa import (
    Grant,
    LeadershipLostError,
    LossReason,
    MutexBusyError,
    Threadmill,
    leader_only,
)
from threadmill_sa.errors import (
    AutocommitError,
    CannotJoinError,
    DeclarationError,
    InvalidValueError,
    LockInUseError,
    NotLeaderError,
    SchemaMissingError,
    StoreUnavailableError,
    UnsupportedSessionError,
)
from threadmill_sa.model.lease import Lease
from threadmill_sa.testing.stores import FaultingStore

WAIT_SECONDS = 20.0


def lose(tm: Threadmill, name: str = "orders") -> None:
    """Let somebody else have the mutex, whoever holds it."""
    leases = tm.store.leases
    assert leases is not None
    view = leases.peek(name)
    assert view is not None
    assert view.holder is not None
    leases.release(Lease(name, view.holder, view.term), timeout_seconds=1)


def test_a_block_holds_the_mutex_and_its_end_gives_it_back(each_tm: Threadmill) -> None:
    lock = each_tm.lock("orders", timings=STEADY)
    with lock as grant:
        assert grant
        assert lock.grant is grant
        assert each_tm.lock("orders", timings=STEADY).try_acquire() is None
    with each_tm.lock("orders", timeout=5, timings=STEADY) as after:
        assert after.term == grant.term + 1


def test_who_waits_is_let_in_by_the_release(each_tm: Threadmill) -> None:
    entered = threading.Event()

    def wait() -> None:
        with each_tm.lock("orders", timeout=WAIT_SECONDS, timings=STEADY):
            entered.set()

    with each_tm.lock("orders", timings=STEADY):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.2)
    thread.join(WAIT_SECONDS)

    assert entered.is_set()


def test_a_wait_that_is_over_names_the_holder(tm: Threadmill) -> None:
    with tm.lock("orders", timings=FAST) as grant:
        other = tm.lock("orders", timeout=0.1, timings=FAST)

        with pytest.raises(MutexBusyError) as caught, other:
            pass

        assert caught.value.holder == grant.lease.holder
        assert isinstance(caught.value, TimeoutError)
    with other:
        pass


def test_a_lock_is_not_re_entrant(tm: Threadmill) -> None:
    lock = tm.lock("orders", timings=FAST)
    with lock:
        with pytest.raises(LockInUseError), lock:
            pass
        assert lock.grant


def test_a_lock_can_be_used_again_and_released_twice(tm: Threadmill) -> None:
    lock = tm.lock("orders", timings=FAST)
    for term in (1, 2):
        assert lock.acquire().term == term
        lock.release()
        lock.release()
    assert lock.grant is None


def test_a_loss_is_told_at_the_end_of_the_block(tm: Threadmill) -> None:
    def block() -> None:
        with tm.lock("orders", timings=FAST) as grant:
            lose(tm)
            assert grant.lost.wait(WAIT_SECONDS)

    with pytest.raises(LeadershipLostError):
        block()


def test_a_loss_never_hides_what_the_block_raised(tm: Threadmill) -> None:
    def block() -> None:
        with tm.lock("orders", timings=FAST) as grant:
            lose(tm)
            grant.lost.wait(WAIT_SECONDS)
            raise KeyError

    with pytest.raises(KeyError):
        block()


def test_a_store_that_is_out_is_told_from_a_mutex_that_is_held(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    faulty.fail("leases.acquire")

    with pytest.raises(StoreUnavailableError):
        tm.lock("orders", timings=FAST).try_acquire()
    with pytest.raises(StoreUnavailableError):
        tm.lock("orders", timeout=0.1, timings=FAST).acquire()


def test_a_database_that_was_never_migrated_is_told_and_not_waited_for(
    sql_empty_engine: Engine,
) -> None:
    tm = Threadmill(sql_empty_engine)

    with pytest.raises(SchemaMissingError):
        tm.lock("orders", timings=FAST).acquire()
    tm.close()


# Decorators -----------------------------------------------------------------------------------


def test_each_call_of_a_locked_function_holds_the_mutex_of_its_parameters(tm: Threadmill) -> None:
    @tm.locked("report:{tenant}", timings=FAST)
    def report(tenant: str, *, twice: bool = False) -> str:
        assert [view.name for view in tm.leases() if view.holder] == [f"report:{tenant}"]
        return tenant

    assert report("a") == "a"
    assert report(tenant="b", twice=True) == "b"


@pytest.mark.parametrize("on_busy", ["raise", "skip"])
def test_a_locked_function_whose_mutex_is_held(tm: Threadmill, on_busy: str) -> None:
    calls = []

    @tm.locked("orders", on_busy=on_busy, timings=FAST)
    def settle() -> None:
        calls.append(1)

    with tm.lock("orders", timings=FAST):
        if on_busy == "raise":
            with pytest.raises(MutexBusyError):
                settle()
        else:
            settle()

    assert calls == []


def test_a_busy_mutex_inside_of_a_function_is_not_taken_for_its_own(tm: Threadmill) -> None:
    @tm.locked("orders", on_busy="skip", timings=FAST)
    def settle() -> None:
        raise MutexBusyError("of another")

    with pytest.raises(MutexBusyError, match="of another"):
        settle()


def test_a_locked_coroutine_function(tm: Threadmill) -> None:
    @tm.locked("orders", on_busy="wait", timings=FAST)
    async def settle(number: int) -> int:
        return number

    @tm.locked("orders", on_busy="skip", timings=FAST)
    async def skip() -> int:
        return 1

    async def main() -> None:
        assert await asyncio.gather(settle(1), settle(2)) == [1, 2]  # type: ignore[comparison-overlap]
        async with tm.lock("orders", timings=FAST):
            assert await skip() is None

    asyncio.run(main())


def test_a_name_from_no_parameter_is_refused_at_the_definition(tm: Threadmill) -> None:
    with pytest.raises(DeclarationError, match="tenant"):
        tm.locked("report:{tenant}")(lambda: None)
    with pytest.raises(InvalidValueError, match="'raise', 'skip', 'wait'"):
        tm.locked("report", on_busy="never")


@pytest.mark.parametrize("otherwise", ["raise", "skip"])
def test_only_the_leader_calls(tm: Threadmill, otherwise: str) -> None:
    leader = tm.leader("orders", timings=FAST)

    @leader_only(leader, otherwise=otherwise)
    def settle() -> int:
        return 1

    @leader_only(leader, otherwise=otherwise)
    async def settle_async() -> int:
        return 2

    if otherwise == "raise":
        with pytest.raises(NotLeaderError):
            settle()
    else:
        assert settle() is None
        assert asyncio.run(settle_async()) is None
    with leader:
        leader.wait_leader(WAIT_SECONDS)
        assert settle() == 1
        assert asyncio.run(settle_async()) == 2


# The fence through a grant ---------------------------------------------------------------------


def test_a_fenced_write_commits_while_the_term_holds_and_never_after(sql_engine: Engine) -> None:
    tm = Threadmill(sql_engine)
    with sql_engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (term integer)"))
    write = text("INSERT INTO ledger VALUES (:term)")
    leader = tm.leader("orders", timings=STEADY).start()
    grant = leader.wait_leader(WAIT_SECONDS)
    assert grant is not None
    with Session(sql_engine) as session, session.begin():
        session.execute(write, {"term": grant.fence(session)})
    with sql_engine.begin() as connection:
        connection.execute(write, {"term": grant.fence(connection)})
    lose(tm)

    def write_late() -> None:
        with Session(sql_engine) as session, session.begin():
            session.execute(write, {"term": -1})
            grant.fence(session)

    with pytest.raises(LeadershipLostError):
        write_late()

    leader.stop()
    with sql_engine.connect() as connection:
        assert list(connection.execute(text("SELECT term FROM ledger")).scalars()) == [1, 1]
    tm.close()


def test_a_fence_needs_a_transaction_that_it_can_ride(pg_engine: Engine, tm: Threadmill) -> None:
    sql = Threadmill(pg_engine)
    with sql.lock("orders", timings=STEADY) as grant:
        with pytest.raises(UnsupportedSessionError):
            grant.fence(None)
        autocommit = pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with autocommit, pytest.raises(AutocommitError):
            grant.fence(autocommit)
    in_memory = tm.lock("orders", timings=STEADY)
    with in_memory as grant, pg_engine.begin() as connection, pytest.raises(CannotJoinError):
        grant.fence(connection)
    sql.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_fence_in_an_async_transaction(pg_engine: Engine, driver: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    url = with_driver(pg_engine.url.render_as_string(hide_password=False), driver)
    engine = create_async_engine(url)
    tm = Threadmill(pg_engine, also=[engine])

    async def write_late(grant: Grant) -> None:
        async with engine.begin() as connection:
            await grant.afence(connection)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            grant = await stack.enter_async_context(tm.lock("orders", timings=STEADY))
            async with AsyncSession(engine) as session, session.begin():
                assert await grant.afence(session) == grant.term
            async with engine.begin() as connection:
                assert await grant.afence(connection) == grant.term
            lose(tm)
            with pytest.raises(LeadershipLostError):
                await write_late(grant)
            assert await grant.wait_lost() is LossReason.TAKEN_OVER

    with pytest.raises(LeadershipLostError):
        asyncio.run(main())
    tm.close()
