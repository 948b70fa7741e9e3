"""Between rows and the model's values."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar
from uuid import UUID

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    HistoryEntry,
    Job,
    JobId,
    JobSummary,
    NewJob,
    NodeId,
    OrphanedJob,
    OutcomeKind,
)
from threadmill_sa.model.node import NodeInfo, NodeView
from threadmill_sa.model.nudge import PendingNudges
from threadmill_sa.model.recurring import (
    CronOrigin,
    CronTask,
    CronTaskScheduleState,
    CronTaskView,
    MissedRunPolicy,
)
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import TriggerKind
from threadmill_sa.spi.recurring import TaskReading
from threadmill_sa.stores.sql.statements.recurring import DEFINITION, STATE

T = TypeVar("T")

_log = logging.getLogger(__name__)

RESULT_NOTE = "threadmill.truncated.result"

# What only a hand can have put into a column, and only on SQLite: see `schema`.
_NUMBER, _INSTANT = int | float, datetime
_TYPES: dict[str, Any] = {
    "id": UUID, "owner_node_id": UUID, "last_run_job_id": UUID, "in_flight_job_id": UUID,
    "queue": str, "handler": str, "name": str, "cron_task_name": str,
    "priority": int, "attempt": int, "max_attempts": int, "attempt_token": int, "epoch": int,
    "timeout_seconds": _NUMBER,
    "created_at": _INSTANT, "state_at": _INSTANT, "scheduled_at": _INSTANT,
    "started_at": _INSTANT, "heartbeat_at": _INSTANT, "fire_time": _INSTANT,
    "anchor_at": _INSTANT, "updated_at": _INSTANT, "next_run_at": _INSTANT,
    "last_run_at": _INSTANT, "broken_at": _INSTANT,
}  # fmt: skip

_KINDS = {kind.value: kind for kind in TriggerKind}
_POLICIES = {policy.value: policy for policy in MissedRunPolicy}
_ORIGINS: dict[Any, Any] = {None: None} | {origin.value: origin for origin in CronOrigin}
_STATE_AFTER = {
    OutcomeKind.SUCCEEDED: JobState.SUCCEEDED,
    OutcomeKind.RETRY: JobState.SCHEDULED,
    OutcomeKind.FAILED: JobState.FAILED,
    OutcomeKind.QUARANTINED: JobState.QUARANTINED,
    OutcomeKind.RELEASED: JobState.ENQUEUED,
}


def new_job_values(job: NewJob) -> dict[str, Any]:
    """Return the binds of `insert_job`, or one record of `insert_jobs`."""
    return {
        "id": job.id,
        "state": job.state.value,
        "queue": job.queue,
        "priority": job.priority,
        "handler": job.handler,
        "payload": job.payload,
        "cron_task_name": job.cron_task_name,
        "cron_origin": None if job.cron_origin is None else job.cron_origin.value,
        "fire_time": job.fire_time,
        "max_attempts": job.max_attempts,
        "timeout_seconds": job.timeout_seconds,
        "run_at": job.run_at,
        "delay_seconds": job.delay_seconds,
    }


def outcome_record(outcome: AttemptOutcome) -> dict[str, Any]:
    """Return one record of `finish_attempts`."""
    note = outcome.result_note
    return {
        "id": outcome.job_id,
        "token": outcome.attempt_token,
        "state": _STATE_AFTER[outcome.kind].value,
        "given_back": int(outcome.kind is OutcomeKind.RELEASED),
        "retry_seconds": outcome.retry_seconds or 0.0
        if outcome.kind is OutcomeKind.RETRY
        else None,
        "result": outcome.result,
        "metadata": None if note is None else json.dumps({RESULT_NOTE: note}),
    }


def require_sound(row: Any, what: str, key: object) -> None:
    """Pass a row whose columns hold what their types say.

    Raises: StoreInvariantError that names the row and the column.
    """
    for name in row._fields:
        value = getattr(row, name)
        if value is not None and not isinstance(value, _TYPES.get(name, object)):
            raise StoreInvariantError(
                f"{what} {key!s:.100} is damaged: column {name!r} holds {value!r:.100}; put it"
                " right or delete the row",
                key=key,
                field=name,
            )


def claimed_job(row: Any) -> ClaimedJob:
    """Raises: StoreInvariantError for a damaged row; so do the readers below."""
    require_sound(row, "job", row.id)
    return ClaimedJob(
        id=JobId(row.id),
        handler=row.handler,
        payload=row.payload,
        queue=row.queue,
        priority=row.priority,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        attempt_token=row.attempt_token,
        timeout_seconds=row.timeout_seconds,
        created_at=row.created_at,
        cron_task_name=row.cron_task_name,
        cron_origin=_origin(row.cron_origin),
        fire_time=row.fire_time,
    )


def orphaned_job(row: Any) -> OrphanedJob:
    require_sound(row, "job", row.id)
    return OrphanedJob(
        id=JobId(row.id),
        handler=row.handler,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        attempt_token=row.attempt_token,
        owner_node_id=_node(row.owner_node_id),
        cron_task_name=row.cron_task_name,
    )


def job_summary(row: Any) -> JobSummary:
    return JobSummary(**_summary_fields(row))


def whole_job(row: Any, history: Iterable[Any]) -> Job:
    try:
        metadata = {} if row.metadata is None else json.loads(row.metadata)
    except (TypeError, ValueError) as error:
        raise StoreInvariantError(
            f"job {row.id!s:.100} is damaged: column 'metadata': {error}; put it right or delete"
            " the row",
            key=row.id,
            field="metadata",
        ) from error
    return Job(
        **_summary_fields(row),
        payload=row.payload,
        result=row.result,
        attempt_token=row.attempt_token,
        heartbeat_at=row.heartbeat_at,
        timeout_seconds=row.timeout_seconds,
        metadata=metadata,
        history=tuple(
            HistoryEntry(JobState(each.state), each.at, each.attempt, each.reason, each.message)
            for each in history
        ),
    )


def _summary_fields(row: Any) -> dict[str, Any]:
    require_sound(row, "job", row.id)
    return {
        "id": JobId(row.id),
        "state": JobState(row.state),
        "queue": row.queue,
        "priority": row.priority,
        "handler": row.handler,
        "attempt": row.attempt,
        "max_attempts": row.max_attempts,
        "created_at": row.created_at,
        "state_at": row.state_at,
        "scheduled_at": row.scheduled_at,
        "started_at": row.started_at,
        "owner_node_id": _node(row.owner_node_id),
        "cron_task_name": row.cron_task_name,
        "cron_origin": _origin(row.cron_origin),
        "fire_time": row.fire_time,
    }


def _origin(value: str | None) -> CronOrigin | None:
    # A word of a newer release stays as it is: to refuse it would refuse every claim it is in.
    origin: CronOrigin | None = _ORIGINS.get(value, value)
    return origin


def _node(value: Any) -> NodeId | None:
    return None if value is None else NodeId(value)


def definition_values(task: CronTask) -> dict[str, Any]:
    """Return the code's fields of a definition, as binds."""
    return {
        "task": task.name,
        "trigger_kind": str(task.trigger_kind),
        "trigger_value": task.trigger_value,
        "zone": task.zone,
        "handler": task.handler,
        "payload": task.payload,
        "queue": task.queue,
        "priority": task.priority,
        "missed_run_policy": str(task.missed_run_policy),
        "timeout_seconds": task.timeout_seconds,
        "max_attempts": task.max_attempts,
        "anchor_at": task.anchor_at,
    }


