"""Jobs as values: what is inserted, claimed, finished and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.state import JobState

JobId = NewType("JobId", UUID)
NodeId = NewType("NodeId", UUID)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to insert. Its instant of creation is the store's (or the `now` passed with it)."""

    id: JobId
    handler: str
    payload: str | None = None  # encoded, at most limits.PAYLOAD_MAX_BYTES
    queue: str = "default"
    priority: int = 0  # higher first within a queue
    max_attempts: int = 5
    timeout_seconds: float | None = None
    run_at: datetime | None = None  # not before this instant; makes it SCHEDULED
    delay_seconds: float | None = None  # the same, counted from the insert; excludes run_at
    cron_task_name: str | None = None
    cron_origin: CronOrigin | None = None
    fire_time: datetime | None = None

    @property
    def state(self) -> JobState:
        delayed = self.run_at is not None or self.delay_seconds is not None
        return JobState.SCHEDULED if delayed else JobState.ENQUEUED


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that one node holds for one attempt."""

    id: JobId
    handler: str
    payload: str | None
    queue: str
    priority: int
    attempt: int  # 1 for the first
    max_attempts: int
    attempt_token: int  # grows with each claim of the job, given back attempts included
    timeout_seconds: float | None
    created_at: datetime
    cron_task_name: str | None
    cron_origin: CronOrigin | None
    fire_time: datetime | None


class OutcomeKind(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"  # -> SUCCEEDED
    RETRY = "retry"  # -> SCHEDULED after retry_seconds; FAILED and SCHEDULED enter the history
    FAILED = "failed"  # -> FAILED, for good
    QUARANTINED = "quarantined"  # -> QUARANTINED
    RELEASED = "released"  # -> ENQUEUED, the attempt is given back


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The end of one attempt; recorded only while its token still holds the job."""

    job_id: JobId
    attempt_token: int
    kind: OutcomeKind
    reason: str  # one of the closed words in model/failure.py
    message: str | None = None  # failure text, at most limits.FAILURE_MESSAGE_MAX_BYTES
    result: str | None = None  # encoded, at most limits.RESULT_MAX_BYTES
    result_note: str | None = None  # why a result was dropped; kept in the job's metadata
    retry_seconds: float | None = None  # for RETRY, counted from the store's now


class FinishVerdict(StrEnum):
    RECORDED = "recorded"
    LOST = "lost"  # another claim, reclaim or operator took the job; nothing was written


class DeleteVerdict(StrEnum):
    DELETED = "deleted"  # by this call
    ALREADY = "already"  # deleted before; nothing was written
    RUNNING = "running"  # a node holds it; nothing was written
    UNKNOWN = "unknown"  # no such job, or its time has passed


def delete_verdict(state: JobState | None) -> DeleteVerdict:
    """Return what a delete does with a job in `state`; None where there is no job."""
    match state:
        case None:
            return DeleteVerdict.UNKNOWN
        case JobState.DELETED:
            return DeleteVerdict.ALREADY
        case JobState.PROCESSING:
            return DeleteVerdict.RUNNING
        case _:
            return DeleteVerdict.DELETED


@dataclass(frozen=True, slots=True)
class OrphanedJob:
    """A job whose owner stopped beating; what the retry decision needs."""

    id: JobId
    handler: str
    attempt: int
    max_attempts: int
    attempt_token: int
    owner_node_id: NodeId | None
    cron_task_name: str | None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One recorded move of a job. A success writes none: the job row itself tells it."""

    state: JobState
    at: datetime
    attempt: int
    reason: str
    message: str | None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One line of a listing; never reads payload, result or history."""

    id: JobId
    state: JobState
    queue: str
    priority: int
    handler: str
    attempt: int
    max_attempts: int
    created_at: datetime
    state_at: datetime
    scheduled_at: datetime | None
    started_at: datetime | None
    owner_node_id: NodeId | None
    cron_task_name: str | None
    cron_origin: CronOrigin | None
    fire_time: datetime | None


@dataclass(frozen=True, slots=True)
class Job(JobSummary):
    """One job with everything that is stored of it."""

    payload: str | None
    result: str | None
    attempt_token: int
    heartbeat_at: datetime | None
    timeout_seconds: float | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    history: tuple[HistoryEntry, ...] = ()  # oldest first
