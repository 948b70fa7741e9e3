from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from uuid import uuid4

import pytest
from sqlalchemy import UpdateBase, create_engine, event, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.session.conftest import ORDERS, OTHER, PUMP, Order, open_desk
from threadmill_sa.errors import ForeignSessionError, SavepointError, TaskDisabledError
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.nudge import EnqueueMode
from threadmill_sa.spi.store import CannotJoin, JoinedWrites
from threadmill_sa.stores.sql.store import SqlStore


class WakeRecorder:
    """A channel that writes down what it was asked for."""

    def __init__(self) -> None:
        self.sent = 0
        self.slots: list[int] = []

    def notify(self) -> None:
        self.sent += 1

    def notify_when_committed(self, slot: int) -> None:
        self.slots.append(slot)

    def listen(self, on_wake: Callable[[], None]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class RecordedStore(SqlStore):
    """The real store with a channel that can be read."""

    @cached_property
    def wakes(self) -> WakeRecorder:
        return WakeRecorder()


@pytest.fixture
def desk(sql_engine):
    return open_desk(sql_engine, RecordedStore(sql_engine))


def new_job() -> NewJob:
    return NewJob(id=JobId(uuid4()), handler="mail")


def jobs(desk) -> int:
    return sum(desk.store.jobs.counts().values())


def test_join_is_the_default_and_commits_with_the_rows(desk):
    with Session(desk.engine) as session, session.begin():
        session.add(Order())
        [receipt] = desk.nudge([PUMP], session)
        desk.boundary.insert([new_job(), new_job()], session)
        assert receipt.mode is EnqueueMode.JOIN_TRANSACTION
        assert receipt.revision is not None
        assert desk.wakes == 0
    assert (desk.orders(), desk.pending(), jobs(desk)) == (1, 1, 2)
    assert (desk.wakes, desk.store.wakes.sent) == (1, 1)


def test_a_rollback_takes_the_nudge_and_the_jobs_with_it(desk):
    with Session(desk.engine) as session:
        session.add(Order())
        desk.nudge([PUMP], session)
        desk.boundary.insert([new_job()], session)
        session.rollback()
    assert (desk.orders(), desk.pending(), jobs(desk)) == (0, 0, 0)
    assert (desk.wakes, desk.store.wakes.sent) == (0, 0)


def test_savepoints_decide_about_what_was_nudged_inside(desk):
    with Session(desk.engine) as session:
        session.add(Order())
        inner = session.begin_nested()
        desk.nudge([OTHER], session)
        inner.rollback()
        with session.begin_nested():
            desk.nudge([PUMP], session)
        session.commit()
    assert (desk.pending(PUMP), desk.pending(OTHER)) == (1, 0)
    assert desk.wakes == 1
    with Session(desk.engine) as session:
        session.add(Order())
        with session.begin_nested():
            desk.nudge([OTHER], session)
        session.rollback()
    assert (desk.orders(), desk.pending(OTHER), desk.wakes) == (1, 0, 1)


@pytest.mark.parametrize("flushed", [True, False])
def test_a_closed_savepoint_takes_its_nudges_whatever_happens_to_its_rows(desk, flushed):
    with Session(desk.engine) as session:
        desk.nudge([PUMP], session)
        savepoint = session.begin_nested()
        session.add(Order())
        if flushed:
            session.flush()
        desk.nudge([OTHER], session)
        desk.boundary.insert([new_job()], session)
        savepoint.close()
        session.commit()
    # SQLAlchemy keeps what was not flushed for the transaction around.
    assert (desk.orders(), jobs(desk)) == (0 if flushed else 1, 0)
    assert (desk.pending(PUMP), desk.pending(OTHER)) == (1, 0)


def test_close_without_commit_and_reuse(desk):
    session = Session(desk.engine)
    desk.nudge([PUMP], session)
    session.close()
    session.add(Order())
    session.commit()
    assert (desk.orders(), desk.pending(), desk.wakes) == (1, 0, 0)
    session.close()


def test_a_removed_scoped_session(desk):
    registry = scoped_session(sessionmaker(desk.engine))
    desk.nudge([PUMP], registry)
    registry.remove()
    assert desk.pending() == 0
    desk.nudge([PUMP], registry)
    registry.commit()
    registry.remove()
    assert desk.pending() == 1


def test_a_bare_connection_joins_and_its_wake_waits_for_the_slot(desk):
    with desk.engine.begin() as connection:
        [receipt] = desk.nudge([PUMP], connection)
        with connection.begin_nested() as inner:
            desk.nudge([OTHER], connection)
            inner.rollback()
        assert receipt.revision is not None
    assert (desk.pending(PUMP), desk.pending(OTHER)) == (1, 0)
    slots = desk.store.wakes.slots
    assert len(slots) == 2
    assert len(set(slots)) == 1
    assert (desk.wakes, desk.store.wakes.sent) == (0, 0)


@pytest.mark.parametrize(
    ("join_mode", "session_commit_is_final"),
    [
        ("conditional_savepoint", False),
        ("rollback_only", False),
        ("create_savepoint", False),
        ("control_fully", True),
    ],
)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_session_on_a_connection_shares_the_fate_of_the_outer_transaction(
    desk, join_mode, session_commit_is_final, outcome
):
    with desk.engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=join_mode) as session:
            session.add(Order())
            desk.nudge([PUMP], session)
            session.commit()
        if outer.is_active:
            getattr(outer, outcome)()
    expected = 1 if session_commit_is_final or outcome == "commit" else 0
    assert (desk.orders(), desk.pending()) == (expected, expected)
    assert desk.wakes == 0  # nobody tells when it really commits; the slot is watched instead
    assert len(desk.store.wakes.slots) == 1


