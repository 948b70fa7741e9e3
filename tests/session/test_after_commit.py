from __future__ import annotations

import logging
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, event, exc, select, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.session.conftest import OTHER, PAUSED, PUMP, Order, open_desk
from threadmill_sa.errors import (
    AfterCommitError,
    AutocommitError,
    CannotJoinError,
    TaskDisabledError,
    UnknownTaskError,
)
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.nudge import EnqueueMode, NudgeReceipt
from threadmill_sa.session import hooks
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing import treat_commit_as_final

AFTER = "after_commit"


def new_job(**values) -> NewJob:
    return NewJob(id=JobId(uuid4()), handler="mail", **values)


def test_a_committed_session_nudges_once_after_the_commit(desk, counted):
    with Session(desk.engine) as session:
        session.add(Order())
        receipts = desk.nudge([PUMP], session, mode=AFTER)
        assert receipts == [NudgeReceipt(PUMP, EnqueueMode.AFTER_COMMIT, None)]
        assert desk.pending() == 0
        session.commit()
    assert desk.pending() == 1
    assert counted("written") == 1


def test_a_rollback_discards_and_the_session_goes_on(desk, counted):
    with Session(desk.engine) as session:
        desk.nudge([PUMP], session, mode=AFTER)
        session.rollback()
        session.add(Order())
        session.commit()
    assert desk.pending() == 0
    assert counted("discarded") == 1


def test_close_without_commit_discards_and_the_session_can_be_used_again(desk):
    session = Session(desk.engine)
    desk.nudge([PUMP], session, mode=AFTER)
    session.close()
    session.add(Order())
    session.commit()
    assert desk.pending() == 0
    desk.nudge([PUMP], session, mode=AFTER)
    session.commit()
    assert desk.pending() == 1
    session.close()


def test_the_nudge_alone_is_enough_to_commit_or_to_roll_back(desk):
    session = Session(desk.engine)
    desk.nudge([PUMP], session, mode=AFTER)
    session.rollback()
    session.commit()
    assert desk.pending() == 0
    desk.nudge([PUMP], session, mode=AFTER)
    session.commit()
    assert desk.pending() == 1
    session.close()


def test_a_released_savepoint_shares_the_fate_of_the_outer_rollback(desk):
    with Session(desk.engine) as session:
        session.add(Order())
        with session.begin_nested():
            desk.nudge([PUMP], session, mode=AFTER)
        session.rollback()
        session.commit()
    assert desk.pending() == 0


def test_a_rolled_back_savepoint_discards_only_its_own(desk):
    with Session(desk.engine) as session:
        session.add(Order())
        desk.nudge([PUMP], session, mode=AFTER)
        inner = session.begin_nested()
        desk.nudge([PUMP, OTHER], session, mode=AFTER)
        inner.rollback()
        session.commit()
    assert desk.pending(PUMP) == 1
    assert desk.pending(OTHER) == 0


def test_nested_savepoints_hand_over_level_by_level(desk):
    with Session(desk.engine) as session:
        with session.begin_nested():
            with session.begin_nested():
                desk.nudge([PUMP], session, mode=AFTER)
            doomed = session.begin_nested()
            with session.begin_nested():
                desk.nudge([OTHER], session, mode=AFTER)
            doomed.rollback()
        assert desk.pending(PUMP) == 0
        session.commit()
    assert desk.pending(PUMP) == 1
    assert desk.pending(OTHER) == 0


@pytest.mark.parametrize("flushed", [True, False])
def test_a_closed_savepoint_discards_its_own_whatever_happens_to_its_rows(desk, counted, flushed):
    with Session(desk.engine) as session:
        desk.nudge([PUMP], session, mode=AFTER)
        savepoint = session.begin_nested()
        session.add(Order())
        if flushed:
            session.flush()
        desk.nudge([OTHER], session, mode=AFTER)
        savepoint.close()
        session.commit()
    # SQLAlchemy keeps what was not flushed for the transaction around.
    assert desk.orders() == (0 if flushed else 1)
    assert (desk.pending(PUMP), desk.pending(OTHER)) == (1, 0)
    assert (counted("written"), counted("discarded")) == (1, 1)


def test_closing_a_savepoint_around_an_open_one_keeps_nothing_of_both(desk, counted):
    with Session(desk.engine) as session:
        session.add(Order())
        around = session.begin_nested()
        session.begin_nested()
        desk.nudge([OTHER], session, mode=AFTER)
        around.close()
        assert session.info[hooks._KEY] == {}
        assert counted("discarded") == 1
        desk.nudge([PUMP], session, mode=AFTER)
        session.commit()
        assert session.info[hooks._KEY] == {}
    assert (desk.pending(PUMP), desk.pending(OTHER)) == (1, 0)


