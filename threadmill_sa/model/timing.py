"""How lifecycle calls move a schedule: the one rule, used by every store.

The same timing never moves `next_run_at`. An edit keeps the anchor and an overdue fire, so two
releases that alternate during a rolling deploy cannot starve a task; only future fires move.
Source: docs/decisions/0002-schedule-survives-registration.md.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from threadmill_sa.errors import ScheduleError
from threadmill_sa.model.recurring import CronTask, CronTaskScheduleState
from threadmill_sa.model.trigger import next_fire, parse_trigger


def first_state(task: CronTask, *, now: datetime) -> CronTaskScheduleState:
    """Return the bookkeeping of a task that is registered for the first time."""
    empty = CronTaskScheduleState(task.name, timing_fingerprint=task.timing_fingerprint)
    return _forward(task, empty, now) if task.enabled else empty


def edited_state(
    task: CronTask, state: CronTaskScheduleState, *, now: datetime
) -> CronTaskScheduleState:
    """Return the bookkeeping after a registration of a known name.

    Args:
        task: the new definition with the stored `enabled` and anchor.
    """
    # Broken, or edited by hand: registering again is how the code asks for another look.
    stopped = task.enabled and (state.next_run_at is None or state.broken_at is not None)
    if state.timing_fingerprint == task.timing_fingerprint and not stopped:
        return state
    state = replace(
        state, timing_fingerprint=task.timing_fingerprint, broken_reason=None, broken_at=None
    )
    if not task.enabled:
        return replace(state, next_run_at=None)
    if state.next_run_at is not None and state.next_run_at <= now:
        return state
    return _forward(task, state, now)


def flipped_state(
    task: CronTask, state: CronTaskScheduleState, *, enabled: bool, now: datetime
) -> CronTaskScheduleState:
    """Return the bookkeeping after a pause begins or ends: no catch-up of the pause."""
    state = replace(state, next_run_at=None, broken_reason=None, broken_at=None)
    return _forward(task, state, now) if enabled else state


def _forward(task: CronTask, state: CronTaskScheduleState, now: datetime) -> CronTaskScheduleState:
    try:
        trigger = parse_trigger(task.trigger_kind, task.trigger_value, task.zone)
        upcoming = next_fire(trigger, now, anchor=task.anchor_at or now)
    except ScheduleError as error:
        # Only stored text can get here: registration validates before it writes.
        return replace(state, next_run_at=None, broken_reason=str(error), broken_at=now)
    return replace(state, next_run_at=upcoming)
