"""N7: a joined nudge or enqueue adds no error to the caller's transaction and waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.fixtures.servers import EMBEDDED, Server
from tests.fixtures.sql import engine_for
from tests.promises.shop import OTHER, PUMP, WAIT_SECONDS, Shop, background, in_thread
from threadmill_sa import Threadmill

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
PRODUCERS = 16


def _open(engine: Engine, isolation: str) -> Session:
    return Session(engine.execution_options(isolation_level=isolation))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n7_two_tasks_nudged_in_opposite_order_neither_wait_nor_deadlock(
    pg_shop: Shop, actor_engine: Engine, isolation: str
):
    tm = Threadmill(actor_engine)
    with _open(actor_engine, isolation) as first, _open(actor_engine, isolation) as second:
        tm.nudge(PUMP, first)
        tm.nudge(OTHER, second)
        tm.nudge(OTHER, first)
        tm.nudge(PUMP, second)
        second.commit()
        first.commit()

    assert 2 == len(pg_shop.view(PUMP).nudge_revisions) == len(pg_shop.view(OTHER).nudge_revisions)
    assert pg_shop.settle() == 2


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n7_one_task_nudged_by_many_open_transactions_makes_none_of_them_wait(
    pg_shop: Shop, actor_engine: Engine, isolation: str
):
    tm = Threadmill(actor_engine)
    sessions = [_open(actor_engine, isolation) for _ in range(5)]
    for session in sessions:
        tm.nudge(PUMP, session)
    for session in sessions:
        tm.nudge(PUMP, session)
        session.commit()
        session.close()

    assert len(pg_shop.view().nudge_revisions) == 5
    assert pg_shop.settle() == 1


def test_n7_equal_revisions_after_a_failover_fail_no_caller(pg_shop: Shop, actor_engine: Engine):
    # An asynchronous failover can lose the last value of the sequence while producers live on.
    for task in (PUMP, OTHER, PUMP):
        tm = Threadmill(actor_engine)
        with Session(actor_engine) as session, session.begin():
            given = tm.nudge(task, session).revision
        with actor_engine.begin() as connection:
            connection.execute(text("ALTER SEQUENCE threadmill_nudge_revision_seq RESTART"))

    assert pg_shop.view(PUMP).nudge_revisions == pg_shop.view(OTHER).nudge_revisions == {given}
    assert pg_shop.settle() == 2


def test_n1_the_sweep_takes_no_living_nudge_whose_revision_equals_that_of_a_dead_one(
    pg_shop: Shop, actor_engine: Engine
):
    with Session(actor_engine) as session, session.begin():
        Threadmill(actor_engine).nudge(OTHER, session)
        pg_shop.tm.delete_recurring(OTHER)
    with actor_engine.begin() as connection:
        connection.execute(text("ALTER SEQUENCE threadmill_nudge_revision_seq RESTART"))
    with Session(actor_engine) as session, session.begin():
        Threadmill(actor_engine).nudge(PUMP, session)

    assert pg_shop.store.recurring.sweep_nudges(limit=10) == 1
    assert pg_shop.settle() == 1


def test_n7_a_compacted_nudge_stands_where_no_transaction_id_will_ever_be(pg_shop: Shop):
    pg_shop.nudge()
    pg_shop.tick()
    for _ in range(3):
        pg_shop.nudge()
    pg_shop.tick()

    with pg_shop.sql.connect() as connection:
        slots = connection.scalars(text("SELECT slot FROM threadmill_cron_nudges")).all()
    assert len(slots) == 1
    assert slots[0] < 0


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_n7_sixteen_callers_beside_ticks_and_lifecycle_calls_meet_no_error(
    pg_shop: Shop, isolation: str
):
    def produce() -> None:
        for number in range(12):
            with pg_shop.transaction(isolation) as session:
                for name in (PUMP, OTHER)[:: 1 if number % 2 else -1]:
                    pg_shop.tm.nudge(name, session)
                pg_shop.tm.enqueue("mail", number, session=session)
                with session.begin_nested() as savepoint:
                    pg_shop.tm.nudge(PUMP, session)
                    if number % 3 == 0:
                        savepoint.rollback()

    def engine() -> None:
        pg_shop.tick()
        pg_shop.run_all()
        pg_shop.store.jobs.fold_counts(limit=100)
        pg_shop.store.recurring.sweep_nudges(limit=100)

    def operator() -> None:
        name = pg_shop.fresh_task()
        pg_shop.tm.set_enabled(name, False)
        pg_shop.tm.register()
        pg_shop.tm.trigger(PUMP)
        pg_shop.tm.delete_recurring(name)

    with background(engine, operator):
        # Any error of a producer's transaction is raised here: none of them reads what another
        # writes, so a serializable one has no reason of its own to fail.
        for wait in [in_thread(produce) for _ in range(PRODUCERS)]:
            wait()

    with pg_shop.sql.connect() as connection:
        assert PRODUCERS * 12 == connection.scalar(text("SELECT count(*) FROM orders"))
    pg_shop.settle()
    assert not pg_shop.pending(PUMP)
    assert not pg_shop.pending(OTHER)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("many", [False, True])
def test_n7_thirty_two_callers_enqueue_into_two_queues_in_opposite_order_without_an_error(
    pg_shop: Shop, pg_url: str, isolation: str, many: bool
):
    rounds, callers = 3, 32
    engine = pg_shop.sql
    meet = threading.Barrier(callers)

    def produce(seed: int) -> None:
        order = ("red", "blue") if seed % 2 else ("blue", "red")
        for _ in range(rounds):
            meet.wait(WAIT_SECONDS)
            with _open(wide, isolation) as session, session.begin():
                for queue in order:
                    if many:
                        tm.enqueue_many([("mail", 1), ("mail", 2)], session, queue=queue)
                    else:
                        tm.enqueue("mail", seed, session=session, queue=queue)

    wide = create_engine(engine.url, pool_size=callers)
    tm = Shop(Threadmill(wide)).tm
    for wait in [in_thread(partial(produce, seed)) for seed in range(callers)]:
        wait()

    expected = rounds * callers * (2 if many else 1)
    assert {"red": expected, "blue": expected} == dict(pg_shop.store.jobs.queue_depths())
    tm.close()
    wide.dispose()


def test_n7_rollback_and_savepoint_rollback_remove_exactly_their_own(sql_shop: Shop):
    with Session(sql_shop.sql) as session:
        session.execute(text("INSERT INTO orders DEFAULT VALUES"))
        sql_shop.tm.nudge(PUMP, session)
        sql_shop.tm.enqueue("mail", 1, session=session)
        with session.begin_nested() as savepoint:
            sql_shop.tm.nudge(OTHER, session)
            sql_shop.tm.enqueue("mail", 2, session=session)
            savepoint.rollback()
        session.commit()
        assert (sql_shop.pending(PUMP), sql_shop.pending(OTHER)) == (True, False)
        assert len(sql_shop.tm.list_jobs()) == 1

        with session.begin_nested():
            sql_shop.tm.nudge(OTHER, session)
            sql_shop.tm.enqueue("mail", 3, session=session)
        session.rollback()
    assert not sql_shop.pending(OTHER)
    assert len(sql_shop.tm.list_jobs()) == 1
    assert {"mail": 1} == dict(sql_shop.store.jobs.queue_depths())


def test_n7_a_savepoint_rolled_back_around_a_repeated_nudge_keeps_the_first(sql_shop: Shop):
    with sql_shop.transaction() as session:
        kept = sql_shop.tm.nudge(PUMP, session)
        with session.begin_nested() as savepoint:
            sql_shop.tm.nudge(PUMP, session)
            savepoint.rollback()

    assert sql_shop.view().nudge_revisions == {kept.revision}


def test_n7_deep_savepoints_in_which_each_level_nudges_and_every_second_is_undone(sql_shop: Shop):
    names = [sql_shop.fresh_task() for _ in range(6)]
    with sql_shop.transaction() as session:
        _nest(sql_shop, session, names)

    # The third level is undone with all that is in it.
    assert [True, True, False, False, False, False] == [sql_shop.pending(n) for n in names]


def _nest(shop: Shop, session: Session, names: list[str]) -> None:
    if not names:
        return
    with session.begin_nested() as savepoint:
        shop.tm.nudge(names[0], session)
        _nest(shop, session, names[1:])
        if len(names) % 4 == 0:
            savepoint.rollback()


def test_n7_the_caller_may_go_on_after_our_statements_failed_with_its_own_error(pg_shop: Shop):
    """An error of the caller's own, around ours, is undone by its savepoint as ever."""
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        savepoint = session.begin_nested()
        pg_shop.tm.nudge(OTHER, session)
        with pytest.raises(DBAPIError, match="division by zero"):
            session.execute(text("SELECT 1/0"))
        savepoint.rollback()
        pg_shop.tm.enqueue("mail", 1, session=session)

    assert (pg_shop.pending(PUMP), pg_shop.pending(OTHER)) == (True, False)


