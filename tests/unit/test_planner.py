from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.planner import DEFAULT_MAX_ATTEMPTS, Planner
from threadmill_sa.model.limits import BROKEN_RETRY_SECONDS, CATCH_UP_MAX
from threadmill_sa.model.nudge import PendingNudges
from threadmill_sa.model.recurring import (
    CronOrigin,
    CronTask,
    CronTaskScheduleState,
    MissedRunPolicy,
)
from threadmill_sa.model.trigger import Cron, Every, Trigger, timing_fingerprint, trigger_text
from threadmill_sa.spi.recurring import NudgeAction, TaskPlan, TaskReading, TickResult

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
DUE = T0 + timedelta(minutes=10)
ONE = PendingNudges(1, T0)
MANY = PendingNudges(3, T0)


def task(trigger: Trigger | None = None, **fields: Any) -> CronTask:
    trigger = trigger or Every(minutes=10)
    kind, value, zone = trigger_text(trigger)
    return replace(
        CronTask("pump", kind, value, zone, "relay", timing_fingerprint(trigger), anchor_at=T0),
        **fields,
    )


def reading(
    the_task: CronTask | None = None,
    *,
    now: datetime = DUE,
    unfinished: bool = False,
    pending: PendingNudges | None = None,
    **state: Any,
) -> TaskReading:
    state = {"next_run_at": DUE, "timing_fingerprint": "kept", **state}
    return TaskReading(
        task=the_task or task(),
        state=CronTaskScheduleState("pump", **state),
        unfinished=unfinished,
        pending=pending,
        now=now,
    )


def plan(read: TaskReading) -> TaskPlan:
    return Planner(Uuid7Source())(read)


def state_of(decided: TaskPlan) -> CronTaskScheduleState:
    assert decided.state is not None
    return decided.state


def test_a_disabled_task_is_left_alone_and_nothing_is_consumed() -> None:
    decided = plan(reading(task(enabled=False), pending=MANY))

    assert decided == TaskPlan(TickResult.DISABLED)


def test_a_task_that_is_neither_due_nor_nudged_is_idle() -> None:
    assert plan(reading(now=DUE - timedelta(microseconds=1))) == TaskPlan(TickResult.IDLE)


def test_a_task_without_a_next_run_is_idle_unless_it_is_nudged() -> None:
    assert plan(reading(next_run_at=None)).result is TickResult.IDLE
    assert plan(reading(next_run_at=None, pending=ONE)).result is TickResult.MATERIALIZED


@pytest.mark.parametrize(
    ("pending", "action"),
    [(None, NudgeAction.KEEP), (ONE, NudgeAction.KEEP), (MANY, NudgeAction.COMPACT)],
)
def test_a_held_task_keeps_its_fire_and_compacts_many_nudges(
    pending: PendingNudges | None, action: NudgeAction
) -> None:
    decided = plan(reading(unfinished=True, pending=pending))

    assert decided == TaskPlan(TickResult.HELD, nudges=action)


def test_an_unfinished_instance_holds_nothing_when_nothing_is_wanted() -> None:
    early = reading(now=T0, unfinished=True)

    assert plan(early).result is TickResult.IDLE


def test_a_due_task_runs_and_moves_on() -> None:
    decided = plan(reading(task(payload="1", queue="q", priority=2, timeout_seconds=1.5)))

    [job] = decided.jobs
    assert decided.result is TickResult.MATERIALIZED
    assert decided.nudges is NudgeAction.CONSUME
    assert (job.handler, job.payload, job.queue, job.priority) == ("relay", "1", "q", 2)
    assert (job.timeout_seconds, job.max_attempts) == (1.5, DEFAULT_MAX_ATTEMPTS)
    assert (job.cron_task_name, job.cron_origin) == ("pump", CronOrigin.SCHEDULE)
    assert (job.fire_time, job.run_at, job.delay_seconds) == (DUE, None, None)
    assert decided.state == CronTaskScheduleState(
        "pump",
        next_run_at=DUE + timedelta(minutes=10),
        last_run_at=DUE,
        last_run_job_id=job.id,
        in_flight_job_id=job.id,
        timing_fingerprint="kept",
    )


def test_a_task_says_how_often_it_is_tried() -> None:
    [job] = plan(reading(task(max_attempts=1))).jobs

    assert job.max_attempts == 1


def test_a_missing_fingerprint_is_filled_in() -> None:
    decided = plan(reading(timing_fingerprint=None))

    assert state_of(decided).timing_fingerprint == task().timing_fingerprint


