"""Recurring tasks as commands show them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID
from zoneinfo import ZoneInfo

from threadmill_sa.errors import ScheduleError
from threadmill_sa.model.job import Job
from threadmill_sa.model.recurring import CronTaskView
from threadmill_sa.model.state import UNFINISHED, JobState
from threadmill_sa.model.trigger import TriggerKind
from threadmill_sa.model.walltime import load_zone

NOTHING = "-"
LIST_HEADINGS = (
    "name",
    "trigger",
    "zone",
    "state",
    "next run (UTC)",
    "next run (zone)",
    "last run (UTC)",
    "nudges",
)


@dataclass(frozen=True, slots=True)
class Hold:
    """A run is wanted, and an unfinished instance holds it back.

    since: when the run was first wanted beside that instance.
    """

    job: UUID
    state: JobState
    since: datetime

    @classmethod
    def of(cls, view: CronTaskView, job: Job | None, *, now: datetime) -> Self | None:
        """Return what `job`, the last instance of a tick, holds back at `now`, if anything."""
        wanted = [view.nudge_requested_at] if view.nudge_requested_at is not None else []
        if view.next_run_at is not None and view.next_run_at <= now:
            wanted.append(view.next_run_at)
        if not (view.enabled and wanted) or job is None or job.state not in UNFINISHED:
            return None
        return cls(job.id, job.state, max(job.created_at, min(wanted)))


def task_json(view: CronTaskView) -> dict[str, Any]:
    """Every field of the view; instants are ISO 8601 in UTC, the payload is decoded."""
    value = asdict(view)
    value["nudge_revisions"] = sorted(view.nudge_revisions)
    value["payload"] = decoded(view.payload)
    value["state"] = task_state(view)
    return value


def task_row(view: CronTaskView) -> list[str]:
    """The cells under `LIST_HEADINGS`."""
    return [
        view.name,
        trigger_words(view),
        view.zone,
        task_state(view),
        # To the second: a list is read at a glance, `show` and --json have the rest.
        utc(_seconds(view.next_run_at)),
        NOTHING if view.zone == "UTC" else in_zone(_seconds(view.next_run_at), view.zone),
        utc(_seconds(view.last_run_at)),
        "pending" if view.nudge_revisions else NOTHING,
    ]


def task_fields(view: CronTaskView, hold: Hold | None) -> dict[str, str]:
    """One line for each fact of a task."""
    broken = view.broken_reason
    fields = {
        "name": view.name,
        "state": task_state(view) if broken is None else f"broken: {broken}",
        "trigger": trigger_words(view),
        "zone": view.zone,
        "handler": view.handler,
        "payload": NOTHING if view.payload is None else view.payload,
        "queue": view.queue,
        "priority": str(view.priority),
        "missed runs": str(view.missed_run_policy),
        "timeout": NOTHING if view.timeout_seconds is None else f"{view.timeout_seconds:g} s",
        "max attempts": NOTHING if view.max_attempts is None else str(view.max_attempts),
        "nudged": NOTHING,
        "epoch": str(view.epoch),
    }
    if view.nudge_requested_at is not None:
        fields["nudged"] = f"since {utc(view.nudge_requested_at)} UTC"
    for name, instant in (
        ("next run", view.next_run_at),
        ("last run", view.last_run_at),
        ("anchor", view.anchor_at),
        ("created", view.created_at),
        ("updated", view.updated_at),
    ):
        fields[name] = both(instant, view.zone)
    fields["last job"] = NOTHING if view.last_run_job_id is None else str(view.last_run_job_id)
    fields["held"] = NOTHING
    if hold is not None:
        fields["held"] = f"by job {hold.job} since {utc(hold.since)} UTC; it is {hold.state}"
    return fields


def task_state(view: CronTaskView) -> str:
    """`broken`, `enabled` or `disabled`."""
    if view.broken_reason is not None:
        return "broken"
    return "enabled" if view.enabled else "disabled"


def trigger_words(view: CronTaskView) -> str:
    """The cron expression, or the interval as `every 600 s`."""
    if view.trigger_kind == TriggerKind.INTERVAL:
        return f"every {view.trigger_value} s"
    return view.trigger_value


def _seconds(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.replace(microsecond=0)


def utc(instant: datetime | None) -> str:
    """`2031-05-06 07:08:09`, with a fraction where there is one."""
    if instant is None:
        return NOTHING
    return instant.replace(tzinfo=None).isoformat(" ")


def in_zone(instant: datetime | None, zone: str) -> str:
    """The same on the clocks of `zone`, with its offset, which tells a repeated hour apart."""
    rules = _zone(zone)
    if instant is None or rules is None:
        return NOTHING
    return instant.astimezone(rules).isoformat(" ")


def both(instant: datetime | None, zone: str) -> str:
    """UTC, and the zone's clocks where they differ in name."""
    if instant is None:
        return NOTHING
    if zone == "UTC":
        return f"{utc(instant)} UTC"
    return f"{utc(instant)} UTC ({in_zone(instant, zone)} {zone})"


def _zone(name: str) -> ZoneInfo | None:
    try:
        return load_zone(name)
    except ScheduleError:  # a broken task is shown all the same
        return None


def decoded(stored: str | None) -> Any:
    """The value of stored JSON."""
    try:
        return None if stored is None else json.loads(stored)
    except ValueError:  # edited by hand
        return stored
