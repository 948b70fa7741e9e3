"""N6: a nudge that races a delete or a new registration never reaches what it was not for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine, text

from tests.promises.shop import PUMP, Shop, Stepped, in_thread
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import UnknownTaskError
from threadmill_sa.spi.recurring import TickResult

_OWN_EPOCH = text(
    "SELECT epoch FROM threadmill_cron_nudges"
    " WHERE task_name = :name AND slot = pg_current_xact_id()::text::bigint"
)
ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def test_n6_a_nudge_of_a_deleted_task_is_refused_and_creates_nothing(shop: Shop):
    shop.tm.delete_recurring(PUMP)

    with pytest.raises(UnknownTaskError):
        shop.nudge(PUMP)
    with pytest.raises(UnknownTaskError):
        shop.view(PUMP)
    assert shop.settle() == 0


def test_n6_a_new_registration_inherits_no_nudge(shop: Shop):
    old = shop.view().epoch
    shop.nudge()
    shop.tm.delete_recurring(PUMP)
    shop.declare(PUMP)

    assert shop.view().epoch > old
    assert not shop.pending()
    assert shop.settle() == 0


def test_n6_edits_and_restarts_keep_the_registration_and_its_nudges(shop: Shop):
    epoch = shop.view().epoch
    shop.nudge()
    shop.tm.register()
    process = Threadmill(shop.store)
    process.job("relay", queue="relay")(lambda: None)
    process.recurring(PUMP, "relay", Every(minutes=3))
    process.register()

    assert shop.view().epoch == epoch
    assert shop.settle() == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n6_a_transaction_open_across_delete_and_registration_is_dropped_and_swept(
    pg_shop: Shop, isolation: str
):
    with pg_shop.transaction(isolation) as session:
        pg_shop.tm.nudge(PUMP, session)
        for _ in range(3):  # the same name again and again: no epoch comes back
            pg_shop.tm.delete_recurring(PUMP)
            pg_shop.declare(PUMP)

    assert _rows(pg_shop) == 1
    assert not pg_shop.pending()
    assert pg_shop.settle() == 0
    assert pg_shop.store.recurring.sweep_nudges(limit=10) == 1
    assert _rows(pg_shop) == 0


def test_n6_a_transaction_that_nudges_again_after_a_new_registration_reaches_that_one(
    pg_shop: Shop,
):
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        _renew(pg_shop, pg_shop.tm, PUMP)
        pg_shop.tm.nudge(PUMP, session)

    assert pg_shop.settle() == 1
    assert _rows(pg_shop) == 0


def test_n6_a_tick_of_the_new_registration_leaves_the_dead_nudges_to_the_sweep(pg_shop: Shop):
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        _renew(pg_shop, pg_shop.tm, PUMP)
    pg_shop.nudge()

    assert pg_shop.settle() == 1
    assert pg_shop.store.recurring.sweep_nudges(limit=10) == 1


def test_n6_a_delete_takes_the_visible_nudges_of_every_epoch_with_it(pg_shop: Shop):
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        pg_shop.tm.delete_recurring(PUMP)
        pg_shop.declare(PUMP)
    pg_shop.nudge()
    assert _rows(pg_shop) == 2

    pg_shop.tm.delete_recurring(PUMP)
    assert _rows(pg_shop) == 0


def test_n6_the_sweep_leaves_every_living_nudge_and_those_not_committed_yet(pg_shop: Shop):
    pg_shop.nudge()
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        assert pg_shop.store.recurring.sweep_nudges(limit=10) == 0
    assert pg_shop.store.recurring.sweep_nudges(limit=10) == 0

    assert len(pg_shop.view().nudge_revisions) == 2


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n6_a_delete_at_any_statement_raises_nothing_in_the_callers_transaction(
    pg_shop: Shop, actor_engine: Engine, isolation: str
):
    """Every schedule of {accept, commit} against a delete; no 23503, no other error."""
    operator = Threadmill(actor_engine)
    accepted = refused = 0
    for accept in range(6):
        for commit in range(accept, 6):
            name = pg_shop.fresh_task()
            actor = Stepped(actor_engine, partial(operator.delete_recurring, name))
            actor.advance(accept)
            with pg_shop.transaction(isolation) as session:
                try:
                    pg_shop.tm.nudge(name, session)
                    accepted += 1
                except UnknownTaskError:
                    refused += 1
                actor.advance(commit)
            actor.end()

            with pytest.raises(UnknownTaskError):
                pg_shop.view(name)
            assert pg_shop.settle() == 0
            pg_shop.declare(name)
            assert not pg_shop.pending(name)
    pg_shop.store.recurring.sweep_nudges(limit=1000)
    assert _rows(pg_shop) == 0
    assert min(accepted, refused) > 0


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n6_delete_and_registration_at_any_statement_leave_each_nudge_with_its_own_epoch(
    pg_shop: Shop, actor_engine: Engine, isolation: str
):
    operator = Threadmill(actor_engine)
    for accept in range(0, 14, 2 if isolation == "READ COMMITTED" else 3):
        for commit in range(accept, 14):
            name = pg_shop.fresh_task()
            first = pg_shop.view(name).epoch
            actor = Stepped(actor_engine, partial(_renew, pg_shop, operator, name))
            actor.advance(accept)
            epoch = None
            with pg_shop.transaction(isolation) as session:
                try:
                    pg_shop.tm.nudge(name, session)
                    epoch = session.scalar(_OWN_EPOCH, {"name": name})
                except UnknownTaskError:
                    pass
                actor.advance(commit)
            actor.end()

            view = pg_shop.view(name)
            assert view.epoch > first
            assert pg_shop.pending(name) is (epoch == view.epoch), (accept, commit)
            assert pg_shop.settle() == (epoch == view.epoch)


def _renew(shop: Shop, operator: Threadmill, name: str) -> None:
    operator.delete_recurring(name)
    shop.declare(name, through=operator.store)


@pytest.mark.parametrize("call", ["delete", "renew"])
def test_n6_a_tick_at_any_statement_beside_a_delete_resurrects_no_state(
    pg_shop: Shop, actor_engine: Engine, call: str
):
    node = Threadmill(actor_engine)
    calls: dict[str, Callable[[str], None]] = {
        "delete": pg_shop.tm.delete_recurring,
        "renew": lambda name: _renew(pg_shop, pg_shop.tm, name),
    }
    for boundary in range(8):
        name = pg_shop.fresh_task()
        pg_shop.nudge(name)
        actor = Stepped(actor_engine, node.tick)
        actor.advance(boundary)
        wait = in_thread(partial(calls[call], name))
        actor.end()
        wait()

        with pg_shop.sql.connect() as connection:
            for table, column in (("cron_tasks", "name"), ("cron_task_state", "task_name")):
                count = text(f"SELECT count(*) FROM threadmill_{table} WHERE {column} = :name")
                expected = 1 if call == "renew" else 0
                assert connection.scalar(count, {"name": name}) == expected
        if call == "renew":
            assert not pg_shop.pending(name)
            assert pg_shop.view(name).last_run_at is None
        pg_shop.run_all()


def test_n6_a_delete_held_at_any_statement_lets_a_tick_pass_by(
    pg_shop: Shop, actor_engine: Engine
):
    operator = Threadmill(actor_engine)
    results = set()
    for boundary in range(6):
        name = pg_shop.fresh_task()
        pg_shop.nudge(name)
        actor = Stepped(actor_engine, partial(operator.delete_recurring, name))
        actor.advance(boundary)
        results |= {outcome.result for outcome in pg_shop.tick() if outcome.name == name}
        actor.end()

        with pytest.raises(UnknownTaskError):
            pg_shop.view(name)
        pg_shop.run_all()
    assert results == {TickResult.MATERIALIZED, TickResult.BUSY}


def test_n6_registrations_and_deletes_of_one_name_at_once_end_in_one_whole_state(pg_shop: Shop):
    def churn(seed: int) -> None:
        for step in range(6):
            if (seed + step) % 2:
                pg_shop.declare("churned")
            else:
                pg_shop.store.recurring.delete("churned")

    for wait in [in_thread(partial(churn, seed)) for seed in range(6)]:
        wait()

    with pg_shop.sql.connect() as connection:
        names = connection.scalar(
            text(
                "SELECT count(*) FROM threadmill_cron_tasks t FULL JOIN threadmill_cron_task_state"
                " s ON s.task_name = t.name WHERE t.name IS NULL OR s.task_name IS NULL"
            )
        )
    assert names == 0


def _rows(shop: Shop) -> int:
    with shop.sql.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM threadmill_cron_nudges")) or 0
