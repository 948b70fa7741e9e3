"""Locks, their decorators, and what only a leader calls."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import date
from functools import partial
from typing import Any

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
    Timings,
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


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_block_that_lost_its_term_takes_no_other_one(each_tm: Threadmill, how: str) -> None:
    """It failed: the lock campaigned again, for nobody, and kept others out."""

    def others_get_in(grant: Grant) -> None:
        lose(each_tm)
        assert grant.lost.wait(WAIT_SECONDS)
        # The first one to come gets it, and so does the next.
        for term in (grant.term + 1, grant.term + 2):
            with each_tm.lock("orders", timeout=5, timings=STEADY) as other:
                assert other.term == term

    lock = each_tm.lock("orders", timings=STEADY)

    async def block() -> None:
        async with lock as grant:
            await asyncio.to_thread(others_get_in, grant)

    def block_sync() -> None:
        with lock as grant:
            others_get_in(grant)

    with pytest.raises(LeadershipLostError):
        asyncio.run(block()) if how == "async" else block_sync()
    with lock as again:
        assert again.term == 4


def test_a_lock_that_lost_its_term_is_held_until_it_is_released(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    lock = tm.lock("orders", timings=FAST)
    grant = lock.acquire()
    faulty.fail("leases.renew")
    assert grant.lost.wait(WAIT_SECONDS)
    faulty.mend()
    attempts = faulty.calls("leases.acquire")
    lock._leader.wait_for(lambda: not lock._leader.running, WAIT_SECONDS)

    with pytest.raises(LockInUseError):
        lock.acquire()

    assert faulty.calls("leases.acquire") == attempts
    lock.release()
    assert lock.acquire().term == grant.term + 1
    lock.release()


def test_a_lock_that_a_forked_child_has_from_its_parent_is_not_its_own(tm: Threadmill) -> None:
    lock = tm.lock("orders", timings=FAST)
    with lock:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that threads are running
            child = os.fork()
        if child == 0:  # pragma: no cover - another process
            signal.alarm(int(WAIT_SECONDS))
            os.write(writing, repr(lock.try_acquire()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        assert os.read(reading, 100) == b"None"  # of the parent, and no error about re-entry
        os.close(reading)


def test_a_wait_that_another_thread_releases_ends(tm: Threadmill) -> None:
    waiting = tm.lock("orders", timings=FAST)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            waiting.acquire()
        except MutexBusyError as error:
            errors.append(error)

    with tm.lock("orders", timings=FAST):
        thread = threading.Thread(target=wait)
        thread.start()
        waiting._leader.wait_for(lambda: waiting._leader.observed, WAIT_SECONDS)
        waiting.release()
        thread.join(WAIT_SECONDS)

    assert len(errors) == 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_wait_takes_no_longer_than_its_timeout_while_the_store_hangs(
    tm: Threadmill, faulty: FaultingStore, how: str
) -> None:
    """It failed: giving up waited for the attempt that was under way."""
    gate = faulty.hold("leases.acquire")
    lock = tm.lock("orders", timeout=0.1, timings=Timings(ttl=60, call_timeout=8))
    began = time.monotonic()

    with pytest.raises(MutexBusyError):
        asyncio.run(lock.aacquire()) if how == "async" else lock.acquire()

    assert time.monotonic() - began < 4
    heard = threading.Event()
    assert faulty.inner.leases is not None
    faulty.inner.leases.watch("orders", heard.set)
    gate.open()
    assert heard.wait(WAIT_SECONDS)  # won after all, and given back
    with lock as grant:
        assert grant.term == 2


def test_a_mutex_that_an_open_fence_holds_up_is_busy(pg_engine: Engine) -> None:
    """It failed: the wait for the row was told as an outage of the store, and too late."""
    tm = Threadmill(pg_engine)
    calls: list[int] = []

    @tm.locked("orders", on_busy="skip", timings=FAST)
    def settle() -> None:
        calls.append(1)

    with pg_engine.connect() as connection:
        with tm.lock("orders", timings=FAST) as old:
            old.fence(connection)
        assert tm.lock("orders", timings=FAST).try_acquire() is None
        assert tm.lock("orders").try_acquire() is None
        settle()
        with pytest.raises(MutexBusyError) as caught:
            tm.lock("orders", timeout=0.6, timings=FAST).acquire()
        assert caught.value.holder is None  # it was given back
        began = time.monotonic()
        with pytest.raises(MutexBusyError):
            tm.lock("orders", timeout=0.1).acquire()
        assert time.monotonic() - began < 0.5
        connection.rollback()

    with tm.lock("orders", timeout=WAIT_SECONDS, timings=FAST) as grant:
        assert grant.term > old.term  # one may have come to those who had given up
    assert calls == []
    tm.close()


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


async def _settle(number: int) -> int:
    return number


class _Settle:
    async def __call__(self, number: int) -> int:
        return number


class _Static:
    settle = staticmethod(_settle)


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


class _Generator:
    def __call__(self) -> Iterator[int]:
        yield 1


LATER = {
    "function": _settle,
    "partial": partial(_settle),
    "object": _Settle(),
    "partial-of-object": partial(_Settle()),
    "static": _Static.__dict__["settle"],
}
NEVER = {
    "generator": _generator,
    "async-generator": _async_generator,
    "partial": partial(_generator),
    "object": _Generator(),
    "number": 5,
    "none": None,
}


@pytest.mark.parametrize("function", LATER.values(), ids=LATER)
def test_whatever_is_awaited_runs_while_the_mutex_is_held(
    tm: Threadmill, function: Callable[[int], Awaitable[int]]
) -> None:
    """It failed for all but plain coroutine functions: they ran when it was given back."""
    leader = tm.leader("leads", timings=FAST)
    only = leader_only(leader)(function)
    busy = tm.locked("orders", on_busy="skip", timings=FAST)(function)

    async def main() -> None:
        async with tm.lock("orders", timings=FAST):
            assert await busy(1) is None
        assert await busy(2) == 2
        with pytest.raises(NotLeaderError):
            await only(3)
        with leader:
            await asyncio.to_thread(leader.wait_leader, WAIT_SECONDS)
            assert await only(4) == 4

    asyncio.run(main())


@pytest.mark.parametrize("function", NEVER.values(), ids=NEVER)
def test_what_runs_nothing_when_it_is_called_is_refused(tm: Threadmill, function: Any) -> None:
    leader = tm.leader("orders")
    for decorate in (tm.locked("orders"), leader_only(leader)):
        with pytest.raises(DeclarationError, match=r"generator|expected a function"):
            decorate(function)


def test_a_function_that_returns_a_coroutine_is_told(tm: Threadmill) -> None:
    def returns_a_coroutine() -> Awaitable[int]:
        return _settle(1)

    with tm.leader("leads", timings=FAST) as leader:
        leader.wait_leader(WAIT_SECONDS)
        for decorate in (tm.locked("orders", timings=FAST), leader_only(leader)):
            with pytest.raises(DeclarationError, match="has not run"):
                decorate(returns_a_coroutine)()


def test_a_name_may_format_its_parameters(tm: Threadmill) -> None:
    """It failed: the template was tried with empty texts, which have no such format or part."""

    @tm.locked("report:{day.year}:{shard:03d}", timings=FAST)
    def report(day: date, shard: int) -> list[str]:
        return [view.name for view in tm.leases() if view.holder]

    assert report(date(2026, 1, 5), 7) == ["report:2026:007"]


@pytest.mark.parametrize("template", ["{}", "{0}", "{tenant}", "{tenant.id}", "{day"])
def test_a_template_that_no_parameter_fills_is_refused(tm: Threadmill, template: str) -> None:
    with pytest.raises(DeclarationError, match="cannot be made"):
        tm.locked(template)(lambda day: day)


def test_a_name_from_no_parameter_is_refused_at_the_definition(tm: Threadmill) -> None:
    with pytest.raises(DeclarationError, match="tenant"):
        tm.locked("report:{tenant}")(lambda: None)
    with pytest.raises(DeclarationError, match="tenant"):
        tm.locked("report:{tenant}")(partial(int, "1"))
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