def test_an_open_savepoint_is_released_by_the_outer_commit(desk):
    with Session(desk.engine) as session:
        session.begin_nested()
        desk.nudge([PUMP], session, mode=AFTER)
        session.commit()
    assert desk.pending() == 1


def test_many_nudges_of_one_task_in_one_transaction_are_one_write(memory_desk):
    with Session(memory_desk.engine) as session:
        for _ in range(50):
            memory_desk.nudge([PUMP], session)
        session.commit()
    assert memory_desk.written == [PUMP]
    assert memory_desk.wakes == 1


def test_a_removed_scoped_session_discards(desk):
    registry = scoped_session(sessionmaker(desk.engine))
    desk.nudge([PUMP], registry, mode=AFTER)
    registry.remove()
    registry.commit()
    assert desk.pending() == 0
    desk.nudge([PUMP], registry, mode=AFTER)
    registry.commit()
    assert desk.pending() == 1
    registry.remove()


def test_a_nudge_during_a_flush_belongs_to_the_enclosing_transaction(desk):
    class Shop(Session):
        pass

    event.listen(Shop, "after_flush", lambda s, _c: desk.nudge([PUMP], s, mode=AFTER))
    with Shop(desk.engine) as session:
        session.add(Order())
        session.commit()
    assert desk.pending() == 1


def test_a_savepoint_inside_a_flush_hands_over_to_the_enclosing_transaction(desk):
    class Shop(Session):
        pass

    @event.listens_for(Shop, "after_flush")
    def audit(session: Session, _context: object) -> None:
        with session.begin_nested():
            desk.nudge([PUMP], session, mode=AFTER)

    with Shop(desk.engine) as session:
        session.add(Order())
        session.commit()
    assert desk.pending() == 1


@pytest.mark.parametrize("store_kind", ["memory", "sql"])
def test_a_pool_of_one_does_not_deadlock(sql_url, store_kind):
    from tests.fixtures.sqlite import configured_sqlite_engine

    if sql_url.startswith("sqlite"):
        configured_sqlite_engine(sql_url).dispose()
    engine = create_engine(sql_url, pool_size=1, max_overflow=0, pool_timeout=0.2)
    store = MemoryStore() if store_kind == "memory" else SqlStore(engine)
    desk = open_desk(engine, store)
    with Session(engine) as session:
        session.add(Order())
        desk.nudge([PUMP], session, mode=AFTER)
        desk.boundary.insert([new_job()], session, mode=AFTER)
        session.commit()
        session.scalar(select(1))
    assert desk.pending() == 1
    assert sum(desk.store.jobs.counts().values()) == 1
    store.close()
    engine.dispose()


def test_expired_attributes_are_not_touched_after_the_commit(desk):
    with Session(desk.engine, expire_on_commit=True) as session:
        order = Order(note=PUMP)
        session.add(order)
        session.flush()
        desk.nudge([order.note], session, mode=AFTER)
        session.commit()
    assert desk.pending() == 1


def test_a_failing_write_is_isolated_logged_and_counted(desk, counted, caplog):
    after_ours: list[str] = []

    def fail(name: str) -> None:
        if name == OTHER:
            raise OSError("the store is away")

    desk.fail = fail
    with Session(desk.engine) as session:
        event.listen(session, "after_transaction_end", lambda _s, _t: after_ours.append("end"))
        session.add(Order())
        desk.nudge([OTHER, PUMP], session, mode=AFTER)
        desk.boundary.insert([new_job()], session, mode=AFTER)
        with caplog.at_level(logging.ERROR, logger="threadmill_sa"):
            session.commit()
        assert session.scalar(select(1)) == 1
    assert desk.orders() == 1
    assert (desk.pending(OTHER), desk.pending(PUMP)) == (0, 1)
    assert sum(desk.store.jobs.counts().values()) == 1
    assert after_ours
    assert counted("failed") == 1
    assert "the store is away" in caplog.text


def test_an_interrupt_in_a_write_is_passed_on_after_the_others_had_their_turn(memory_desk):
    def fail(name: str) -> None:
        if name == OTHER:
            raise KeyboardInterrupt

    memory_desk.fail = fail
    with Session(memory_desk.engine) as session:
        session.add(Order())
        memory_desk.nudge([OTHER, PUMP], session)
        with pytest.raises(KeyboardInterrupt):
            session.commit()
    assert memory_desk.pending(PUMP) == 1
    assert memory_desk.orders() == 1


def test_host_hooks_that_raise_after_ours_do_not_lose_the_nudge(desk):
    def angry(_session: Session) -> None:
        raise RuntimeError("host")

    session = Session(desk.engine)
    event.listen(session, "after_commit", angry)
    session.add(Order())
    desk.nudge([PUMP], session, mode=AFTER)
    with pytest.raises(RuntimeError, match="host"):
        session.commit()
    session.close()
    assert desk.orders() == 1
    assert desk.pending() == 1


