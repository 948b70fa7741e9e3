"""What is stored, as values of the model, and back. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

import msgspec

from threadmill_sa.errors import StoreInvariantError
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

T = TypeVar("T")

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


def id_text(stored: bytes) -> str:
    """Return a stored id for people, whatever a hand has made of it."""
    try:
        return str(job_id(stored))
    except ValueError:
        return repr(stored)


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


# Whatever the reading of what a hand has left may raise.
JUNK: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError)


_Count = Annotated[int, msgspec.Meta(ge=0, le=limits.COUNT_MAX)]


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """The fields of lua/lib/rows. Those of newer releases are passed over; False is absent."""

    state: str
    state_at: str
    created_at: str
    scheduled_at: str | bool
    started_at: str | bool
    attempt: _Count
    attempt_token: _Count
    owner_node_id: str | bool
    entries: Annotated[int, msgspec.Meta(ge=0, le=limits.HISTORY_MAX)]
    queue: str
    handler: str
    place: Annotated[str, msgspec.Meta(min_length=8, max_length=8)]
    cron_task_name: str | bool
    rest: str
    has_payload: Any = False  # absent in rows of older releases


_POSITION: Final = re.compile(r"\$\[(\d+)\]")


class Row:
    """One stored row.

    Raises: StoreInvariantError, here and where it is read, for one that no script of ours wrote.
    """

    def __init__(self, identity: bytes, packed: bytes) -> None:
        self._identity = identity
        try:
            self._stored = msgspec.msgpack.decode(packed, type=_Stored)
        except JUNK as error:
            found = _POSITION.search(str(error))
            field = _Stored.__struct_fields__[int(found[1])] if found else "row"
            raise self._damaged(field, error) from error
        self._rest = self._read("rest", _rest)

    def _damaged(self, field: str, error: Exception) -> StoreInvariantError:
        name = id_text(self._identity)
        return StoreInvariantError(
            f"job {name} is damaged: field {field!r} of its row: {error}; put it right or delete"
            " the job",
            job_id=name,
            field=field,
        )

    def _read(self, field: str, reading: Callable[[Any], T]) -> T:
        try:
            return reading(getattr(self._stored, field))
        except JUNK as error:
            raise self._damaged(field, error) from error

    def _id(self) -> JobId:
        try:
            return job_id(self._identity)
        except JUNK as error:
            raise self._damaged("id", error) from error

    def _shared(self) -> dict[str, Any]:
        stored, rest = self._stored, self._rest
        return {
            "id": self._id(),
            "queue": stored.queue,
            "priority": rest.priority,
            "handler": stored.handler,
            "attempt": stored.attempt,
            "max_attempts": rest.max_attempts,
            "created_at": self._read("created_at", moment),
            "cron_task_name": _text(stored.cron_task_name),
            # A word of a newer release stays as it is: else it would refuse every claim it is in.
            "cron_origin": _ORIGINS.get(rest.origin, rest.origin),
            "fire_time": None if rest.fire_time is None else moment(rest.fire_time),
        }

    def claimed(self, payload: bytes | None) -> ClaimedJob:
        if payload is None and self._stored.has_payload is True:
            raise self._damaged("payload", ValueError("it is gone"))
        return ClaimedJob(
            payload=_payload_text(payload),
            attempt_token=self._stored.attempt_token,
            timeout_seconds=self._rest.timeout,
            **self._shared(),
        )

    def orphaned(self) -> OrphanedJob:
        stored = self._stored
        return OrphanedJob(
            id=self._id(),
            handler=stored.handler,
            attempt=stored.attempt,
            max_attempts=self._rest.max_attempts,
            attempt_token=stored.attempt_token,
            owner_node_id=self._read("owner_node_id", _node_id),
            cron_task_name=_text(stored.cron_task_name),
        )

    def _summarized(self) -> dict[str, Any]:
        return self._shared() | {
            "state": self._read("state", JobState),
            "state_at": self._read("state_at", moment),
            "scheduled_at": self._read("scheduled_at", maybe_moment),
            "started_at": self._read("started_at", maybe_moment),
            "owner_node_id": self._read("owner_node_id", _node_id),
        }

    def summary(self) -> JobSummary:
        return JobSummary(**self._summarized())

    def whole(
        self,
        payload: bytes | None,
        beat: bytes | None,
        result: bytes | None,
        history: Iterable[bytes | None],
    ) -> Job:
        try:
            value, note = (None, None) if result is None else msgspec.json.decode(result)
            told = tuple(_history_entry(each) for each in history if each is not None)
        except JUNK as error:
            raise self._damaged("result or history", error) from error
        return Job(
            payload=_payload_text(payload),
            result=value,
            attempt_token=self._stored.attempt_token,
            heartbeat_at=maybe_moment(beat),
            timeout_seconds=self._rest.timeout,
            metadata={} if note is None else {TRUNCATED_RESULT: note},
            history=told,
            **self._summarized(),
        )


def _text(stored: str | bool) -> str | None:  # noqa: FBT001 - false is how it is absent
    return stored if isinstance(stored, str) else None


def _rest(text: str) -> _Rest:
    rest = msgspec.json.decode(text, type=_Rest)
    maybe_moment(rest.fire_time)
    return rest


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
