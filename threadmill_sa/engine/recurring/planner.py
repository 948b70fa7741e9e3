"""What one tick does with one recurring task. All policy lives here, and nothing else does.

The store reads under the task's lock, asks the planner, and writes what it says in the same
transaction, so no decision rests on something that changed since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from threadmill_sa.codec import decode_payload
from threadmill_sa.errors import PayloadError, ScheduleError
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.limits import BROKEN_RETRY_SECONDS, CATCH_UP_MAX
from threadmill_sa.model.recurring import (
    CronOrigin,
    CronTask,
    CronTaskScheduleState,
    MissedRunPolicy,
)
from threadmill_sa.model.trigger import fires_between, latest_fire, next_fire, parse_trigger
from threadmill_sa.spi.recurring import NudgeAction, TaskPlan, TaskReading, TickResult

DEFAULT_MAX_ATTEMPTS = 5  # the declared default of a job; registration resolves others

_POLICIES = tuple(policy.value for policy in MissedRunPolicy)
_BROKEN_RETRY = timedelta(seconds=BROKEN_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What the trigger says: the fires to run now, and the state that follows."""

    fires: tuple[datetime, ...]
    state: CronTaskScheduleState


class Planner:
    """Decides for one reading; pure but for the ids that it draws for new instances."""

    def __init__(self, ids: Callable[[datetime], UUID]) -> None:
        self._ids = ids

    def __call__(self, reading: TaskReading) -> TaskPlan:
        if not reading.task.enabled:
            return TaskPlan(TickResult.DISABLED)
        nudged = reading.pending is not None
        due = _reached(reading.state.next_run_at, reading.now)
        if reading.unfinished and (due or nudged):
            return TaskPlan(TickResult.HELD, nudges=_while_held(reading))
        schedule = _evaluate(reading)
        if schedule is not None and schedule.fires:
            return self._run(reading, CronOrigin.SCHEDULE, schedule.fires, schedule.state)
        state = reading.state if schedule is None else schedule.state
        if nudged:
            # Needs no trigger, so a broken schedule does not hold back who asks for a run.
            return self._run(reading, CronOrigin.NUDGE, (None,), state)
        if schedule is None:
            return TaskPlan(TickResult.IDLE)
        broken = state.broken_reason is not None
        return TaskPlan(TickResult.BROKEN if broken else TickResult.IDLE, state=state)

    def _run(
        self,
        reading: TaskReading,
        origin: CronOrigin,
        fires: tuple[datetime | None, ...],
        state: CronTaskScheduleState,
    ) -> TaskPlan:
        """Create one instance per fire; a pending nudge is served by the last of them."""
        fault = _payload_fault(reading.task)
        if fault is not None:
            return TaskPlan(TickResult.BROKEN, state=_broken(reading, fault))
        jobs = tuple(self._instance(reading, origin, fire) for fire in fires)
        ran = replace(
            state,
            last_run_at=reading.now,
            last_run_job_id=jobs[-1].id,
            in_flight_job_id=jobs[-1].id,
        )
        return TaskPlan(TickResult.MATERIALIZED, jobs, ran, NudgeAction.CONSUME)

    def _instance(
        self, reading: TaskReading, origin: CronOrigin, fire_time: datetime | None
    ) -> NewJob:
        task = reading.task
        return NewJob(
            id=JobId(self._ids(reading.now)),
            handler=task.handler,
            payload=task.payload,
            queue=task.queue,
            priority=task.priority,
            max_attempts=DEFAULT_MAX_ATTEMPTS if task.max_attempts is None else task.max_attempts,
            timeout_seconds=task.timeout_seconds,
            cron_task_name=task.name,
            cron_origin=origin,
            fire_time=fire_time,
        )


def _reached(instant: datetime | None, now: datetime) -> bool:
    return instant is not None and instant <= now


def _payload_fault(task: CronTask) -> str | None:
    """Say what is wrong with a stored payload that no handler could ever read."""
    try:
        decode_payload(task.payload, object)
    except PayloadError as error:
        return str(error)
    return None


def _broken(reading: TaskReading, reason: str) -> CronTaskScheduleState:
    """Mark the task; a fire that is due stays due, so mending it loses no run."""
    return replace(reading.state, broken_reason=reason, broken_at=reading.now)


def _while_held(reading: TaskReading) -> NudgeAction:
    # Many acceptances during one run still mean one follow-up; one row says so as well.
    many = reading.pending is not None and reading.pending.count > 1
    return NudgeAction.COMPACT if many else NudgeAction.KEEP


def _evaluate(reading: TaskReading) -> _Schedule | None:
    """Ask the trigger when it is due; one that is broken is asked again after its pause."""
    state, now = reading.state, reading.now
    due = _reached(state.next_run_at, now)
    if not (due if state.broken_at is None else _reached(state.broken_at, now - _BROKEN_RETRY)):
        return None
    try:
        fires, upcoming = _fires(reading.task, state.next_run_at if due else None, now)
    except ScheduleError as error:
        return _Schedule((), _broken(reading, str(error)))
    return _Schedule(
        fires,
        replace(
            state,
            next_run_at=upcoming,
            timing_fingerprint=state.timing_fingerprint or reading.task.timing_fingerprint,
            broken_reason=None,
            broken_at=None,
        ),
    )


def _fires(
    task: CronTask, overdue: datetime | None, now: datetime
) -> tuple[tuple[datetime, ...], datetime]:
    """The nominal fires to run now and the one after them.

    `overdue` counts as a fire even when an edit has moved the grid away from it: it was promised
    under the old timing and is run once; what follows is on the new grid.
    Raises: ScheduleError for a stored trigger that cannot be evaluated, at this instant or ever.
    """
    trigger = parse_trigger(task.trigger_kind, task.trigger_value, task.zone)
    if task.missed_run_policy not in _POLICIES:
        raise ScheduleError(
            f"missed-run policy {task.missed_run_policy!r} is unknown: expected"
            f" {' or '.join(map(repr, _POLICIES))}",
            task=task.name,
        )
    anchor = task.anchor_at or now
    if overdue is None:
        return (), next_fire(trigger, now, anchor=anchor)
    if task.missed_run_policy is MissedRunPolicy.CATCH_UP:
        missed = fires_between(trigger, overdue, now, limit=CATCH_UP_MAX, anchor=anchor)
        # May be in the past still: the rest of the backlog waits for these to end.
        return tuple(missed), next_fire(trigger, missed[-1], anchor=anchor)
    fire = latest_fire(trigger, now, not_before=overdue, anchor=anchor)
    return (fire,), next_fire(trigger, fire, anchor=anchor)
