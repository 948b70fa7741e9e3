"""The check fails when a nudge is dropped, however it was."""

from __future__ import annotations

import logging
from functools import partial

import pytest
from sqlalchemy import text

from tests.checker.conftest import MEMORY, OTHER, PUMP, Desk
from tests.promises.shop import Stepped
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.nudge import EnqueueMode
from threadmill_sa.testing import clear_nudge_records


def modes_of(desk: Desk) -> list[EnqueueMode]:
    joins = desk.tm.store.capabilities.joins
    return [mode for mode in EnqueueMode if joins or mode is not EnqueueMode.JOIN_TRANSACTION]


def nudge(desk: Desk, mode: EnqueueMode, task: str = PUMP) -> None:
    if mode is EnqueueMode.IMMEDIATE:
        desk.tm.nudge(task)
    else:
        with desk.transaction() as session:
            desk.tm.nudge(task, session, mode=mode)


def assert_dropped(message: str, *words: str) -> None:
    first, *_ = message.splitlines()
    assert "dropped: no run of the task started with a snapshot that shows them" in first
    for word in (f"{PUMP!r}: nudge of 20", *words):
        assert word in message, message


def test_a_tick_that_creates_no_run(desk: Desk) -> None:
    for mode in modes_of(desk):
        clear_nudge_records(desk.tm)
        nudge(desk, mode)
        desk.lose_pending()

        desk.tm.run_until_idle()

        assert desk.ran == 0
        assert_dropped(desk.check_fails(), "runs considered: 0")


def test_a_pending_row_that_somebody_deletes(sql_desk: Desk) -> None:
    for mode in modes_of(sql_desk):
        clear_nudge_records(sql_desk.tm)
        nudge(sql_desk, mode)
        with sql_desk.engine.begin() as connection:
            deleted = connection.execute(text("DELETE FROM threadmill_cron_nudges")).rowcount
        assert deleted == 1

        sql_desk.tm.run_until_idle()

        assert_dropped(sql_desk.check_fails())


def test_a_run_whose_snapshot_is_older(desk: Desk) -> None:
    """The run in flight may have read the work table before: it never counts."""
    desk.during += [partial(nudge, desk, mode) for mode in modes_of(desk)]
    for number, _mode in enumerate(modes_of(desk), 1):
        clear_nudge_records(desk.tm)
        desk.tm.trigger(PUMP)
        desk.faults.fail("recurring.nominate", skip=1)  # no tick comes after the run

        with pytest.raises(StoreUnavailableError):
            desk.tm.run_until_idle()
        desk.faults.mend()
        desk.lose_pending()
        desk.tm.run_until_idle()

        assert desk.ran == number
        assert_dropped(desk.check_fails(), "runs considered: 1", "attempt 1")


def test_a_transaction_that_was_open_as_the_run_began(pg_desk: Desk) -> None:
    with pg_desk.transaction() as session:
        pg_desk.tm.nudge(PUMP, session)
        pg_desk.tm.trigger(PUMP)
        pg_desk.tm.run_until_idle()
        assert pg_desk.check().nudges == 0  # not committed: nothing is promised yet
    pg_desk.lose_pending()

    assert_dropped(pg_desk.check_fails(), "runs considered: 1")


def test_a_lost_after_commit_write(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="threadmill_sa.session.hooks")
    desk.faults.fail("recurring.request_cron_nudge")
    nudge(desk, EnqueueMode.AFTER_COMMIT)
    desk.faults.mend()

    desk.tm.run_until_idle()

    assert desk.ran == 0
    assert_dropped(desk.check_fails(), "promised, not written")


def test_a_crash_between_the_commit_and_the_write(sql_desk: Desk) -> None:
    with sql_desk.transaction() as session:
        sql_desk.tm.nudge(PUMP, session, mode="after_commit")
        session.info.clear()  # all that a process that dies at the commit would forget

    sql_desk.tm.run_until_idle()

    assert sql_desk.ran == 0
    assert_dropped(sql_desk.check_fails(), "promised, not written")