def state_values(state: CronTaskScheduleState) -> dict[str, Any]:
    """Return the whole schedule state, as binds."""
    return {"task": state.task_name, **{name: getattr(state, name) for name in STATE}}


def _typed_definition(row: Any) -> dict[str, Any]:
    require_sound(row, "recurring task", row.name)
    fields = {name: getattr(row, name) for name in DEFINITION}
    # A word that is unknown here must break its own task only: lists, registrations and the
    # other tasks of a batch are read by the same code.
    fields["trigger_kind"] = _KINDS.get(row.trigger_kind, row.trigger_kind)
    fields["missed_run_policy"] = _POLICIES.get(row.missed_run_policy, row.missed_run_policy)
    return fields


def cron_task(row: Any, *, fingerprint: str | None) -> CronTask:
    return CronTask(**_typed_definition(row), timing_fingerprint=fingerprint or "")


def with_operators_fields(task: CronTask, stored: CronTask) -> CronTask:
    """Return the declared `task` with what a registration never changes."""
    return replace(
        task,
        enabled=stored.enabled,
        epoch=stored.epoch,
        anchor_at=task.anchor_at or stored.anchor_at,
        created_at=stored.created_at,
    )


def schedule_state(row: Any, task_name: str) -> CronTaskScheduleState:
    require_sound(row, "recurring task", task_name)
    return CronTaskScheduleState(task_name, **{name: getattr(row, name) for name in STATE})


def task_reading(row: Any) -> TaskReading:
    pending = None
    if row.pending:
        pending = PendingNudges(row.pending, row.nudge_requested_at)
    return TaskReading(
        task=cron_task(row, fingerprint=row.timing_fingerprint),
        state=schedule_state(row, row.name),
        unfinished=bool(row.unfinished),
        pending=pending,
        now=row.now,
    )


def task_view(found: Sequence[Any]) -> CronTaskView:
    """Return the view of one task from rows that repeat it for each pending nudge."""
    pending = [row for row in found if row.revision is not None]
    definition = _typed_definition(found[0])
    state = {name: getattr(found[0], name) for name in STATE if name != "timing_fingerprint"}
    return CronTaskView(
        **definition,
        **state,
        nudge_requested_at=min((row.requested_at for row in pending), default=None),
        nudge_revisions=frozenset(row.revision for row in pending),
    )


def task_views(rows: Sequence[Any]) -> list[CronTaskView]:
    """Return one view per task, those left out whose rows are damaged."""
    groups = (list(group) for _, group in groupby(rows, key=lambda row: row.name))
    return list(readable(task_view, groups))


def readable(read: Callable[[Any], T], rows: Iterable[Any]) -> Iterator[T]:
    """Yield what `read` makes of each row; a damaged one is told and left out."""
    for row in rows:
        try:
            yield read(row)
        except StoreInvariantError as error:
            _log.warning("left out of a listing: %s", error)


def node_values(node: NodeInfo) -> dict[str, Any]:
    return {
        "id": node.id,
        "host": node.host[:255],
        "pid": node.pid,
        "queues": None if node.queues is None else json.dumps(list(node.queues)),
        "workers": node.workers,
    }


def node_view(row: Any) -> NodeView:
    require_sound(row, "node", row.id)
    return NodeView(
        id=NodeId(row.id),
        host=row.host,
        pid=row.pid,
        queues=_queues(row),
        workers=row.workers,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
    )


def _queues(row: Any) -> tuple[str, ...] | None:
    try:
        return None if row.queues is None else tuple(json.loads(row.queues))
    except (TypeError, ValueError) as error:
        raise StoreInvariantError(
            f"node {row.id!s:.100} is damaged: column 'queues': {error}; delete the row",
            key=row.id,
            field="queues",
        ) from error
