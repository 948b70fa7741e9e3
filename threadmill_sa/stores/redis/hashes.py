"""What is stored, as values of the model, and back. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from threadmill_sa.model import failure, limits
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
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.state import JobState

TRUNCATED_RESULT: Final = "threadmill.truncated.result"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ORIGINS: Final[dict[Any, Any]] = {origin.value: origin for origin in CronOrigin}
_STATE_AFTER: Final = {
    OutcomeKind.SUCCEEDED: JobState.SUCCEEDED,
    OutcomeKind.RETRY: JobState.SCHEDULED,
    OutcomeKind.FAILED: JobState.FAILED,
    OutcomeKind.QUARANTINED: JobState.QUARANTINED,
    OutcomeKind.RELEASED: JobState.ENQUEUED,
}


def micros(instant: datetime) -> int:
    """Return microseconds since 1970, exact."""
    return (instant - _EPOCH) // _MICROSECOND


def moment(text: Any) -> datetime:
    """Return the instant of a stored number of microseconds, aware UTC."""
    return _EPOCH + timedelta(microseconds=int(text))


def maybe_moment(text: Any) -> datetime | None:
    """As `moment`; None for what is absent."""
    return moment(text) if text else None


def span(seconds: float) -> int:
    """Return whole microseconds."""
    return timedelta(seconds=seconds) // _MICROSECOND


def job_id(text: bytes | str) -> JobId:
    return JobId(UUID(text if isinstance(text, str) else text.decode()))


@dataclass(frozen=True, slots=True)
class _Rest:
    """What no script looks at."""

    priority: int
    max_attempts: int
    timeout: float | None
    origin: str | None
    fire_time: int | None


def job_record(job: NewJob) -> list[Any]:
    """Return a new job as lua/lib/births takes it."""
    rest = _Rest(
        job.priority,
        job.max_attempts,
        job.timeout_seconds,
        job.cron_origin,
        None if job.fire_time is None else micros(job.fire_time),
    )
    return [
        job.id.hex,
        job.state.value,
        job.run_at is not None and str(micros(job.run_at)),
        job.delay_seconds is not None and span(job.delay_seconds),
        job.queue,
        job.handler,
        f"{limits.PRIORITY_MAX - job.priority:08x}",
        job.cron_task_name is not None and job.cron_task_name,
        msgspec.json.encode(rest).decode(),
        job.payload is not None and job.payload,
    ]


def _payload_text(stored: bytes | None) -> str | None:
    # Bytes that are no text are kept as such: the codec refuses them for this job alone, while an
    # error here would strand everything that was claimed with it.
    return None if stored is None else stored.decode(errors="surrogateescape")


class Row:
    """One stored row, by the positions of lua/lib/rows."""

    def __init__(self, packed: bytes) -> None:
        self._fields: list[Any] = msgspec.msgpack.decode(packed)
        self._rest = msgspec.json.decode(self._fields[13], type=_Rest)

    @property
    def entries(self) -> int:
        return int(self._fields[8])

    def _shared(self) -> dict[str, Any]:
        fields, rest = self._fields, self._rest
        return {
            "queue": fields[9],
            "priority": rest.priority,
            "handler": fields[10],
            "attempt": fields[5],
            "max_attempts": rest.max_attempts,
            "created_at": moment(fields[2]),
            "cron_task_name": fields[12] or None,
            # A word of a newer release stays as it is: else it would refuse every claim it is in.
            "cron_origin": _ORIGINS.get(rest.origin, rest.origin),
            "fire_time": None if rest.fire_time is None else moment(rest.fire_time),
        }

    def claimed(self, identity: bytes, payload: bytes | None) -> ClaimedJob:
        return ClaimedJob(
            id=job_id(identity),
            payload=_payload_text(payload),
            attempt_token=self._fields[6],
            timeout_seconds=self._rest.timeout,
            **self._shared(),
        )

    def orphaned(self, identity: bytes) -> OrphanedJob:
        fields = self._fields
        return OrphanedJob(
            id=job_id(identity),
            handler=fields[10],
            attempt=fields[5],
            max_attempts=self._rest.max_attempts,
            attempt_token=fields[6],
            owner_node_id=_node_id(fields[7]),
            cron_task_name=fields[12] or None,
        )

    def _summarized(self) -> dict[str, Any]:
        fields = self._fields
        return self._shared() | {
            "state": JobState(fields[0]),
            "state_at": moment(fields[1]),
            "scheduled_at": maybe_moment(fields[3]),
            "started_at": maybe_moment(fields[4]),
            "owner_node_id": _node_id(fields[7]),
        }

    def summary(self, identity: bytes) -> JobSummary:
        return JobSummary(id=job_id(identity), **self._summarized())

    def whole(
        self,
        identity: JobId,
        payload: bytes | None,
        beat: bytes | None,
        result: bytes | None,
        history: Iterable[bytes],
    ) -> Job:
        value, note = (None, None) if result is None else msgspec.json.decode(result)
        return Job(
            id=identity,
            payload=_payload_text(payload),
            result=value,
            attempt_token=self._fields[6],
            heartbeat_at=maybe_moment(beat),
            timeout_seconds=self._rest.timeout,
            metadata={} if note is None else {TRUNCATED_RESULT: note},
            history=tuple(_history_entry(each) for each in history),
            **self._summarized(),
        )


def _node_id(text: str | bool) -> NodeId | None:  # noqa: FBT001 - false is how it is absent
    return NodeId(UUID(text)) if isinstance(text, str) else None


def _history_entry(packed: bytes) -> HistoryEntry:
    state, at, attempt, reason, message = msgspec.msgpack.decode(packed)
    return HistoryEntry(
        JobState(state), moment(at), attempt, reason, None if message is False else message
    )


def outcome_record(outcome: AttemptOutcome) -> list[Any]:
    """Return the end of an attempt as lua/lib/ends takes it."""
    told = outcome.result is not None or outcome.result_note is not None
    kept = told and outcome.kind is OutcomeKind.SUCCEEDED
    retried = outcome.kind is OutcomeKind.RETRY
    return [
        outcome.job_id.hex,
        outcome.attempt_token,
        _STATE_AFTER[outcome.kind].value,
        retried and span(outcome.retry_seconds or 0.0),
        kept and msgspec.json.encode([outcome.result, outcome.result_note]).decode(),
        _entries(outcome),
    ]


def _entries(outcome: AttemptOutcome) -> list[list[Any]]:
    """What enters the history; a plain success enters nothing (decision 0005)."""
    message = outcome.message is not None and outcome.message
    failed = [JobState.FAILED.value, outcome.reason, message]
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return []
        case OutcomeKind.RETRY:
            return [failed, [JobState.SCHEDULED.value, failure.RETRY, False]]
        case OutcomeKind.FAILED:
            return [failed]
        case OutcomeKind.QUARANTINED:
            return [[JobState.QUARANTINED.value, outcome.reason, message]]
        case OutcomeKind.RELEASED:
            return [failed, [JobState.ENQUEUED.value, outcome.reason, False]]


@dataclass(frozen=True, slots=True)
class _NodeTold:
    host: str
    pid: int
    queues: tuple[str, ...] | None
    workers: int


def node_text(node: NodeInfo) -> bytes:
    return msgspec.json.encode(_NodeTold(node.host, node.pid, node.queues, node.workers))


def node_view(identity: bytes, info: bytes, started: bytes, beat: bytes) -> NodeView:
    told = msgspec.json.decode(info, type=_NodeTold)
    return NodeView(
        id=NodeId(UUID(identity.decode())),
        host=told.host,
        pid=told.pid,
        queues=told.queues,
        workers=told.workers,
        started_at=moment(started),
        heartbeat_at=moment(beat),
    )