def test_the_schedule_covers_a_lost_after_commit_write(desk: Desk) -> None:
    desk.faults.fail("recurring.request_cron_nudge")
    nudge(desk, EnqueueMode.AFTER_COMMIT)
    desk.faults.mend()
    due = desk.tm.get_recurring(PUMP).next_run_at

    desk.tm.run_until_idle(now=due)

    assert desk.check([PUMP]).covered == 1


def test_one_of_many(desk: Desk) -> None:
    for _ in range(3):
        desk.tm.nudge(PUMP)
        desk.tm.run_until_idle()
    desk.tm.nudge(PUMP)
    desk.lose_pending()
    desk.tm.nudge(OTHER)
    desk.tm.run_until_idle()

    message = desk.check_fails()

    assert message.startswith("1 of 5 recorded nudges dropped")
    assert desk.check([OTHER]).covered == 1
    assert_dropped(desk.check_fails([PUMP]), "1 of 4", "runs considered: 3")


def test_a_nudge_after_the_end_of_a_pause(desk: Desk) -> None:
    desk.tm.set_enabled(PUMP, False)
    desk.tm.set_enabled(PUMP, True)
    desk.tm.nudge(PUMP)
    desk.lose_pending()

    assert_dropped(desk.check_fails())


@pytest.mark.parametrize("lost", [False, True])
def test_a_nudge_that_commits_right_after_the_pause_has_ended(
    pg_desk: Desk, *, lost: bool
) -> None:
    """N5: the pause ends at the snapshot of the deleting statement, not at the next one."""
    tm = pg_desk.tm
    with pg_desk.transaction() as session:
        tm.nudge(PUMP, session)
        tm.set_enabled(PUMP, False)
        enabling = Stepped(pg_desk.engine, lambda: tm.set_enabled(PUMP, True))
        while not any("DELETE" in each for each in enabling.statements):
            assert enabling.step()
    enabling.end()

    if lost:
        pg_desk.lose_pending()
        assert_dropped(pg_desk.check_fails())
    else:
        assert pg_desk.rest().covered == 1
        assert pg_desk.ran == 1


def test_the_message_tells_what_to_look_for(desk: Desk) -> None:
    desk.tm.nudge(PUMP)
    desk.tm.run_until_idle()
    receipt = desk.tm.nudge(PUMP)
    requested = desk.tm.get_recurring(PUMP).nudge_requested_at
    assert requested is not None
    [job] = desk.tm.list_jobs(task=PUMP)
    desk.lose_pending()

    message = desk.check_fails()

    assert_dropped(
        message,
        "1 of 2 recorded nudges",
        f"nudge of {requested.isoformat()} (revision {receipt.revision}",
        "runs considered: 1, the latest of these tasks:",
        f"{PUMP!r}: job {job.id}, attempt 1, started 20",
        "had seen ",
    )


def test_a_transaction_is_named_where_there_is_one(pg_desk: Desk) -> None:
    with pg_desk.transaction() as session:
        pg_desk.tm.nudge(PUMP, session)
        number = session.scalar(text("SELECT pg_current_xact_id()::text"))
    pg_desk.lose_pending()

    assert_dropped(pg_desk.check_fails(), f", transaction {number})")


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
def test_many_are_counted_and_few_are_shown(desk: Desk) -> None:
    for _ in range(8):
        desk.tm.nudge(PUMP)
    desk.lose_pending()

    message = desk.check_fails()

    assert_dropped(message, "8 of 8", "  and 3 more")
    assert message.count("nudge of 20") == 5


# Not lost, only not there yet.


def test_a_pending_nudge_and_an_unfinished_instance_are_not_yet_covered(desk: Desk) -> None:
    desk.tm.nudge(PUMP)

    message = desk.check_fails()

    assert message.startswith("1 of 1 recorded nudges not yet covered: 'pump' has pending nudges;")
    assert "run until idle first" in message
    desk.tm.tick()

    message = desk.check_fails()

    assert "not yet covered: 'pump' has an unfinished instance; run until idle" in message
    assert desk.rest().covered == 1


@pytest.mark.parametrize("desk", [MEMORY], indirect=True)
def test_what_is_covered_needs_no_rest(desk: Desk) -> None:
    desk.tm.nudge(PUMP)
    desk.tm.run_until_idle()
    desk.tm.trigger(PUMP)

    assert desk.check().covered == 1
