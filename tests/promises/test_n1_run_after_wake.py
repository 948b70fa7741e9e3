"""N1: every accepted nudge is followed by a run whose job was created after its commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from tests.fixtures.servers import EMBEDDED, Server
from tests.fixtures.sql import engine_for
from tests.promises.shop import OTHER, PUMP, Shop, Stepped
from threadmill_sa import Threadmill
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.spi.recurring import TickResult

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def test_n1_a_nudge_is_followed_by_exactly_one_run(shop: Shop):
    shop.nudge()

    assert shop.settle() == 1
    [job] = shop.instances()
    assert (job.cron_origin, job.fire_time) == (CronOrigin.NUDGE, None)


def test_n1_a_run_in_flight_never_counts(shop: Shop):
    shop.nudge()
    shop.tick()
    node, running = shop.claim()
    shop.nudge()

    assert [outcome.result for outcome in shop.tick()] == [TickResult.HELD]
    shop.finish(node, running)

    assert shop.settle() == 1
    assert len(shop.instances()) == 2


def test_n1_an_instance_that_waits_in_the_queue_never_counts(shop: Shop):
    shop.nudge()
    shop.tick()
    shop.nudge()

    assert shop.settle() == 2


def test_n1_a_nudge_that_commits_while_its_row_is_older_than_the_run_counts(pg_shop: Shop):
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        pg_shop.nudge()
        assert pg_shop.settle() == 1

    assert pg_shop.settle() == 1


def test_n1_a_joined_nudge_is_seen_with_its_rows_and_not_before(sql_shop: Shop):
    with sql_shop.transaction() as session:
        sql_shop.tm.nudge(PUMP, session)
        with sql_shop.sql.connect() as reader:
            assert 0 == reader.scalar(text("SELECT count(*) FROM threadmill_cron_nudges"))
            assert 0 == reader.scalar(text("SELECT count(*) FROM orders"))

    assert sql_shop.settle() == 1


def test_n1_compaction_keeps_the_earliest_request_and_a_nudge_that_commits_between(pg_shop: Shop):
    pg_shop.nudge()
    pg_shop.tick()
    node, running = pg_shop.claim()
    pg_shop.nudge()
    earliest = pg_shop.view().nudge_requested_at
    pg_shop.nudge()

    with pg_shop.transaction() as session:
        late = pg_shop.tm.nudge(PUMP, session)
        assert [outcome.result for outcome in pg_shop.tick()] == [TickResult.HELD]
        assert len(pg_shop.view().nudge_revisions) == 1
        assert pg_shop.view().nudge_requested_at == earliest

    assert late.revision in pg_shop.view().nudge_revisions
    pg_shop.finish(node, running)
    assert pg_shop.settle() == 1


def test_n1_pending_nudges_show_the_earliest_request_on_every_store(shop: Shop):
    shop.nudge()
    earliest = shop.view().nudge_requested_at
    shop.nudge()
    shop.nudge()

    assert shop.view().nudge_requested_at == earliest


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n1_holds_wherever_accept_and_commit_fall_between_the_statements_of_a_tick(
    pg_shop: Shop, actor_engine: Engine, isolation: str
):
    """Every schedule of {accept, commit} against the statements of one materializing commit."""
    other_node = Threadmill(actor_engine)
    served = 0
    for accept, commit in _schedules(of=8):
        name = pg_shop.fresh_task()
        pg_shop.nudge(name)
        actor = Stepped(actor_engine, other_node.tick)
        actor.advance(accept)
        with pg_shop.transaction(isolation) as session:
            pg_shop.tm.nudge(name, session)
            actor.advance(commit)
        taken = _has_consumed(actor.statements)
        actor.end()

        [first] = pg_shop.instances(name)
        assert pg_shop.pending(name) is taken, (accept, commit, actor.statements)
        served += not taken
        pg_shop.settle()
        assert len(pg_shop.instances(name)) == 1 + taken
        assert first.cron_origin is CronOrigin.NUDGE
    assert served > 0


def test_n1_holds_wherever_accept_and_commit_fall_between_the_statements_of_a_compaction(
    pg_shop: Shop, actor_engine: Engine
):
    other_node = Threadmill(actor_engine)
    for accept, commit in _schedules(of=7):
        name = pg_shop.fresh_task()
        pg_shop.nudge(name)
        pg_shop.tick()
        pg_shop.nudge(name)
        earliest = pg_shop.view(name).nudge_requested_at
        pg_shop.nudge(name)
        actor = Stepped(actor_engine, other_node.tick)
        actor.advance(accept)
        with pg_shop.transaction() as session:
            pg_shop.tm.nudge(name, session)
            actor.advance(commit)
        assert [outcome.result for outcome in actor.end()] == [TickResult.HELD]

        assert pg_shop.view(name).nudge_requested_at == earliest
        assert pg_shop.settle() == 2, (accept, commit)
        assert not pg_shop.pending(name)


def test_n1_a_prepared_transaction_counts_from_its_commit_on(
    postgres_servers: Callable[[str], Server], open_shop: Callable[[Engine | None], Shop]
):
    server = postgres_servers(EMBEDDED)  # it allows prepared transactions
    with server.fresh_database() as url, engine_for(url) as engine:
        shop = open_shop(engine)
        with engine.connect() as connection:
            transaction = connection.begin_twophase()
            connection.execute(text("INSERT INTO orders DEFAULT VALUES"))
            shop.tm.nudge(PUMP, connection)
            transaction.prepare()

            assert shop.settle() == 0
            shop.nudge()
            assert shop.settle() == 1
            transaction.commit()
        assert shop.settle() == 1

        with engine.connect() as connection:
            transaction = connection.begin_twophase()
            shop.tm.nudge_many([PUMP, OTHER], connection)
            transaction.prepare()
            transaction.rollback()
        assert shop.settle() == 0


def test_n1_a_fire_that_is_due_serves_the_nudge_too(shop: Shop):
    shop.nudge()

    done = shop.tick(later=timedelta(hours=1, minutes=1))
    [outcome] = [each for each in done if each.name == PUMP]

    assert outcome.origin is CronOrigin.SCHEDULE
    assert not shop.pending()


def _schedules(*, of: int) -> list[tuple[int, int]]:
    return [(accept, commit) for accept in range(of) for commit in range(accept, of)]


def _has_consumed(statements: list[str]) -> bool:
    return any("DELETE FROM" in statement for statement in statements)
