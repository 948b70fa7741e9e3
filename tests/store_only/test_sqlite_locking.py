"""SQLite has one writer: the forms of N7 and N8 that hold there, whoever opened the engine."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import threadmill_sa.sqlite
from tests.promises.shop import PUMP, WAIT_SECONDS, Shop, in_thread
from threadmill_sa import Threadmill
from threadmill_sa.errors import AutocommitError, SavepointError, StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.testing.clock import ManualClock

AUTOCOMMIT_ATTRIBUTE = sys.version_info >= (3, 12)


@pytest.fixture
def open_engine(sqlite_url: str) -> Iterator[Callable[..., Engine]]:
    """Engines on one file, as different users make them."""
    made: list[Engine] = []

    def make(kind: str = "configured", **arguments: Any) -> Engine:
        engine = create_engine(sqlite_url, **arguments)
        made.append(engine)
        if kind == "configured":
            threadmill_sa.sqlite.configure(engine)
        elif kind == "host's own recipe":
            _documented_recipe(engine)
        return engine

    yield make
    for engine in made:
        engine.dispose()


def _documented_recipe(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


KINDS = ["configured", "host's own recipe", "plain"]


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, open_engine: Callable[..., Engine]) -> Shop:
    engine = open_engine(request.param)
    return Shop(Threadmill(engine), engine)


@contextmanager
def _open_writer(path: str) -> Iterator[sqlite3.Connection]:
    """Somebody else's write transaction that stays open."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
        connection.close()


def _path(engine: Engine) -> str:
    assert engine.url.database is not None
    return engine.url.database


def test_n8_an_open_write_transaction_delays_the_engine_and_fails_nothing(shop: Shop):
    shop.nudge()
    started = threading.Barrier(7)

    def after(action: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            started.wait(WAIT_SECONDS)
            return action()

        return in_thread(run)

    with shop.transaction() as session:
        waiting = [
            after(action)
            for action in (
                shop.tick,
                lambda: shop.tm.enqueue("mail", 1),
                lambda: shop.nudge("other"),
                shop.tm.register,
                lambda: shop.tm.trigger("other"),
                lambda: shop.store.jobs.fold_counts(limit=10),
            )
        ]
        started.wait(WAIT_SECONDS)
        shop.tm.nudge(PUMP, session)
        # Readers pass by in any case.
        assert shop.tm.list_jobs() == []
    for wait in waiting:
        wait()

    assert shop.settle() >= 1
    assert not shop.pending()


def test_n8_the_engine_keeps_trying_beyond_the_drivers_own_patience(
    open_engine: Callable[..., Engine],
):
    """The driver gives up after a moment; the engine does not."""
    engine = open_engine("plain", connect_args={"timeout": 0.01})
    shop = Shop(Threadmill(engine), engine)
    with _open_writer(_path(engine)):
        wait = in_thread(shop.nudge)
        refused = _count_refusals(engine)
        assert refused(3), "the engine did not try again"
    wait()

    assert shop.pending()


def test_n8_a_writer_that_never_ends_is_reported_in_bounded_time_whatever_the_clock_says(
    open_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
):
    engine = open_engine("plain", connect_args={"timeout": 0.01})
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))  # it stands still
    tm = Threadmill(engine, clock=clock)
    shop = Shop(tm, engine)
    monkeypatch.setattr(limits, "SQLITE_BUSY_SECONDS", 0.2)
    with _open_writer(_path(engine)):
        wait = in_thread(shop.nudge)
        with pytest.raises(StoreUnavailableError):
            wait()


def test_an_immediate_write_beside_ones_own_open_transaction_names_the_way_out(
    open_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
):
    engine = open_engine("plain", connect_args={"timeout": 0.01})
    shop = Shop(Threadmill(engine), engine)
    monkeypatch.setattr(limits, "SQLITE_BUSY_SECONDS", 0.1)
    with shop.transaction() as session:
        for call in (shop.nudge, lambda: shop.tm.set_enabled(PUMP, False)):
            with pytest.raises(StoreUnavailableError, match="join it"):
                call()
        shop.tm.nudge(PUMP, session)

    assert shop.pending()


def _count_refusals(engine: Engine) -> Callable[[int], bool]:
    seen = threading.Semaphore(0)
    event.listen(engine, "handle_error", lambda _context: seen.release())

    def arrived(count: int) -> bool:
        return all(seen.acquire(timeout=WAIT_SECONDS) for _ in range(count))

    return arrived


def test_n7_a_joined_nudge_raises_only_what_the_callers_own_first_write_would(
    open_engine: Callable[..., Engine],
):
    engine = open_engine("configured")
    shop = Shop(Threadmill(engine), engine)
    threadmill_sa.sqlite.configure(engine, busy_timeout=0.05)
    engine.dispose()
    own = text("INSERT INTO orders DEFAULT VALUES")
    with _open_writer(_path(engine)), Session(engine) as session:
        for write in (lambda: session.execute(own), lambda: shop.tm.nudge(PUMP, session)):
            with pytest.raises(OperationalError, match="database is locked"):
                write()
            session.rollback()

    with Session(engine) as session:  # the transaction after it is as good as new
        shop.tm.nudge(PUMP, session)
        session.commit()
    assert shop.pending()


def test_n7_a_read_before_another_writers_commit_fails_like_the_callers_own_write(
    open_engine: Callable[..., Engine],
):
    engine = open_engine("configured")
    shop = Shop(Threadmill(engine), engine)
    with Session(engine) as session:
        session.scalar(text("SELECT count(*) FROM orders"))
        shop.nudge("other")
        for write in (
            lambda: session.execute(text("INSERT INTO orders DEFAULT VALUES")),
            lambda: shop.tm.nudge(PUMP, session),
        ):
            with pytest.raises(OperationalError, match="database is locked"):
                write()
        # It leaves the transaction usable, for reading and for its end.
        assert 0 == session.scalar(text("SELECT count(*) FROM orders"))
        session.commit()

    assert not shop.pending()