def test_host_hooks_registered_on_the_class_before_ours_cannot_hide_the_mark(desk):
    def angry(_session: Session) -> None:
        raise RuntimeError("host")

    hooks.remove()
    event.listen(Session, "after_commit", angry)
    try:
        hooks.install()
        session = Session(desk.engine)
        desk.nudge([PUMP], session, mode=AFTER)
        with pytest.raises(RuntimeError, match="host"):
            session.commit()
        session.close()
    finally:
        event.remove(Session, "after_commit", angry)
    assert desk.pending() == 1


def test_a_hook_inserted_in_front_on_a_subclass_can_hide_the_mark_as_documented(desk, counted):
    class Shop(Session):
        pass

    def angry(_session: Session) -> None:
        raise RuntimeError("host")

    event.listen(Shop, "after_commit", angry, insert=True)
    session = Shop(desk.engine)
    session.add(Order())
    desk.nudge([PUMP], session, mode=AFTER)
    with pytest.raises(RuntimeError, match="host"):
        session.commit()
    session.close()
    assert desk.orders() == 1
    assert desk.pending() == 0  # the schedule covers it
    assert counted("discarded") == 1


def test_a_raising_before_commit_hook_discards(desk):
    def angry(_session: Session) -> None:
        raise RuntimeError("host")

    with Session(desk.engine) as session:
        event.listen(session, "before_commit", angry)
        desk.nudge([PUMP], session, mode=AFTER)
        with pytest.raises(RuntimeError, match="host"):
            session.commit()
        session.rollback()
    assert desk.pending() == 0


LINES = """CREATE TABLE desk_lines (
    order_id INTEGER REFERENCES desk_orders (id) DEFERRABLE INITIALLY DEFERRED
)"""


def foreign_keys_on(dbapi_connection, _record) -> None:
    dbapi_connection.execute("PRAGMA foreign_keys = ON")


@pytest.mark.parametrize("mode", [AFTER, "join_transaction"])
def test_a_commit_that_fails_nudges_nothing(sql_desk, mode):
    if sql_desk.engine.dialect.name == "sqlite":
        event.listen(sql_desk.engine, "connect", foreign_keys_on)
        sql_desk.engine.dispose()
    with sql_desk.engine.begin() as connection:
        connection.execute(text(LINES))
    with Session(sql_desk.engine) as session:
        session.execute(text("INSERT INTO desk_lines VALUES (4711)"))
        sql_desk.nudge([PUMP], session, mode=mode)
        with pytest.raises(exc.IntegrityError):
            session.commit()
    assert sql_desk.pending() == 0


def test_one_of_several_engines_failing_at_commit_nudges_nothing(pg_desk, sqlite_engine):
    with pg_desk.engine.begin() as connection:
        connection.execute(text(LINES))
    desk = open_desk(sqlite_engine, MemoryStore())
    with Session(pg_desk.engine, binds={Order: sqlite_engine}) as session:
        session.add(Order())
        session.flush()
        session.execute(text("INSERT INTO desk_lines VALUES (4711)"))
        desk.nudge([PUMP], session)
        with pytest.raises(exc.IntegrityError):
            session.commit()
    assert desk.pending() == 0


def test_a_two_phase_session_nudges_at_its_commit_and_not_when_prepared(two_phase_desk):
    for finish, expected in (("rollback", 0), ("commit", 1)):
        with Session(two_phase_desk.engine, twophase=True) as session:
            session.add(Order())
            two_phase_desk.nudge([PUMP], session, mode=AFTER)
            session.prepare()
            assert two_phase_desk.pending() == 0
            getattr(session, finish)()
        assert two_phase_desk.pending() == expected


def test_a_bare_connection_is_refused_with_the_cure(desk):
    with desk.engine.connect() as connection:
        with pytest.raises(AfterCommitError, match="bare Connection") as refusal:
            desk.nudge([PUMP], connection, mode=AFTER)
        connection.execute(text("SELECT 1"))
    cure = "join_transaction" if desk.store.capabilities.joins else "without a session"
    assert cure in str(refusal.value)
    assert refusal.value.code == "TM-J05"
    assert desk.pending() == 0


MODES = ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]


@pytest.mark.parametrize("join_mode", MODES)
def test_a_session_on_a_connection_is_refused_unless_its_commit_is_final(memory_desk, join_mode):
    with memory_desk.engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=join_mode) as session:
            with pytest.raises(AfterCommitError, match="treat_commit_as_final"):
                memory_desk.nudge([PUMP], session)
            with pytest.raises(AfterCommitError):
                memory_desk.boundary.insert([new_job()], session)
            session.add(Order())
            with treat_commit_as_final():
                memory_desk.nudge([PUMP], session)
            session.commit()
            assert memory_desk.pending() == 1
        if outer.is_active:
            outer.rollback()
    with (
        memory_desk.engine.connect() as connection,
        connection.begin(),
        Session(binds={Order: connection}) as session,
        pytest.raises(AfterCommitError),
    ):
        memory_desk.nudge([PUMP], session)


