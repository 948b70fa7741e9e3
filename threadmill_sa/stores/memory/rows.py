"""One stored job, and what readers see of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from threadmill_sa.model.job import (
    ClaimedJob,
    HistoryEntry,
    Job,
    JobId,
    JobSummary,
    NewJob,
    NodeId,
    OrphanedJob,
)
from threadmill_sa.model.state import JobState


@dataclass(slots=True)
class JobRow:
    """A job in wire form: text and scalars only, never an object of the caller's."""

    new: NewJob
    state: JobState
    created_at: datetime
    state_at: datetime
    scheduled_at: datetime | None
    started_at: datetime | None = None
    attempt: int = 0
    attempt_token: int = 0
    owner_node_id: NodeId | None = None
    heartbeat_at: datetime | None = None
    result: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    history: list[HistoryEntry] = field(default_factory=list)

    @property
    def id(self) -> JobId:
        return self.new.id

    def held_by(self, node_id: NodeId, attempt_token: int) -> bool:
        return (
            self.state is JobState.PROCESSING
            and self.owner_node_id == node_id
            and self.attempt_token == attempt_token
        )


def claimed_view(row: JobRow) -> ClaimedJob:
    return ClaimedJob(
        id=row.new.id,
        handler=row.new.handler,
        payload=row.new.payload,
        queue=row.new.queue,
        priority=row.new.priority,
        attempt=row.attempt,
        max_attempts=row.new.max_attempts,
        attempt_token=row.attempt_token,
        timeout_seconds=row.new.timeout_seconds,
        created_at=row.created_at,
        cron_task_name=row.new.cron_task_name,
        cron_origin=row.new.cron_origin,
        fire_time=row.new.fire_time,
    )


def orphaned_view(row: JobRow) -> OrphanedJob:
    return OrphanedJob(
        id=row.new.id,
        handler=row.new.handler,
        attempt=row.attempt,
        max_attempts=row.new.max_attempts,
        attempt_token=row.attempt_token,
        owner_node_id=row.owner_node_id,
        cron_task_name=row.new.cron_task_name,
    )


def summary_view(row: JobRow) -> JobSummary:
    return JobSummary(
        id=row.new.id,
        state=row.state,
        queue=row.new.queue,
        priority=row.new.priority,
        handler=row.new.handler,
        attempt=row.attempt,
        max_attempts=row.new.max_attempts,
        created_at=row.created_at,
        state_at=row.state_at,
        scheduled_at=row.scheduled_at,
        started_at=row.started_at,
        owner_node_id=row.owner_node_id,
        cron_task_name=row.new.cron_task_name,
        cron_origin=row.new.cron_origin,
        fire_time=row.new.fire_time,
    )


def job_view(row: JobRow) -> Job:
    return Job(
        id=row.new.id,
        state=row.state,
        queue=row.new.queue,
        priority=row.new.priority,
        handler=row.new.handler,
        attempt=row.attempt,
        max_attempts=row.new.max_attempts,
        created_at=row.created_at,
        state_at=row.state_at,
        scheduled_at=row.scheduled_at,
        started_at=row.started_at,
        owner_node_id=row.owner_node_id,
        cron_task_name=row.new.cron_task_name,
        cron_origin=row.new.cron_origin,
        fire_time=row.new.fire_time,
        payload=row.new.payload,
        result=row.result,
        attempt_token=row.attempt_token,
        heartbeat_at=row.heartbeat_at,
        timeout_seconds=row.new.timeout_seconds,
        metadata=dict(row.metadata),
        history=tuple(row.history),
    )
