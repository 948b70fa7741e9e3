"""What the check passes, and what it counts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.checker.conftest import MEMORY, OTHER, PUMP, Desk
from tests.fixtures.servers import with_driver
from tests.promises.shop import Stepped
from threadmill_sa import Every, Threadmill, sqlite
from threadmill_sa.errors import InvalidValueError, TaskDisabledError
from threadmill_sa.model.nudge import EnqueueMode
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.testing import (
    CoverageReport,
    ManualClock,
    assert_every_nudge_covered,
    clear_nudge_records,
)

WAIT_SECONDS = 20.0


def test_a_run_covers_every_nudge_before_it(desk: Desk) -> None:
    for _ in range(3):
        desk.tm.nudge(PUMP)

    assert desk.rest() == CoverageReport(nudges=3, runs=1, covered=3, excused=0)
    assert desk.ran == 1


def test_nudges_during_a_run_are_covered_by_the_next(desk: Desk) -> None:
    desk.during.append(lambda: desk.tm.nudge_many([PUMP, OTHER]))
    desk.tm.trigger(PUMP)

    assert desk.rest() == CoverageReport(nudges=2, runs=3, covered=2, excused=0)


def test_after_commit_is_counted_when_promised_and_when_written(desk: Desk) -> None:
    with desk.transaction() as session:
        desk.tm.nudge(PUMP, session, mode="after_commit")
        desk.tm.nudge(OTHER, session, mode="after_commit")

    assert desk.rest() == CoverageReport(nudges=4, runs=2, covered=4, excused=0)


def test_a_joined_nudge_is_recorded_with_the_transaction(sql_desk: Desk) -> None:
    with sql_desk.transaction() as session:
        sql_desk.tm.nudge_many([PUMP, OTHER], session)
        sql_desk.tm.nudge(PUMP, session)
    with sql_desk.engine.connect() as connection, connection.begin():
        sql_desk.tm.nudge(PUMP, connection)

    assert sql_desk.rest() == CoverageReport(nudges=4, runs=2, covered=4, excused=0)


@pytest.mark.parametrize("mode", [EnqueueMode.JOIN_TRANSACTION, EnqueueMode.AFTER_COMMIT])
def test_what_the_caller_undoes_is_not_recorded(sql_desk: Desk, mode: EnqueueMode) -> None:
    tm = sql_desk.tm
    with sql_desk.transaction() as session:
        with session.begin_nested() as savepoint:
            tm.nudge(PUMP, session, mode=mode)
            savepoint.rollback()
        with session.begin_nested():
            tm.nudge(OTHER, session, mode=mode)
    for end in (Session.rollback, Session.close):
        with Session(sql_desk.engine) as session:
            tm.nudge(PUMP, session, mode=mode)
            end(session)

    kept = 1 if mode is EnqueueMode.JOIN_TRANSACTION else 2
    assert sql_desk.rest() == CoverageReport(nudges=kept, runs=1, covered=kept, excused=0)


def test_a_refused_nudge_is_not_recorded(desk: Desk) -> None:
    desk.tm.set_enabled(PUMP, False)
    for mode in (None, "after_commit"):
        with desk.transaction() as session, pytest.raises(TaskDisabledError):
            desk.tm.nudge(PUMP, session, mode=mode)

    assert desk.check() == CoverageReport(nudges=0, runs=0, covered=0, excused=0)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "SERIALIZABLE"])
def test_a_transaction_that_spans_runs_is_covered_by_the_run_after_it(
    pg_desk: Desk, isolation: str
) -> None:
    with pg_desk.transaction(isolation) as session:
        pg_desk.tm.nudge(PUMP, session)
        for _ in range(2):
            pg_desk.tm.nudge(PUMP)
            pg_desk.tm.run_until_idle()

    assert "not yet covered" in pg_desk.check_fails()
    assert pg_desk.rest() == CoverageReport(nudges=3, runs=3, covered=3, excused=0)


@pytest.mark.parametrize("mode", [EnqueueMode.JOIN_TRANSACTION, EnqueueMode.AFTER_COMMIT])
def test_n7_recording_adds_no_conflict_between_callers(pg_desk: Desk, mode: EnqueueMode) -> None:
    """What a record reads, another caller at SERIALIZABLE must not have written."""
    engine = pg_desk.engine.execution_options(isolation_level="SERIALIZABLE")
    with ExitStack() as stack:
        callers = [stack.enter_context(Session(engine)) for _ in range(4)]
        for caller in callers:
            pg_desk.tm.nudge(PUMP, caller, mode=mode)
        for caller in reversed(callers):  # each has read before the next one wrote
            caller.commit()

    assert pg_desk.rest().covered == (4 if mode is EnqueueMode.JOIN_TRANSACTION else 8)


def test_a_failed_attempt_has_seen_the_work_too(desk: Desk) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    desk.during += [fail, lambda: desk.tm.nudge(PUMP), fail]
    desk.tm.nudge(PUMP)

    report = desk.rest()

    assert report == CoverageReport(nudges=2, runs=4, covered=2, excused=0)


def test_a_pause_excuses_what_came_before_its_end(desk: Desk) -> None:
    desk.tm.nudge(PUMP)
    desk.tm.set_enabled(PUMP, False)
    assert desk.rest() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)
    desk.tm.set_enabled(PUMP, True)
    assert desk.rest() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)
    desk.tm.nudge(PUMP)

    assert desk.rest() == CoverageReport(nudges=2, runs=1, covered=2, excused=0)


def test_a_pause_ended_by_a_process_that_does_not_record(sql_desk: Desk) -> None:
    tool = Threadmill(sql_desk.engine)
    sql_desk.tm.nudge(PUMP)
    tool.set_enabled(PUMP, False)
    tool.set_enabled(PUMP, True)

    assert sql_desk.rest() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)


def test_a_commit_within_the_pause_is_excused_and_one_after_it_is_not(pg_desk: Desk) -> None:
    tm = pg_desk.tm
    with pg_desk.transaction() as late:
        tm.nudge(PUMP, late)
        with pg_desk.transaction() as early:
            tm.nudge(PUMP, early)
            tm.set_enabled(PUMP, False)
        # It came after the pause began, so it waits; the end of the pause drops it.
        assert pg_desk.check() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)
        tm.set_enabled(PUMP, True)
        assert pg_desk.check() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)
    assert "1 of 2 recorded nudges not yet covered" in pg_desk.check_fails()

    tm.run_until_idle()

    assert pg_desk.check() == CoverageReport(nudges=2, runs=1, covered=2, excused=0)


def test_a_deleted_task_excuses_its_nudges(desk: Desk) -> None:
    desk.tm.nudge_many([PUMP, OTHER])
    desk.tm.delete_recurring(PUMP)

    assert desk.rest() == CoverageReport(nudges=2, runs=1, covered=1, excused=1)


def test_a_commit_after_the_deletion_is_excused(pg_desk: Desk) -> None:
    with pg_desk.transaction() as session:
        pg_desk.tm.nudge(PUMP, session)
        pg_desk.tm.delete_recurring(PUMP)
        pg_desk.tm.register()

    assert pg_desk.rest() == CoverageReport(nudges=1, runs=0, covered=0, excused=1)


def test_a_run_that_could_not_be_recorded_still_runs(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.faults.fail("records.record_run")
    desk.tm.nudge(PUMP)

    desk.tm.run_until_idle()

    assert desk.ran == 1
    [logged] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "was not recorded" in logged.message
    assert "dropped" in desk.check_fails()


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
def test_a_promise_that_could_not_be_recorded_is_kept(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.faults.fail("records.expect")
    with desk.transaction() as session:
        desk.tm.nudge(PUMP, session)

    assert desk.rest() == CoverageReport(nudges=1, runs=1, covered=1, excused=0)
    assert "was not recorded as promised" in caplog.text


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
def test_a_run_that_comes_while_the_check_looks_counts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = desk.faults.run_call

    def run_call(operation: str, call: Callable[[], object]) -> object:
        if operation == "recurring.get":
            monkeypatch.undo()
            desk.tm.run_until_idle()
        return plain(operation, call)

    desk.tm.nudge(PUMP)
    monkeypatch.setattr(desk.faults, "run_call", run_call)

    assert desk.check().covered == 1


def test_cleared_records_are_checked_no_more(desk: Desk) -> None:
    desk.tm.nudge(PUMP)
    desk.lose_pending()

    assert clear_nudge_records(desk.tm) == 1

    desk.tm.nudge(PUMP)
    assert desk.rest() == CoverageReport(nudges=1, runs=1, covered=1, excused=0)


def test_clearing_never_parts_a_nudge_from_its_run(pg_desk: Desk) -> None:
    pg_desk.tm.nudge(PUMP)
    pg_desk.tm.run_until_idle()
    clearing = Stepped(pg_desk.engine, lambda: clear_nudge_records(pg_desk.tm))
    while not any("DELETE" in each for each in clearing.statements):
        assert clearing.step()

    pg_desk.tm.nudge(PUMP)
    pg_desk.tm.run_until_idle()

    assert clearing.end() == 2
    assert pg_desk.check().nudges == 0


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
def test_a_manual_clock_may_stand_still(desk: Desk) -> None:
    clock = ManualClock(desk.tm.get_recurring(PUMP).created_at)
    tm = Threadmill(desk.faults, clock=clock, record_nudges=True)
    tm.job("relay")(lambda: None)
    tm.nudge(PUMP)
    tm.run_until_idle()

    assert assert_every_nudge_covered(tm).covered == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_node_records_its_runs(desk: Desk, *, asynchronous: bool) -> None:
    released, ran = threading.Event(), threading.Event()

    async def relay_async() -> None:
        relay()

    def relay() -> None:
        if released.is_set():
            ran.set()
        released.set()
        desk.tm.nudge("own")

    tm = desk.tm
    tm.job("own-relay")(relay_async if asynchronous else relay)
    tm.recurring("own", "own-relay", Every(hours=1))
    with tm.node(workers=2, tick=0.05, poll=0.05):
        tm.nudge("own")
        assert ran.wait(WAIT_SECONDS)

    assert tm.store.records is not None
    audit = tm.store.records.audit(["own"], examples=9)
    assert audit.covered >= 2
    assert {run.task for run in audit.latest_runs} <= {"own"}


def test_an_async_session_records_as_a_plain_one(sql_engine: Engine) -> None:
    driver = "aiosqlite" if sql_engine.dialect.name == "sqlite" else "psycopg"
    url = with_driver(sql_engine.url.render_as_string(hide_password=False), driver)
    producers = create_async_engine(url)
    if driver == "aiosqlite":
        sqlite.configure(producers)
    tm = Threadmill(sql_engine, also=[producers], record_nudges=True)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))
    tm.register()

    async def produce() -> None:
        for mode in ("join_transaction", "after_commit"):
            async with AsyncSession(producers) as session, session.begin():
                await tm.anudge(PUMP, session, mode=mode)
        await tm.anudge(PUMP)
        await producers.dispose()

    asyncio.run(produce())
    tm.run_until_idle()

    assert assert_every_nudge_covered(tm).covered == 4
    tm.close()


def test_a_savepoint_that_carries_no_writes_is_recorded_after_the_commit(sqlite_url: str) -> None:
    """SQLite's driver as it comes: what is written in a savepoint would survive the rollback."""
    engine = create_engine(sqlite_url)
    tm = Threadmill(engine, record_nudges=True)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))
    tm.register()
    for committed in (False, True):
        with Session(engine) as session, session.begin_nested() as savepoint:
            tm.nudge(PUMP, session, mode="after_commit")
            savepoint.commit()
            (session.commit if committed else session.rollback)()
    tm.run_until_idle()

    assert assert_every_nudge_covered(tm) == CoverageReport(2, 1, 2, 0)
    tm.close()
    engine.dispose()


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
def test_an_async_session_beside_a_store_that_cannot_join(desk: Desk) -> None:
    url = desk.engine.url.render_as_string(hide_password=False)

    async def produce() -> None:
        producers = create_async_engine(with_driver(url, "aiosqlite"))
        async with AsyncSession(producers) as session, session.begin():
            await session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            await desk.tm.anudge(PUMP, session)
        await producers.dispose()

    asyncio.run(produce())

    assert desk.rest() == CoverageReport(nudges=2, runs=1, covered=2, excused=0)


