"""N2: any number of nudges during one run give at most one follow-up, also across crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tests.faults.striking import Fault, FaultyEngine, InjectedError, answer_of_commit_lost
from tests.fixtures.sql import engine_for
from tests.promises.shop import PUMP, Shop, in_thread
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.spi.store import CannotJoin

T0 = datetime(2026, 5, 4, 12, tzinfo=UTC)
STATEMENTS = 20  # more than a pass of the materializer has; the loops stop at the last
FAULTS = (InjectedError, StoreUnavailableError, SQLAlchemyError)


def nudge_joined(shop: Shop, session: Session, at: datetime) -> None:
    joined = shop.store.joined(session)
    assert not isinstance(joined, CannotJoin)
    assert joined.request_cron_nudge(PUMP, now=at).verdict is NudgeVerdict.ACCEPTED


@pytest.fixture
def other_process(sql_engine: Engine) -> Iterator[FaultyEngine]:
    """An engine of another process at the same database."""
    url = sql_engine.url.render_as_string(hide_password=False)
    with engine_for(url) as engine:
        yield FaultyEngine(engine, url)


def test_n2_a_burst_before_the_tick_gives_one_run(shop: Shop):
    for _ in range(20):
        shop.nudge()

    assert shop.settle() == 1
    assert len(shop.instances()) == 1


def test_n2_many_nudges_during_one_run_give_one_follow_up(shop: Shop):
    shop.nudge()
    shop.tick()
    node, running = shop.claim()
    for _ in range(5):
        shop.nudge()
        shop.nudge()
        shop.tick()
    shop.finish(node, running)

    assert shop.settle() == 1
    assert len(shop.instances()) == 2


def test_n2_many_nudges_in_one_transaction_are_one_acceptance(sql_shop: Shop):
    with sql_shop.transaction() as session:
        receipts = [sql_shop.tm.nudge(PUMP, session) for _ in range(10)]
        with session.begin_nested():
            receipts.append(sql_shop.tm.nudge(PUMP, session))

    assert len({receipt.revision for receipt in receipts}) == len(receipts)
    assert sql_shop.view().nudge_revisions == {receipts[-1].revision}
    assert sql_shop.settle() == 1


def test_n2_of_several_requests_in_one_transaction_the_earliest_is_shown(sql_shop: Shop):
    with sql_shop.transaction() as session:
        for seconds in (2, 1, 3):
            nudge_joined(sql_shop, session, T0 + timedelta(seconds=seconds))
        with suppress(ZeroDivisionError), session.begin_nested():
            nudge_joined(sql_shop, session, T0)
            raise ZeroDivisionError  # takes back what was asked for since

    assert sql_shop.view().nudge_requested_at == T0 + timedelta(seconds=1)


def test_n6_a_request_of_a_registration_that_is_gone_makes_no_later_one_older(pg_shop: Shop):
    with pg_shop.transaction() as session:
        nudge_joined(pg_shop, session, T0)
        pg_shop.tm.delete_recurring(PUMP)
        pg_shop.declare(PUMP)
        nudge_joined(pg_shop, session, T0 + timedelta(seconds=1))

    assert pg_shop.view().nudge_requested_at == T0 + timedelta(seconds=1)


def test_n2_sixteen_transactions_during_one_run_give_one_follow_up(pg_shop: Shop):
    pg_shop.nudge()
    pg_shop.tick()
    node, running = pg_shop.claim()

    def produce() -> None:
        for _ in range(4):
            with pg_shop.transaction() as session:
                pg_shop.tm.nudge(PUMP, session)

    producers = [in_thread(produce) for _ in range(16)]
    for _ in range(5):
        assert {outcome.result for outcome in pg_shop.tick()} <= {TickResult.HELD}
    for wait in producers:
        wait()
    pg_shop.finish(node, running)

    assert pg_shop.settle() == 1


def test_n2_an_instance_that_was_triggered_holds_a_nudge_back(shop: Shop):
    shop.tm.trigger(PUMP)
    shop.nudge()

    assert [outcome.result for outcome in shop.tick()] == [TickResult.HELD]
    assert shop.settle() == 2


def test_n2_two_nodes_that_tick_at_once_create_one_follow_up(sql_shop: Shop):
    for _ in range(5):
        sql_shop.nudge()
        ticks = [in_thread(sql_shop.tick) for _ in range(4)]
        for wait in ticks:
            wait()
        assert sql_shop.run_all() == 1
    assert len(sql_shop.instances()) == 5


@pytest.mark.parametrize("kind", [Fault.BEFORE, Fault.AFTER])
def test_n2_a_tick_that_fails_at_any_statement_leaves_all_or_nothing(
    sql_shop: Shop, other_process: FaultyEngine, kind: Fault
):
    _fail_everywhere(sql_shop, other_process, kind)


@pytest.mark.parametrize("kind", [Fault.KILLED, Fault.KILLED_AFTER])
def test_n2_a_tick_whose_connection_is_killed_at_any_statement_leaves_all_or_nothing(
    pg_shop: Shop, pg_engine: Engine, kind: Fault
):
    url = pg_engine.url.render_as_string(hide_password=False)
    with engine_for(url) as engine:
        _fail_everywhere(pg_shop, FaultyEngine(engine, url), kind)


def _fail_everywhere(shop: Shop, process: FaultyEngine, kind: Fault) -> None:
    node = Threadmill(process.engine)
    node.tick()  # what happens once is over
    for at in range(STATEMENTS):
        name = shop.fresh_task()
        shop.nudge(name)
        process.strike(at, kind)
        _tick_whatever_happens(node)
        struck = process.struck
        process.mend()

        instances = len(shop.instances(name))
        assert shop.pending(name) is (instances == 0), f"half a tick at statement {at}"
        assert shop.settle() == 1
        assert len(shop.instances(name)) == 1
        if not struck:
            assert at >= 3, "the tick has fewer statements than it should"
            return
    raise AssertionError("a tick has more statements than this test tries")


@pytest.mark.parametrize("kind", [Fault.BEFORE, Fault.AFTER])
def test_n2_a_compaction_that_fails_at_any_statement_loses_no_nudge_and_no_instant(
    pg_shop: Shop, pg_engine: Engine, kind: Fault
):
    url = pg_engine.url.render_as_string(hide_password=False)
    with engine_for(url) as engine:
        process = FaultyEngine(engine, url)
        node = Threadmill(engine)
        node.tick()
        for at in range(STATEMENTS):
            name = pg_shop.fresh_task()
            pg_shop.nudge(name)
            pg_shop.tick()
            pg_shop.nudge(name)
            earliest = pg_shop.view(name).nudge_requested_at
            pg_shop.nudge(name)
            process.strike(at, kind)
            _tick_whatever_happens(node)
            struck = process.struck
            process.mend()

            assert pg_shop.view(name).nudge_requested_at == earliest
            assert pg_shop.settle() == 2
            if not struck:
                return
        raise AssertionError("a compaction has more statements than this test tries")


def test_n2_a_tick_whose_commit_was_applied_and_its_answer_lost_is_not_done_twice(
    sql_shop: Shop, sql_engine: Engine
):
    with engine_for(sql_engine.url.render_as_string(hide_password=False)) as engine:
        node = Threadmill(engine)
        node.tick()
        sql_shop.nudge()
        nominated = sql_shop.store.recurring.nominate(after=None, limit=10)
        assert nominated == [PUMP]
        with answer_of_commit_lost(engine) as lost:
            _tick_whatever_happens(node)
            _tick_whatever_happens(node)
        assert lost

    assert sql_shop.settle() == 1
    assert [job.cron_origin for job in sql_shop.instances()] == [CronOrigin.NUDGE]


LIFECYCLE: dict[str, Callable[[Threadmill, str], object]] = {
    "disable": lambda tm, name: tm.set_enabled(name, False),
    "delete": lambda tm, name: tm.delete_recurring(name),
    "trigger": lambda tm, name: tm.trigger(name),
    "edit": lambda tm, name: _edit(tm, name),  # noqa: PLW0108 - defined below
}


def _edit(tm: Threadmill, name: str) -> None:
    process = Threadmill(tm.store)
    process.job("mail")(lambda: None)
    process.recurring(name, "mail", Every(minutes=7))
    process.register()


@pytest.mark.parametrize("call", LIFECYCLE)
def test_n2_a_lifecycle_call_that_fails_at_any_statement_changes_nothing(
    sql_shop: Shop, other_process: FaultyEngine, call: str
):
    operator = Threadmill(other_process.engine)
    operator.list_recurring()
    for at in range(1, 12):
        name = sql_shop.fresh_task()
        sql_shop.nudge(name)
        before = _everything_of(sql_shop, name)
        other_process.strike(at, Fault.AFTER)
        try:
            LIFECYCLE[call](operator, name)
        except InjectedError:
            if other_process.at_commit:
                assert _everything_of(sql_shop, name) != before
                assert at > 1
                return
            assert _everything_of(sql_shop, name) == before, f"half a {call} at statement {at}"
        finally:
            other_process.mend()
    raise AssertionError(f"{call} has more statements than this test tries")


def _everything_of(shop: Shop, name: str) -> list[object]:
    tables = {
        "cron_tasks": "name",
        "cron_task_state": "task_name",
        "cron_nudges": "task_name",
        "jobs": "cron_task_name",
    }
    with shop.sql.connect() as connection:
        return [
            tuple(row)
            for table, column in tables.items()
            for row in connection.execute(
                text(f"SELECT * FROM threadmill_{table} WHERE {column} = :name"), {"name": name}
            )
        ]


def _tick_whatever_happens(node: Threadmill) -> None:
    with suppress(*FAULTS):  # the next pass of a real node comes by itself
        node.tick()
