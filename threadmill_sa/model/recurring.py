"""Recurring tasks as values: the definition, its bookkeeping and what operators see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from threadmill_sa.model.trigger import TriggerKind


class CronOrigin(StrEnum):
    """Why an instance exists."""

    SCHEDULE = "schedule"
    NUDGE = "nudge"
    MANUAL = "manual"


class MissedRunPolicy(StrEnum):
    """What happens to fires that nobody materialized in time."""

    DROP = "drop"  # one run for the whole backlog
    CATCH_UP = "catch_up"  # one run per missed fire, at most limits.CATCH_UP_MAX a tick


@dataclass(frozen=True, slots=True)
class CronTask:
    """The definition of a recurring task; the trigger is text, since a stored one may be broken.

    A word that this release does not know, of a newer one or edited by hand, is kept as text.

    `enabled` is the code's wish on creation only; afterwards it belongs to operators.
    """

    name: str
    trigger_kind: TriggerKind | str
    trigger_value: str
    zone: str
    handler: str
    timing_fingerprint: str
    payload: str | None = None
    queue: str = "default"
    priority: int = 0
    missed_run_policy: MissedRunPolicy | str = MissedRunPolicy.DROP
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    enabled: bool = True
    anchor_at: datetime | None = None  # declared: explicit anchor or None; stored: never None
    epoch: int = 0  # one registration of the name; 0 = not stored yet
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CronTaskScheduleState:
    """The bookkeeping of one recurring task, written by ticks and lifecycle calls only."""

    task_name: str
    next_run_at: datetime | None = None  # None: disabled, or never evaluated
    last_run_at: datetime | None = None  # creation of the last instance
    last_run_job_id: UUID | None = None
    in_flight_job_id: UUID | None = None  # for display; the guard asks the jobs
    timing_fingerprint: str | None = None
    broken_reason: str | None = None
    broken_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CronTaskView:
    """Definition, schedule state and pending nudges of one task, read together."""

    name: str
    trigger_kind: TriggerKind | str
    trigger_value: str
    zone: str
    handler: str
    payload: str | None
    queue: str
    priority: int
    missed_run_policy: MissedRunPolicy | str
    timeout_seconds: float | None
    max_attempts: int | None
    enabled: bool
    epoch: int
    anchor_at: datetime
    created_at: datetime
    updated_at: datetime
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_run_job_id: UUID | None
    in_flight_job_id: UUID | None
    broken_reason: str | None
    broken_at: datetime | None
    nudge_requested_at: datetime | None  # earliest pending acceptance
    nudge_revisions: frozenset[int]


class RegisterOutcome(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class FlipOutcome(StrEnum):
    CHANGED = "changed"
    UNCHANGED = "unchanged"  # it was so already; nothing was written, no nudge was dropped
    UNKNOWN_TASK = "unknown_task"