def test_autocommit_is_refused_by_name(sql_desk):
    engine = sql_desk.engine.execution_options(isolation_level="AUTOCOMMIT")
    for mode in (AFTER, "join_transaction"):
        with Session(engine) as session, pytest.raises(AutocommitError):
            sql_desk.nudge([PUMP], session, mode=mode)
    assert sql_desk.pending() == 0


@pytest.mark.parametrize("mode", list(EnqueueMode))
def test_unknown_and_disabled_tasks_are_refused_at_the_call(sql_desk, mode):
    with Session(sql_desk.engine) as session:
        with pytest.raises(UnknownTaskError, match="'nobody'") as unknown:
            sql_desk.nudge(["nobody"], session, mode=mode)
        with pytest.raises(TaskDisabledError, match="'paused-pump'") as disabled:
            sql_desk.nudge([PAUSED], session, mode=mode)
        session.add(Order())
        session.commit()
    assert unknown.value.tasks == ("nobody",)
    assert disabled.value.task == PAUSED
    assert sql_desk.orders() == 1
    assert sql_desk.pending() == 0


@pytest.mark.parametrize("mode", [EnqueueMode.AFTER_COMMIT, EnqueueMode.IMMEDIATE])
def test_refusals_hold_for_a_store_that_cannot_join(memory_desk, mode):
    with Session(memory_desk.engine) as session:
        with pytest.raises(UnknownTaskError):
            memory_desk.nudge(["nobody"], session, mode=mode)
        with pytest.raises(TaskDisabledError):
            memory_desk.nudge([PAUSED], session, mode=mode)
        with pytest.raises(CannotJoinError, match="memory"):
            memory_desk.nudge([PUMP], session, mode="join_transaction")
        session.commit()


@pytest.mark.parametrize("mode", list(EnqueueMode))
def test_one_error_lists_every_bad_name_and_nothing_is_written(sql_desk, mode):
    names = ["nobody", PUMP, PAUSED, "no-one"]
    with Session(sql_desk.engine) as session:
        with pytest.raises(UnknownTaskError) as refusal:
            sql_desk.nudge(names, session, mode=mode)
        session.commit()
    assert refusal.value.tasks == ("nobody", "no-one", PAUSED)
    assert refusal.value.unknown == ("nobody", "no-one")
    assert refusal.value.disabled == (PAUSED,)
    assert all(repr(name) in str(refusal.value) for name in refusal.value.tasks)
    assert sql_desk.pending() == 0


def test_a_task_paused_between_check_and_write_is_counted_and_logged(desk, counted, caplog):
    with Session(desk.engine) as session:
        desk.nudge([PUMP], session, mode=AFTER)
        if desk.store.capabilities.concurrent_writers or not desk.store.capabilities.joins:
            desk.store.recurring.set_enabled(PUMP, enabled=False)
            expected = "disabled"
        else:
            session.commit()
            desk.nudge([PUMP], session, mode=AFTER)
            desk.store.recurring.delete(PUMP)
            expected = "deleted"
        with caplog.at_level(logging.WARNING, logger="threadmill_sa"):
            session.commit()
    assert counted("refused") == 1
    assert expected in caplog.text


def test_a_session_that_must_be_rolled_back_is_refused(memory_desk):
    with Session(memory_desk.engine) as session:
        session.execute(text("INSERT INTO desk_orders VALUES (1, '')"))
        session.add(Order(id=1))
        with pytest.raises(exc.IntegrityError):
            session.flush()
        with pytest.raises(AfterCommitError, match="roll back"):
            memory_desk.nudge([PUMP], session)
        session.rollback()
        memory_desk.nudge([PUMP], session)
        session.commit()
    assert memory_desk.pending() == 1


def test_a_session_without_autobegin_must_have_begun(memory_desk):
    with Session(memory_desk.engine, autobegin=False) as session:
        with pytest.raises(AfterCommitError, match="begin"):
            memory_desk.nudge([PUMP], session)
        with session.begin():
            memory_desk.nudge([PUMP], session)
    assert memory_desk.pending() == 1


def test_a_savepoint_on_plain_sqlite_can_wait_for_the_commit(sqlite_plain_engine):
    desk = open_desk(sqlite_plain_engine, SqlStore(sqlite_plain_engine))
    with Session(sqlite_plain_engine) as session:
        with session.begin_nested():
            desk.nudge([PUMP], session, mode=AFTER)
        session.commit()
    assert desk.pending() == 1
