"""A write after the commit that is refused excuses its promise, and nothing beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.checker.conftest import OTHER, PUMP, Desk
from tests.checker.test_dropped import assert_dropped
from tests.promises.shop import Stepped, in_thread
from threadmill_sa import Every, Threadmill
from threadmill_sa.session import hooks
from threadmill_sa.testing import CoverageReport, assert_every_nudge_covered

WAIT_SECONDS = 20.0


@contextmanager
def ending_pause(tm: Threadmill, engine: Engine) -> Iterator[None]:
    """Within the block a pause has dropped the nudges of the task, and has not ended yet."""
    tm.set_enabled(PUMP, False)
    enabling = Stepped(engine, lambda: tm.set_enabled(PUMP, True))
    while not any("DELETE" in each for each in enabling.statements):
        assert enabling.step()
    yield
    enabling.end()


@contextmanager
def refusing(caplog: pytest.LogCaptureFixture, times: int = 1) -> Iterator[None]:
    """So many deferred writes are refused in the block, counted and logged."""
    before = hooks.counters.refused
    yield
    assert hooks.counters.refused == before + times
    assert caplog.text.count("was dropped after the commit") == times


@pytest.mark.parametrize("isolation", [None, "REPEATABLE READ", "SERIALIZABLE"])
def test_n5_a_commit_before_the_end_of_the_pause_is_excused(
    pg_desk: Desk, caplog: pytest.LogCaptureFixture, isolation: str | None
) -> None:
    """The statement that drops the nudges is too early to see it, and the write is refused."""
    with refusing(caplog), Session(pg_desk.engine) as session:
        if isolation is not None:
            session.connection(execution_options={"isolation_level": isolation})
        pg_desk.tm.nudge(PUMP, session, mode="after_commit")
        with ending_pause(pg_desk.tm, pg_desk.engine):
            session.commit()

    assert pg_desk.rest() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)


def test_every_promise_of_the_transaction_is_excused(
    pg_desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for again and again, also in savepoints, it is one write."""
    tm = pg_desk.tm
    with refusing(caplog), Session(pg_desk.engine) as session:
        tm.nudge(PUMP, session, mode="after_commit")
        with session.begin_nested():
            tm.nudge_many([OTHER, PUMP], session, mode="after_commit")
        with session.begin_nested() as savepoint:
            tm.nudge(PUMP, session, mode="after_commit")
            savepoint.rollback()
        with ending_pause(tm, pg_desk.engine):
            session.commit()

    # The other task's nudge counts twice: promised and written.
    assert pg_desk.rest() == CoverageReport(nudges=4, runs=1, covered=2, excused=2)


def test_what_was_lost_beside_a_refused_write_is_found(
    pg_desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    tm = pg_desk.tm
    with refusing(caplog), Session(pg_desk.engine) as crashing, Session(pg_desk.engine) as session:
        tm.nudge(PUMP, session, mode="after_commit")
        tm.nudge(PUMP, crashing, mode="after_commit")
        with ending_pause(tm, pg_desk.engine):
            crashing.info.clear()  # all that a process that dies at the commit would forget
            crashing.commit()
            session.commit()
    tm.run_until_idle()

    assert_dropped(pg_desk.check_fails(), "1 of 2 recorded nudges", "promised, not written")


@pytest.mark.parametrize("lost", [False, True])
def test_a_joined_nudge_beside_a_refused_write_still_counts(
    pg_desk: Desk, caplog: pytest.LogCaptureFixture, *, lost: bool
) -> None:
    """It came after the statement that drops the nudges, in the very same transaction."""
    tm = pg_desk.tm
    with refusing(caplog), Session(pg_desk.engine) as session:
        tm.nudge(PUMP, session)
        tm.nudge(PUMP, session, mode="after_commit")
        with ending_pause(tm, pg_desk.engine):
            session.commit()

    if lost:
        pg_desk.lose_pending()
        assert_dropped(pg_desk.check_fails(), "1 of 2 recorded nudges", "(revision ")
    else:
        assert pg_desk.rest() == CoverageReport(nudges=2, runs=1, covered=2, excused=0)


def test_an_async_session_is_refused_as_a_plain_one(
    pg_desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    engine = pg_desk.engine
    producers = create_async_engine(engine.url)
    tm = Threadmill(engine, also=[producers], record_nudges=True)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))

    async def produce() -> None:
        async with AsyncSession(producers) as session:
            await tm.anudge(PUMP, session, mode="after_commit")
            with ending_pause(tm, engine):
                await session.commit()
        await producers.dispose()

    with refusing(caplog):
        asyncio.run(produce())
    tm.run_until_idle()

    assert assert_every_nudge_covered(tm) == CoverageReport(1, 0, 0, 1)
    tm.close()


def pause(desk: Desk) -> None:
    desk.tm.set_enabled(PUMP, False)


def delete(desk: Desk) -> None:
    desk.tm.delete_recurring(PUMP)


@pytest.mark.parametrize("end", [pause, delete])
@pytest.mark.parametrize("again", [False, True])
def test_a_task_that_ends_before_the_write(
    desk: Desk, caplog: pytest.LogCaptureFixture, end: Callable[[Desk], None], *, again: bool
) -> None:
    def produce() -> None:
        with desk.transaction() as session:
            desk.tm.nudge(PUMP, session, mode="after_commit")

    held = desk.faults.hold("recurring.request_cron_nudge")
    with refusing(caplog):
        produced = in_thread(produce)
        assert held.reached.wait(WAIT_SECONDS)
        end(desk)
        held.open()
        produced()
    if again:
        desk.tm.register()
        desk.tm.set_enabled(PUMP, True)

    assert desk.faults.calls("records.refuse") == 1
    assert desk.rest() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)


def test_a_write_that_an_error_stops_is_not_refused(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="threadmill_sa.session.hooks")
    desk.faults.fail("recurring.request_cron_nudge")
    with desk.transaction() as session:
        desk.tm.nudge(PUMP, session, mode="after_commit")
    desk.faults.mend()
    desk.tm.run_until_idle()

    assert desk.faults.calls("records.refuse") == 0
    assert_dropped(desk.check_fails(), "promised, not written")


def test_a_refusal_that_could_not_be_recorded_is_told(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    held = desk.faults.hold("recurring.request_cron_nudge")
    desk.faults.fail("records.refuse")
    failed = hooks.counters.failed

    def produce() -> None:
        with desk.transaction() as session:
            desk.tm.nudge(PUMP, session, mode="after_commit")

    with refusing(caplog):
        produced = in_thread(produce)
        assert held.reached.wait(WAIT_SECONDS)
        pause(desk)
        held.open()
        produced()

    assert hooks.counters.failed == failed
    assert "the refusal of the nudge of recurring task 'pump' was not recorded" in caplog.text
    assert desk.rest().excused == 1
