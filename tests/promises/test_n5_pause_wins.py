"""N5: an explicit pause wins; a nudge from before its end never runs after it."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import Engine, text

from tests.promises.shop import OTHER, PUMP, Shop, Stepped, in_thread
from threadmill_sa import Threadmill
from threadmill_sa.errors import TaskDisabledError, UnknownTaskError
from threadmill_sa.spi.recurring import TickResult

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def test_n5_a_paused_task_and_an_unknown_one_are_refused_loudly(shop: Shop):
    shop.tm.set_enabled(PUMP, False)

    with pytest.raises(TaskDisabledError):
        shop.nudge(PUMP)
    with pytest.raises(UnknownTaskError):
        shop.nudge("nobody")
    assert shop.settle() == 0


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_n5_a_refusal_leaves_the_callers_transaction_usable(sql_shop: Shop, mode: str):
    _refuse_and_go_on(sql_shop, mode, None)


@pytest.mark.parametrize("isolation", ISOLATIONS[1:])
@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_n5_a_refusal_leaves_a_transaction_of_a_higher_isolation_usable(
    pg_shop: Shop, mode: str, isolation: str
):
    _refuse_and_go_on(pg_shop, mode, isolation)


def _refuse_and_go_on(shop: Shop, mode: str, isolation: str | None) -> None:
    shop.tm.set_enabled(PUMP, False)
    with shop.transaction(isolation) as session:
        for name, error in ((PUMP, TaskDisabledError), ("nobody", UnknownTaskError)):
            with pytest.raises(error):
                shop.tm.nudge(name, session, mode=mode)
            with pytest.raises(error), session.begin_nested():
                shop.tm.nudge(name, session, mode=mode)
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        shop.tm.nudge(OTHER, session, mode=mode)

    with shop.sql.connect() as connection:
        assert 2 == connection.scalar(text("SELECT count(*) FROM orders"))
    assert shop.pending(OTHER)


def test_n5_a_nudge_from_before_a_pause_never_runs_after_it(shop: Shop):
    shop.nudge()
    shop.tm.set_enabled(PUMP, False)
    assert shop.settle() == 0
    shop.tm.set_enabled(PUMP, True)

    assert shop.settle() == 0
    shop.nudge()
    assert shop.settle() == 1


def test_n5_an_instance_from_before_a_pause_still_runs(shop: Shop):
    shop.nudge()
    shop.tick()
    shop.tm.set_enabled(PUMP, False)

    assert shop.run_all() == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n5_a_transaction_open_across_a_whole_pause_that_commits_after_it_counts(
    pg_shop: Shop, isolation: str
):
    with pg_shop.transaction(isolation) as session:
        pg_shop.tm.nudge(PUMP, session)
        pg_shop.tm.set_enabled(PUMP, False)
        pg_shop.tm.set_enabled(PUMP, True)
        assert pg_shop.settle() == 0

    assert pg_shop.settle() == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n5_a_transaction_that_commits_during_the_pause_is_gone_at_its_end(
    pg_shop: Shop, isolation: str
):
    with pg_shop.transaction(isolation) as session:
        pg_shop.tm.nudge(PUMP, session)
        pg_shop.tm.set_enabled(PUMP, False)
    assert pg_shop.settle() == 0

    pg_shop.tm.set_enabled(PUMP, True)
    assert pg_shop.settle() == 0


def test_n5_a_nudge_that_commits_before_the_flip_is_gone_after_it(
    pg_shop: Shop, actor_engine: Engine
):
    operator = Threadmill(actor_engine)
    before = 0
    for boundary in range(7):
        name = pg_shop.fresh_task()
        actor = Stepped(actor_engine, partial(operator.set_enabled, name, False))
        ended = not actor.advance(boundary)
        if ended:
            actor.end()
            break
        pg_shop.nudge(name)
        flipped = any("cron_tasks SET enabled" in statement for statement in actor.statements)
        actor.end()

        assert flipped or not pg_shop.pending(name), boundary
        before += not flipped
    assert before >= 2


def test_n5_a_task_that_is_resumed_between_refusal_and_verdict_is_nudged(
    pg_shop: Shop, actor_engine: Engine
):
    caller = Threadmill(actor_engine)
    pg_shop.tm.set_enabled(PUMP, False)

    def nudge() -> None:
        with actor_engine.begin() as connection:
            caller.nudge(PUMP, connection)

    actor = Stepped(actor_engine, nudge)
    while not any("threadmill_cron_nudges" in statement for statement in actor.statements):
        assert actor.step()  # up to the statement that accepts, which found the task paused
    pg_shop.tm.set_enabled(PUMP, True)
    actor.end()

    assert pg_shop.settle() == 1
    caller.close()


def test_n5_a_pause_that_is_already_on_drops_nothing_and_one_that_is_off_neither(pg_shop: Shop):
    pg_shop.nudge()

    assert pg_shop.tm.set_enabled(PUMP, True) is False
    assert pg_shop.settle() == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n5_holds_wherever_accept_and_commit_fall_between_the_statements_of_two_flips(
    pg_shop: Shop, actor_engine: Engine, isolation: str
):
    """Every schedule of {accept, commit} against disable followed by enable."""
    operator = Threadmill(actor_engine)
    kept = gone = refused = 0
    for accept in range(13):
        for commit in range(accept, 13):
            name = pg_shop.fresh_task()
            actor = Stepped(actor_engine, partial(_pause_and_resume, operator, name))
            actor.advance(accept)
            accepted = True
            with pg_shop.transaction(isolation) as session:
                try:
                    pg_shop.tm.nudge(name, session)
                except TaskDisabledError:
                    accepted = False
                actor.advance(commit)
            ended = _deletes(actor.statements) == 2
            actor.end()

            counts = accepted and ended
            assert pg_shop.pending(name) is counts, (accept, commit, actor.statements)
            assert pg_shop.settle() == counts
            kept, refused = kept + counts, refused + (not accepted)
            gone += accepted and not ended
    assert min(kept, gone, refused) > 0


def _pause_and_resume(operator: Threadmill, name: str) -> None:
    operator.set_enabled(name, False)
    operator.set_enabled(name, True)


def _deletes(statements: list[str]) -> int:
    return sum("DELETE FROM" in statement for statement in statements)


def test_n5_a_tick_held_at_any_statement_and_a_pause_end_with_a_job_or_with_none(
    pg_shop: Shop, actor_engine: Engine
):
    node = Threadmill(actor_engine)
    for boundary in range(8):
        name = pg_shop.fresh_task()
        pg_shop.nudge(name)
        actor = Stepped(actor_engine, node.tick)
        actor.advance(boundary)
        wait = in_thread(partial(pg_shop.tm.set_enabled, name, False))
        actor.end()
        assert wait() is True

        view = pg_shop.view(name)
        assert (view.enabled, view.next_run_at, view.nudge_revisions) == (False, None, frozenset())
        assert pg_shop.settle() == len(pg_shop.instances(name)) <= 1


def test_n5_a_pause_held_at_any_statement_lets_a_tick_pass_by(pg_shop: Shop, actor_engine: Engine):
    operator = Threadmill(actor_engine)
    results = set()
    for boundary in range(7):
        name = pg_shop.fresh_task()
        pg_shop.nudge(name)
        actor = Stepped(actor_engine, partial(operator.set_enabled, name, False))
        actor.advance(boundary)
        results |= {outcome.result for outcome in pg_shop.tick() if outcome.name == name}
        actor.end()

        assert pg_shop.view(name).next_run_at is None
        assert not pg_shop.pending(name)
        pg_shop.run_all()
    assert results == {TickResult.MATERIALIZED, TickResult.BUSY}