def test_off_is_off(sql_engine: Engine) -> None:
    tm = Threadmill(sql_engine)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))
    tm.register()
    tm.nudge(PUMP)
    with Session(sql_engine) as session, session.begin():
        tm.nudge(PUMP, session, mode="after_commit")
    tm.run_until_idle()
    tm.set_enabled(PUMP, False)

    with sql_engine.connect() as connection:
        for table in ("threadmill_nudge_records", "threadmill_snapshot_records"):
            assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0
    for call in (assert_every_nudge_covered, clear_nudge_records):
        with pytest.raises(InvalidValueError, match="record_nudges=True"):
            call(tm)
    tm.close()


@pytest.mark.parametrize("record", [False, True])
def test_a_joined_nudge_is_one_statement_and_its_record_at_most_another(
    sql_engine: Engine, *, record: bool
) -> None:
    tm = Threadmill(sql_engine, record_nudges=record)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))
    tm.register()
    statements: list[str] = []

    def note(_connection, _cursor, statement: str, *_rest: object) -> None:
        statements.append(statement)

    with Session(sql_engine) as session:
        tm.nudge(PUMP, session)  # the first of a process may draw a block of revisions
        session.commit()
        event.listen(session.connection(), "before_cursor_execute", note)
        tm.nudge(PUMP, session)
        session.rollback()

    alone = not record or not tm.store.capabilities.ordered_revisions
    assert len(statements) == (1 if alone else 2)
    assert any("nudge_records" in statement for statement in statements) == record
    tm.close()


