"""N3: acceptance is a store write; no signal has to arrive anywhere, one tick bounds the wait."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.fixtures.sql import engine_for
from tests.promises.shop import PUMP, WAIT_SECONDS, Shop
from threadmill_sa import Every, Threadmill

TICK_SECONDS = 0.2


def test_n3_an_accepted_nudge_is_in_the_store_when_the_call_returns(shop: Shop):
    receipt = shop.nudge()

    assert shop.view().nudge_revisions == {receipt.revision}


def test_n3_a_nudge_outlives_the_process_that_accepted_it(sql_shop: Shop, sql_engine: Engine):
    with sql_shop.transaction() as session:
        sql_shop.tm.nudge(PUMP, session)
    sql_shop.tm.close()

    with engine_for(sql_engine.url.render_as_string(hide_password=False)) as engine:
        successor = Threadmill(engine)
        done = successor.tick()
        assert [(PUMP, 1)] == [(outcome.name, len(outcome.jobs)) for outcome in done]


def test_n3_a_node_that_hears_no_wake_runs_the_nudge_with_its_next_tick(sql_engine: Engine):
    tm = Threadmill(sql_engine)
    ran = threading.Event()
    tm.job("relay")(ran.set)
    tm.recurring(PUMP, "relay", Every(hours=1))
    with tm.node(workers=1, wakes=False, tick=TICK_SECONDS, poll=TICK_SECONDS):
        url = sql_engine.url.render_as_string(hide_password=False)
        with engine_for(url) as engine, Session(engine) as session, session.begin():
            Threadmill(engine).nudge(PUMP, session)

        assert ran.wait(WAIT_SECONDS), "no tick found the nudge"
    tm.close()


def test_n3_a_node_on_a_store_in_memory_runs_the_nudge(shop: Shop):
    ran = threading.Event()
    shop.tm.job("told")(ran.set)
    shop.tm.recurring("told-pump", "told", Every(hours=1))
    with shop.tm.node(workers=1, wakes=False, tick=TICK_SECONDS, poll=TICK_SECONDS):
        shop.nudge("told-pump")

        assert ran.wait(WAIT_SECONDS), "no tick found the nudge"


@pytest.mark.parametrize("crash", [False, True])
def test_n3_after_commit_writes_once_the_commit_is_over_and_a_crash_between_loses_it(
    sql_shop: Shop, crash: bool
):
    from threadmill_sa.session import hooks

    with Session(sql_shop.sql) as session:
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        sql_shop.tm.nudge(PUMP, session, mode="after_commit")
        if crash:
            hooks.remove()
        try:
            session.commit()
        finally:
            hooks.install()

    assert sql_shop.pending() is not crash
    with sql_shop.sql.connect() as connection:
        assert 1 == connection.scalar(text("SELECT count(*) FROM orders"))


def test_n3_the_callers_rollback_and_only_it_takes_the_nudge_back(sql_shop: Shop):
    with Session(sql_shop.sql) as session:
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        sql_shop.tm.nudge(PUMP, session)
        session.rollback()
        assert not sql_shop.pending()

        sql_shop.tm.nudge(PUMP, session)
        session.commit()
    assert sql_shop.pending()