def test_many_nudges_in_one_transaction_are_one_wake(desk):
    with Session(desk.engine) as session:
        for _ in range(20):
            desk.nudge([OTHER, PUMP], session)
        with session.begin_nested():
            desk.nudge([PUMP], session)
        session.commit()
    assert (desk.wakes, desk.store.wakes.sent) == (1, 1)
    assert desk.pending() == 1


def test_receipts_keep_the_order_of_the_names(desk):
    with Session(desk.engine) as session:
        receipts = desk.nudge([PUMP, OTHER], session)
        session.commit()
    assert [receipt.task for receipt in receipts] == [PUMP, OTHER]
    assert len({receipt.revision for receipt in receipts}) == 2


def test_a_pool_of_one_joins(sql_url):
    engine = create_engine(sql_url, pool_size=1, max_overflow=0, pool_timeout=0.2)
    desk = open_desk(engine, SqlStore(engine))
    with Session(engine) as session:
        session.add(Order())
        session.flush()
        desk.nudge([PUMP], session)
        session.commit()
    assert desk.pending() == 1
    desk.store.close()
    engine.dispose()


def test_an_immediate_nudge_beside_the_last_connection_names_the_way_out(sql_url):
    from threadmill_sa.errors import StoreUnavailableError

    engine = create_engine(sql_url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    desk = open_desk(engine, SqlStore(engine))
    with Session(engine) as session:
        session.scalar(select(1))
        with pytest.raises(StoreUnavailableError, match="join_transaction"):
            desk.nudge([PUMP])
        with pytest.raises(StoreUnavailableError, match="join_transaction"):
            desk.boundary.insert([new_job()])
    desk.nudge([PUMP])
    assert desk.pending() == 1
    desk.store.close()
    engine.dispose()


def test_a_session_of_another_database_is_refused_without_sql(desk, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    for mode in ("join_transaction", "after_commit"):
        with Session(other) as session, pytest.raises(ForeignSessionError, match="also="):
            desk.nudge([PUMP], session, mode=mode)
        with Session(binds={Order: other}) as session, pytest.raises(ForeignSessionError):
            desk.nudge([PUMP], session, mode=mode)
    other.dispose()


class RoutingSession(Session):
    """Reads from a replica, writes to the primary, as SQLAlchemy's documentation shows it."""

    def __init__(self, primary, replica) -> None:
        super().__init__()
        self.primary, self.replica = primary, replica

    def get_bind(self, *_, clause=None, **__):
        writes = self._flushing or isinstance(clause, UpdateBase)
        return self.primary if writes else self.replica


@pytest.fixture
def replica(sql_url):
    engine = create_engine(sql_url)
    read_only = "PRAGMA query_only = 1"
    if engine.dialect.name == "postgresql":
        read_only = "SET default_transaction_read_only = on; COMMIT"
    event.listen(engine, "connect", lambda driver, _: driver.cursor().execute(read_only))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_a_session_that_reads_from_a_replica_nudges_through_the_primary(sql_engine, replica, mode):
    desk = open_desk(sql_engine, SqlStore(sql_engine, also=[replica]))
    with RoutingSession(sql_engine, replica) as session:
        for end in (session.rollback, session.commit):
            assert session.scalars(select(Order)).all() == []
            session.add(Order())
            desk.nudge([PUMP], session, mode=mode)
            assert desk.pending() == 0
            end()
            assert desk.orders() == desk.pending()
    assert desk.pending() == 1
    desk.store.close()


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_a_nudge_follows_the_rows_when_the_transaction_is_ended_by_a_raw(desk, word):
    with desk.engine.connect() as connection:
        connection.execute(ORDERS.insert().values(note=""))
        desk.nudge([PUMP], connection)
        connection.exec_driver_sql(word)
    with Session(desk.engine) as session:
        session.add(Order())
        session.flush()
        desk.nudge([OTHER], session)
        session.connection().exec_driver_sql(word)
    expected = 1 if word == "COMMIT" else 0
    assert (desk.pending(PUMP), desk.pending(OTHER)) == (expected, expected)
    assert desk.orders() == 2 * expected


def test_an_immediate_nudge_ignores_the_callers_transaction(pg_desk):
    with Session(pg_desk.engine) as session:
        session.add(Order())
        session.flush()
        [receipt] = pg_desk.nudge([PUMP], session, mode="immediate")
        assert receipt.mode is EnqueueMode.IMMEDIATE
        session.rollback()
    assert (pg_desk.orders(), pg_desk.pending(), pg_desk.wakes) == (0, 1, 1)


def test_a_task_paused_between_check_and_write_is_refused_and_the_transaction_usable(pg_desk):
    checks = []

    class RacingWrites:
        def __init__(self, writes) -> None:
            self.carrier = writes.carrier
            self.request_cron_nudge = writes.request_cron_nudge
            self.insert_jobs = writes.insert_jobs
            self.expect_nudges = writes.expect_nudges
            self.fence = writes.fence
            self.plain_verdicts = writes.task_verdicts

        def task_verdicts(self, names, *, writing=False):
            verdicts = self.plain_verdicts(names, writing=writing)
            checks.append(names)
            pg_desk.store.recurring.set_enabled(PUMP, enabled=False)
            return verdicts

    class Racing(SqlStore):
        def joined(self, handle) -> JoinedWrites | CannotJoin:
            return RacingWrites(super().joined(handle))

    desk = open_desk(pg_desk.engine, Racing(pg_desk.engine))
    with Session(desk.engine) as session:
        session.add(Order())
        with pytest.raises(TaskDisabledError) as refusal:
            desk.nudge([PUMP, OTHER], session)
        session.commit()
    assert checks
    assert refusal.value.tasks == (PUMP,)
    assert desk.orders() == 1
    assert desk.pending(OTHER) == 1  # sorted before the refused one, as documented
    desk.store.close()


def test_one_joined_nudge_reads_no_verdict_first(sql_desk):
    statements: list[str] = []
    from sqlalchemy import event

    with Session(sql_desk.engine) as session:
        sql_desk.nudge([PUMP], session)  # the first of a process may draw a block of revisions
        session.commit()
        connection = session.connection()
        event.listen(
            connection, "before_cursor_execute", lambda *a: statements.append(a[2].lstrip()[:6])
        )
        sql_desk.nudge([PUMP], session)
        session.commit()
    assert [kind for kind in statements if kind in {"SELECT", "INSERT"}] == ["INSERT"]


def test_a_two_phase_session_wakes_at_its_commit(two_phase_desk):
    with Session(two_phase_desk.engine, twophase=True) as session:
        session.add(Order())
        two_phase_desk.nudge([PUMP], session)
        session.prepare()
        assert (two_phase_desk.pending(), two_phase_desk.wakes) == (0, 0)
        session.commit()
    assert (two_phase_desk.orders(), two_phase_desk.pending(), two_phase_desk.wakes) == (1, 1, 1)


def test_a_savepoint_on_plain_sqlite_is_refused_with_advice(sqlite_plain_engine):
    desk = open_desk(sqlite_plain_engine, SqlStore(sqlite_plain_engine))
    with Session(sqlite_plain_engine) as session:
        with session.begin_nested(), pytest.raises(SavepointError, match=r"sqlite\.configure"):
            desk.nudge([PUMP], session)
        desk.nudge([PUMP], session)
        session.commit()
    assert desk.pending() == 1