def test_drop_fires_for_the_latest_missed_instant_and_keeps_the_phase() -> None:
    decided = plan(reading(now=T0 + timedelta(minutes=47)))

    assert [job.fire_time for job in decided.jobs] == [T0 + timedelta(minutes=40)]
    assert state_of(decided).next_run_at == T0 + timedelta(minutes=50)


def test_drop_is_on_the_wall_clock_grid_of_a_cron_task() -> None:
    nightly = task(Cron("30 2 * * *", zone="Europe/Berlin"))
    first = datetime(2026, 3, 28, 1, 30, tzinfo=UTC)

    decided = plan(reading(nightly, next_run_at=first, now=first + timedelta(days=2, hours=1)))

    # The second of the two nights is the one whose clock goes forward over 02:30.
    assert decided.jobs[0].fire_time == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    assert state_of(decided).next_run_at == datetime(2026, 3, 31, 0, 30, tzinfo=UTC)


def test_catch_up_makes_one_instance_per_missed_fire_in_their_order() -> None:
    catching = task(missed_run_policy=MissedRunPolicy.CATCH_UP)

    decided = plan(reading(catching, now=T0 + timedelta(minutes=35)))

    fires = [T0 + timedelta(minutes=10 * turn) for turn in (1, 2, 3)]
    assert [job.fire_time for job in decided.jobs] == fires
    assert [job.id for job in decided.jobs] == sorted(job.id for job in decided.jobs)
    assert state_of(decided).next_run_at == T0 + timedelta(minutes=40)
    assert state_of(decided).last_run_job_id == decided.jobs[-1].id


def test_catch_up_leaves_the_rest_of_a_long_backlog_overdue() -> None:
    catching = task(missed_run_policy=MissedRunPolicy.CATCH_UP)
    now = T0 + timedelta(days=30)

    decided = plan(reading(catching, now=now))

    assert len(decided.jobs) == CATCH_UP_MAX
    assert state_of(decided).next_run_at == T0 + timedelta(minutes=10 * (CATCH_UP_MAX + 1))


def test_due_and_nudged_at_once_is_one_scheduled_instance() -> None:
    decided = plan(reading(pending=MANY))

    assert [job.cron_origin for job in decided.jobs] == [CronOrigin.SCHEDULE]
    assert decided.nudges is NudgeAction.CONSUME


def test_a_nudge_alone_runs_without_a_fire_time_and_moves_nothing() -> None:
    decided = plan(reading(now=T0 + timedelta(minutes=4), pending=ONE))

    [job] = decided.jobs
    assert (job.cron_origin, job.fire_time) == (CronOrigin.NUDGE, None)
    assert state_of(decided).next_run_at == DUE
    assert state_of(decided).last_run_job_id == job.id
    assert decided.nudges is NudgeAction.CONSUME


def test_an_overdue_fire_of_an_older_timing_runs_once_and_the_new_grid_follows() -> None:
    hourly = task(Every(hours=1))

    decided = plan(reading(hourly, now=T0 + timedelta(minutes=25)))

    assert [job.fire_time for job in decided.jobs] == [DUE]
    assert state_of(decided).next_run_at == T0 + timedelta(hours=1)


def test_an_overdue_fire_of_an_older_timing_gives_way_to_a_later_one() -> None:
    hourly = task(Every(hours=1))

    decided = plan(reading(hourly, now=T0 + timedelta(minutes=70)))

    assert [job.fire_time for job in decided.jobs] == [T0 + timedelta(hours=1)]
    assert state_of(decided).next_run_at == T0 + timedelta(hours=2)


@pytest.mark.parametrize("policy", list(MissedRunPolicy))
@pytest.mark.parametrize(
    "fields",
    [
        {"trigger_kind": "cron", "trigger_value": "61 * * * *"},
        {"trigger_kind": "cron", "trigger_value": "0 0 * * *", "zone": "Mars/Olympus"},
        {"trigger_kind": "interval", "trigger_value": "soon"},
        {"trigger_kind": "moon", "trigger_value": "full"},
    ],
)
def test_a_trigger_that_cannot_be_read_breaks_its_schedule(
    policy: MissedRunPolicy, fields: dict[str, Any]
) -> None:
    decided = plan(reading(task(missed_run_policy=policy, **fields)))

    state = state_of(decided)
    assert decided.result is TickResult.BROKEN
    assert decided.jobs == ()
    assert decided.nudges is NudgeAction.KEEP
    assert (state.next_run_at, state.broken_at) == (DUE, DUE)  # the fire is not lost
    assert state.broken_reason