def test_a_store_that_does_not_record_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="MemoryStore records nothing"):
        Threadmill(MemoryStore(), record_nudges=True)

    assert Threadmill.in_memory(record_nudges=True).store.records is not None
    assert Threadmill.in_memory().store.records is None


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
@pytest.mark.parametrize("tasks", [[], "pump"])
def test_an_empty_check_is_refused(desk: Desk, tasks: object) -> None:
    with pytest.raises(InvalidValueError, match="list of names with at least one"):
        assert_every_nudge_covered(desk.tm, tasks=tasks)  # type: ignore[arg-type]


SHOWN = {
    ("4:9:5",): 0,  # transaction 5 was in progress
    ("5:9:",): 1,
    ("4:9:4,6",): 1,
    ("4:5:",): 0,  # not begun
    ("9:9:", "4:9:5"): 1,  # written down in the other order than taken
    ("4:9:5", "4:5:"): 0,
}


def test_a_run_covers_what_its_snapshot_shows(pg_desk: Desk) -> None:
    nudge = (
        "INSERT INTO threadmill_nudge_records (task_name, epoch, slot, revision, requested_at)"
        " SELECT name, epoch, 5, 1, now() FROM threadmill_cron_tasks WHERE name = 'pump'"
    )
    run = (
        "INSERT INTO threadmill_snapshot_records"
        " (task_name, event, job_id, attempt, seen, recorded_at)"
        " VALUES ('pump', 'run', gen_random_uuid(), 1, :seen, now())"
    )
    records = pg_desk.tm.store.records
    assert records is not None
    found = {}
    for snapshots in SHOWN:
        records.clear()
        with pg_desk.engine.begin() as connection:
            connection.execute(text(nudge))
            for seen in snapshots:
                connection.execute(text(run), {"seen": seen})
        audit = records.audit(None, examples=9)
        assert (audit.nudges, audit.runs) == (1, len(snapshots))
        found[snapshots] = audit.covered

    assert found == SHOWN
