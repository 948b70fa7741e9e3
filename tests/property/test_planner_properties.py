"""What holds for every reading, and for every sequence of ticks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.model.limits import BROKEN_RETRY_SECONDS, CATCH_UP_MAX
from threadmill_sa.model.nudge import PendingNudges
from threadmill_sa.model.recurring import (
    CronOrigin,
    CronTask,
    CronTaskScheduleState,
    MissedRunPolicy,
)
from threadmill_sa.model.timing import edited_state, first_state
from threadmill_sa.model.trigger import (
    Cron,
    Every,
    Trigger,
    next_fire,
    timing_fingerprint,
    trigger_text,
)
from threadmill_sa.spi.recurring import NudgeAction, TaskReading, TickResult

T0 = datetime(2026, 3, 27, 22, 17, 3, 123456, tzinfo=UTC)  # before a change of clocks

triggers: st.SearchStrategy[Trigger] = st.one_of(
    st.builds(
        lambda micros: Every(timedelta(microseconds=micros)),
        st.integers(1_000, 40 * 86_400 * 1_000_000),
    ),
    st.sampled_from(
        [
            Cron("* * * * *"),
            Cron("*/7 * * * *", zone="Europe/Berlin"),
            Cron("30 2 * * *", zone="Europe/Berlin"),
            Cron("0 1,2,3 * * *", zone="America/New_York"),
            Cron("15 0 * * *", zone="Australia/Lord_Howe"),
            Cron("0 0 29 2 *"),
            Cron("0 12 * * MON#1"),
        ]
    ),
)
spans = st.timedeltas(timedelta(0), timedelta(days=800))
short_spans = st.timedeltas(timedelta(0), timedelta(hours=30))


def task_of(trigger: Trigger, **fields: Any) -> CronTask:
    kind, value, zone = trigger_text(trigger)
    task = CronTask("t", kind, value, zone, "h", timing_fingerprint(trigger), anchor_at=T0)
    return replace(task, **fields)


@st.composite
def readings(draw: st.DrawFn) -> TaskReading:
    task = task_of(
        draw(triggers),
        enabled=draw(st.booleans()),
        missed_run_policy=draw(st.sampled_from(MissedRunPolicy)),
        zone=draw(st.sampled_from(["UTC", "UTC", "Mars/Olympus"])),
    )
    broken_at = draw(st.none() | spans.map(lambda span: T0 + span))
    state = CronTaskScheduleState(
        "t",
        next_run_at=draw(st.none() | spans.map(lambda span: T0 + span)),
        timing_fingerprint=task.timing_fingerprint,
        broken_at=broken_at,
        broken_reason=None if broken_at is None else "was broken",
    )
    count = draw(st.integers(0, 3))
    return TaskReading(
        task=task,
        state=state,
        unfinished=draw(st.booleans()),
        pending=PendingNudges(count, T0) if count else None,
        now=T0 + draw(spans),
    )


@given(readings())
def test_every_reading_has_a_plan_that_keeps_the_promises(reading: TaskReading) -> None:
    plan = Planner(Uuid7Source())(reading)

    state = plan.state or reading.state
    due = reading.state.next_run_at is not None and reading.state.next_run_at <= reading.now
    if not reading.task.enabled or reading.unfinished:
        assert plan.jobs == ()
        assert plan.nudges is not NudgeAction.CONSUME
    assert bool(plan.jobs) == (plan.nudges is NudgeAction.CONSUME)
    assert bool(plan.jobs) == (plan.result is TickResult.MATERIALIZED)
    if reading.pending and reading.task.enabled and not reading.unfinished:
        assert plan.jobs  # a nudge is never put off without a reason
    assert len({job.id for job in plan.jobs}) == len(plan.jobs) <= CATCH_UP_MAX
    assert (state.broken_reason is None) == (state.broken_at is None)
    if not due and reading.state.broken_at is None:
        assert state.next_run_at == reading.state.next_run_at
    for job in plan.jobs:
        scheduled = job.cron_origin is CronOrigin.SCHEDULE
        assert scheduled == (job.fire_time is not None)
        assert job.fire_time is None or job.fire_time <= reading.now


@given(readings())
def test_a_tick_that_was_not_held_back_leaves_nothing_for_a_second_one(
    reading: TaskReading,
) -> None:
    plan = Planner(Uuid7Source())(reading)
    if plan.result in (TickResult.HELD, TickResult.DISABLED):
        return

    state = plan.state or reading.state

    retry = timedelta(seconds=BROKEN_RETRY_SECONDS)
    assert state.broken_at is None or state.broken_at > reading.now - retry
    if state.broken_at is None and state.next_run_at and state.next_run_at <= reading.now:
        assert reading.task.missed_run_policy is MissedRunPolicy.CATCH_UP
        assert len(plan.jobs) == CATCH_UP_MAX


@given(triggers, spans)
def test_drop_runs_the_latest_fire_and_leaves_the_next_one_in_the_future(
    trigger: Trigger, outage: timedelta
) -> None:
    task = task_of(trigger)
    state = first_state(task, now=T0)
    assert state.next_run_at is not None
    now = state.next_run_at + outage

    plan = Planner(Uuid7Source())(TaskReading(task, state, False, None, now))

    [job] = plan.jobs
    assert plan.state is not None
    assert job.fire_time is not None
    assert plan.state.next_run_at is not None
    assert state.next_run_at <= job.fire_time <= now < plan.state.next_run_at
    assert plan.state.next_run_at == next_fire(trigger, now, anchor=T0)
    if job.fire_time > state.next_run_at:
        just_before = job.fire_time - timedelta(microseconds=1)
        assert next_fire(trigger, just_before, anchor=T0) == job.fire_time


@given(triggers, st.lists(short_spans, min_size=1, max_size=8))
def test_catch_up_runs_every_fire_once_whenever_the_ticks_come(
    trigger: Trigger, steps: list[timedelta]
) -> None:
    task = task_of(trigger, missed_run_policy=MissedRunPolicy.CATCH_UP)
    planner, state, now = Planner(Uuid7Source()), first_state(task, now=T0), T0
    fires: list[datetime] = []
    for step in steps:
        now += step
        plan = planner(TaskReading(task, state, False, None, now))
        state = plan.state or state
        fires += [job.fire_time for job in plan.jobs if job.fire_time is not None]

    expected = T0
    for fire in fires:
        expected = next_fire(trigger, expected, anchor=T0)
        assert fire == expected
    assert state.next_run_at == next_fire(trigger, expected, anchor=T0)


@given(triggers, triggers, short_spans, short_spans)
def test_an_edit_loses_no_overdue_fire_and_ends_on_the_new_grid(
    old: Trigger, new: Trigger, before: timedelta, after: timedelta
) -> None:
    edited_at = T0 + before
    now = edited_at + after
    state = first_state(task_of(old), now=T0)
    overdue = state.next_run_at is not None and state.next_run_at <= edited_at
    edited = edited_state(task_of(new), state, now=edited_at)

    plan = Planner(Uuid7Source())(TaskReading(task_of(new), edited, False, None, now))

    if overdue:
        assert len(plan.jobs) == 1
    ended = plan.state or edited
    if plan.jobs:
        assert ended.next_run_at == next_fire(new, now, anchor=T0)