@pytest.mark.parametrize("policy", list(MissedRunPolicy))
def test_a_trigger_that_leaves_the_calendar_breaks_its_schedule(policy: MissedRunPolicy) -> None:
    rare = task(Every(weeks=5000), missed_run_policy=policy)
    now = datetime(9999, 12, 31, tzinfo=UTC)

    assert plan(reading(rare, next_run_at=now, now=now)).result is TickResult.BROKEN


BROKEN: dict[str, Any] = {"next_run_at": None, "broken_reason": "no such zone", "broken_at": T0}
AGAIN = T0 + timedelta(seconds=BROKEN_RETRY_SECONDS)


def test_a_broken_task_waits_for_its_next_look() -> None:
    assert plan(reading(now=AGAIN - timedelta(seconds=1), **BROKEN)).result is TickResult.IDLE


def test_a_broken_task_that_can_be_read_again_goes_on_from_now() -> None:
    decided = plan(reading(now=AGAIN, **BROKEN))

    state = state_of(decided)
    assert (decided.result, decided.jobs) == (TickResult.IDLE, ())
    assert (state.broken_reason, state.broken_at) == (None, None)
    assert state.next_run_at == DUE


def test_a_broken_task_that_is_still_broken_is_looked_at_later_again() -> None:
    decided = plan(reading(task(zone="Mars/Olympus", trigger_kind="cron"), now=AGAIN, **BROKEN))

    assert decided.result is TickResult.BROKEN
    assert state_of(decided).broken_at == AGAIN


def test_a_nudge_of_a_broken_task_runs_and_the_schedule_stays_broken() -> None:
    decided = plan(reading(now=T0, pending=ONE, **BROKEN))

    state = state_of(decided)
    assert [job.cron_origin for job in decided.jobs] == [CronOrigin.NUDGE]
    assert (state.next_run_at, state.broken_reason) == (None, "no such zone")


def test_a_nudge_of_a_task_that_breaks_now_runs_and_marks_it() -> None:
    decided = plan(reading(task(trigger_value="soon"), pending=ONE))

    assert decided.result is TickResult.MATERIALIZED
    assert [job.cron_origin for job in decided.jobs] == [CronOrigin.NUDGE]
    assert state_of(decided).broken_at == DUE


def test_a_fire_that_a_broken_schedule_held_back_runs_when_it_is_mended() -> None:
    broken_at = DUE - timedelta(seconds=BROKEN_RETRY_SECONDS)
    decided = plan(reading(broken_reason="old", broken_at=broken_at))

    assert [job.fire_time for job in decided.jobs] == [DUE]
    assert (state_of(decided).broken_reason, state_of(decided).broken_at) == (None, None)


@pytest.mark.parametrize("pending", [None, ONE])
def test_a_payload_that_nobody_can_read_breaks_its_task_and_keeps_the_nudge(
    pending: PendingNudges | None,
) -> None:
    decided = plan(reading(task(payload="{"), pending=pending))

    assert (decided.result, decided.jobs) == (TickResult.BROKEN, ())
    assert decided.nudges is NudgeAction.KEEP
    assert "payload" in (state_of(decided).broken_reason or "")
    assert state_of(decided).next_run_at == DUE


def test_a_plan_depends_on_nothing_but_the_reading_and_the_ids() -> None:
    def ids() -> Any:
        return Uuid7Source(lambda size: b"\0" * size)

    read = reading(pending=MANY)

    assert Planner(ids())(read) == Planner(ids())(read)


@pytest.mark.parametrize("field", ["trigger_kind", "missed_run_policy"])
def test_a_word_that_this_release_does_not_know_breaks_its_task_and_stays_broken(
    field: str,
) -> None:
    fields: dict[str, Any] = {field: "weekly"}
    unknown = task(**fields)

    first = plan(reading(unknown))
    broken_at = DUE - timedelta(seconds=BROKEN_RETRY_SECONDS)
    again = plan(reading(unknown, broken_reason="bad", broken_at=broken_at))

    for decided in (first, again):
        assert decided.result is TickResult.BROKEN
        assert state_of(decided).next_run_at == DUE
        assert "'weekly' is unknown: expected" in (state_of(decided).broken_reason or "")


def test_a_nudge_of_a_task_with_an_unknown_word_still_runs() -> None:
    decided = plan(reading(task(missed_run_policy="weekly"), pending=ONE))

    assert [job.cron_origin for job in decided.jobs] == [CronOrigin.NUDGE]