def test_n7_once_the_caller_has_written_its_nudges_meet_no_lock(shop: Shop):
    with shop.transaction() as session:
        wait = in_thread(lambda: shop.nudge("other"))
        for _ in range(5):
            shop.tm.nudge(PUMP, session)
            shop.tm.enqueue("mail", 1, session=session)
    wait()

    assert (shop.pending(PUMP), shop.pending("other")) == (True, True)


def test_n7_two_callers_in_opposite_order_wait_and_never_deadlock(shop: Shop):
    def produce(names: tuple[str, str]) -> None:
        for _ in range(5):
            with shop.transaction() as session:
                for name in names:
                    shop.tm.nudge(name, session)

    waits = [in_thread(partial(produce, n)) for n in ((PUMP, "other"), ("other", PUMP))]
    for wait in waits:
        wait()
    assert shop.settle() == 2


def test_an_unconfigured_engine_refuses_a_savepoint_with_the_advice(
    open_engine: Callable[..., Engine],
):
    engine = open_engine("plain")
    shop = Shop(Threadmill(engine), engine)
    with Session(engine) as session:
        with session.begin_nested():
            with pytest.raises(SavepointError, match=r"sqlite\.configure"):
                shop.tm.nudge(PUMP, session)
            with pytest.raises(SavepointError, match=r"sqlite\.configure"):
                shop.tm.enqueue("mail", 1, session=session)
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        shop.tm.nudge(PUMP, session)  # outside of it the driver has begun
        session.rollback()

    assert not shop.pending()
    assert shop.tm.list_jobs() == []


def test_an_unconfigured_engine_without_savepoint_rolls_back_what_it_joined(
    open_engine: Callable[..., Engine],
):
    engine = open_engine("plain")
    shop = Shop(Threadmill(engine), engine)
    for handle in ("session", "connection"):
        with Session(engine) if handle == "session" else engine.connect() as caller:
            shop.tm.nudge(PUMP, caller)
            shop.tm.enqueue("mail", 1, session=caller)
            shop.tm.enqueue_many([("mail", 1), ("mail", 2)], caller)
            caller.rollback()
        assert not shop.pending()
        assert shop.tm.list_jobs() == []
        assert shop.store.jobs.queue_depths() == {}


@pytest.mark.parametrize("kind", ["configured", "plain"])
def test_autocommit_is_refused_by_name(open_engine: Callable[..., Engine], kind: str):
    engine = open_engine(kind)
    shop = Shop(Threadmill(engine), engine)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    for call in (
        lambda caller: shop.tm.nudge(PUMP, caller),
        lambda caller: shop.tm.enqueue("mail", 1, session=caller),
    ):
        with autocommit.connect() as connection, pytest.raises(AutocommitError):
            call(connection)
        with Session(autocommit) as session, pytest.raises(AutocommitError):
            call(session)

    assert not shop.pending()
    assert shop.tm.list_jobs() == []


def test_a_recipe_that_begins_in_spite_of_autocommit_is_healthy(
    open_engine: Callable[..., Engine],
):
    """The documented recipe sends BEGIN there too, so there is a transaction after all."""
    engine = open_engine("host's own recipe")
    shop = Shop(Threadmill(engine), engine)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        shop.tm.nudge(PUMP, connection)
        connection.rollback()
        assert not shop.pending()
        shop.tm.nudge(PUMP, connection)
        connection.commit()
    assert shop.pending()


@pytest.mark.parametrize("kind", KINDS)
def test_a_threadmill_on_an_engine_in_autocommit_still_writes_whole_transactions(
    open_engine: Callable[..., Engine], kind: str
):
    engine = open_engine(kind, isolation_level="AUTOCOMMIT")
    tm = Threadmill(engine)
    shop = Shop(tm)
    node, _ = shop.claim()
    for _ in range(3):
        shop.nudge()
        shop.tick()
        assert shop.run_all() == 1
    del node

    assert len(shop.instances()) == 3


@pytest.mark.parametrize("kind", ["configured", "host's own recipe"])
def test_a_recipe_makes_savepoints_right(open_engine: Callable[..., Engine], kind: str):
    engine = open_engine(kind)
    shop = Shop(Threadmill(engine), engine)
    with Session(engine) as session:
        with session.begin_nested():
            shop.tm.nudge(PUMP, session)
            shop.tm.enqueue("mail", 1, session=session)
        session.rollback()
    assert not shop.pending()
    assert shop.tm.list_jobs() == []

    with Session(engine) as session:
        with session.begin_nested() as savepoint:
            shop.tm.nudge(PUMP, session)
            savepoint.rollback()
        with session.begin_nested():
            shop.tm.nudge("other", session)
        session.commit()
    assert (shop.pending(PUMP), shop.pending("other")) == (False, True)


@pytest.mark.skipif(not AUTOCOMMIT_ATTRIBUTE, reason="sqlite3 has no autocommit attribute yet")
def test_the_newer_transaction_control_of_the_driver_is_understood(
    open_engine: Callable[..., Engine],
):
    always_open = open_engine("plain", connect_args={"autocommit": False})
    shop = Shop(Threadmill(always_open), always_open)
    with Session(always_open) as session, session.begin_nested():
        shop.tm.nudge(PUMP, session)
    assert not shop.pending()  # closed without a commit

    never_open = open_engine("plain", connect_args={"autocommit": True})
    with Session(never_open) as session, pytest.raises(AutocommitError):
        Threadmill(never_open).nudge(PUMP, session)