def test_n7_a_joined_nudge_is_one_statement_and_a_joined_enqueue_too(sql_shop: Shop):
    sql_shop.nudge()  # what happens once in a process is over
    statements: list[str] = []
    event.listen(sql_shop.sql, "before_cursor_execute", lambda *call: statements.append(call[2]))
    with sql_shop.transaction() as session:
        before = len(statements)
        sql_shop.tm.nudge(PUMP, session)
        sql_shop.tm.enqueue("mail", 1, session=session)
        sql_shop.tm.enqueue_many([("mail", 1), ("mail", 2)], session)
        assert len(statements) - before == 3


def test_n7_sequences_are_bigint_and_nothing_fails_beyond_32_bits(pg_shop: Shop):
    """A sequence that joined writes draw from does not end with the 32-bit range."""
    far = 2**53 + 7
    with pg_shop.sql.begin() as connection:
        for name in ("nudge_revision_seq", "epoch_seq", "count_deltas_id_seq",
                     "job_history_id_seq"):  # fmt: skip
            connection.execute(text(f"SELECT setval('threadmill_{name}', {far})"))
    name = pg_shop.fresh_task()
    with pg_shop.transaction() as session:
        receipt = pg_shop.tm.nudge(name, session)
        pg_shop.tm.enqueue("mail", 1, session=session)

    assert receipt.revision is not None
    assert receipt.revision > far
    assert pg_shop.view(name).epoch > far
    assert pg_shop.settle() == 2


@pytest.mark.parametrize("two_phase", [False, True])
def test_n7_transactions_of_every_kind_end_as_their_caller_says(
    postgres_servers: Callable[[str], Server],
    open_shop: Callable[[Engine | None], Shop],
    two_phase: bool,
):
    with postgres_servers(EMBEDDED).fresh_database() as url, engine_for(url) as engine:
        shop = open_shop(engine)
        with Session(engine, twophase=two_phase) as session:
            session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            shop.tm.nudge(PUMP, session)
            shop.tm.enqueue("mail", 1, session=session)
            if two_phase:
                session.prepare()
            session.rollback()
            assert shop.settle() == 0
            shop.tm.nudge(PUMP, session)
            if two_phase:
                session.prepare()
                assert shop.settle() == 0
            session.commit()
        assert shop.settle() == 1
