"""Recurring tasks as they are stored, and back. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.limits import BROKEN_RETRY_SECONDS
from threadmill_sa.model.nudge import PendingNudges
from threadmill_sa.model.recurring import (
    CronTask,
    CronTaskScheduleState,
    CronTaskView,
    MissedRunPolicy,
)
from threadmill_sa.model.trigger import TriggerKind
from threadmill_sa.spi.recurring import TaskReading
from threadmill_sa.stores.redis.hashes import JUNK, maybe_moment, micros, moment

T = TypeVar("T")

_KINDS: Final = {kind.value: kind for kind in TriggerKind}
_POLICIES: Final = {policy.value: policy for policy in MissedRunPolicy}


@dataclass(frozen=True, slots=True)
class _Definition:
    """The definition but for what the gate says. Fields of newer releases are passed over."""

    trigger_kind: str
    trigger_value: str
    zone: str
    handler: str
    queue: str
    priority: int
    missed_run_policy: str
    anchor_at: int
    created_at: int
    updated_at: int
    payload: str | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class _State:
    next_run_at: int | None = None
    last_run_at: int | None = None
    last_run_job_id: UUID | None = None
    in_flight_job_id: UUID | None = None
    timing_fingerprint: str | None = None
    broken_reason: str | None = None
    broken_at: int | None = None


@dataclass(frozen=True, slots=True)
class StoredTask:
    """One task as a script read it. The texts go back to the script that compares them.

    Raises: StoreInvariantError where it is read as a value and no script of ours wrote it so.
    """

    name: str
    definition: bytes  # empty when it is missing; so for the next two
    gate: bytes
    state: bytes
    revision: bytes | None
    requested: bytes | None
    held: bool  # an unfinished job of the task exists
    now: datetime

    @property
    def task(self) -> CronTask:
        kept = self._read("definition", _definition)
        enabled, epoch = self._read("gate", _gate)
        return CronTask(
            name=self.name,
            enabled=enabled,
            epoch=epoch,
            timing_fingerprint=self.schedule.timing_fingerprint or "",
            **kept,
        )

    @property
    def schedule(self) -> CronTaskScheduleState:
        return CronTaskScheduleState(task_name=self.name, **self._read("state", _state))

    @property
    def pending(self) -> bool:
        """Whether it has a nudge. Half of one will do: a hand may have been at the other."""
        return self.revision is not None or self.requested is not None

    @property
    def torn(self) -> bool:
        """Whether half of its nudge is missing or says nothing."""
        return self.pending and None in (self.requested_at, self.nudge_revision)

    @property
    def requested_at(self) -> datetime | None:
        """The earliest pending request, as far as it is known."""
        return _or_none(maybe_moment, self.requested)

    @property
    def nudge_revision(self) -> int | None:
        return _or_none(int, self.revision)

    def fault(self) -> str | None:
        """Return what is wrong with it, or None."""
        try:
            self.view()
        except StoreInvariantError as error:
            return error.message
        return None

    def enabled_or(self, otherwise: bool) -> bool:  # noqa: FBT001 - a value, not a switch
        """Return whether it is enabled, as far as its gate can tell."""
        try:
            return self._read("gate", _gate)[0]
        except StoreInvariantError:
            return otherwise

    def schedule_or_none(self) -> CronTaskScheduleState | None:
        try:
            return self.schedule
        except StoreInvariantError:
            return None

    def reading(self) -> TaskReading:
        pending = PendingNudges(1, self.requested_at or self.now) if self.pending else None
        return TaskReading(
            task=self.task,
            state=self.schedule,
            unfinished=self.held,
            pending=pending,
            now=self.now,
        )

    def view(self) -> CronTaskView:
        both = _fields(self.schedule) | _fields(self.task)
        revision = self.nudge_revision
        return CronTaskView(
            **{name: value for name, value in both.items() if name not in _NOT_SHOWN},
            nudge_requested_at=self.requested_at,
            nudge_revisions=frozenset() if revision is None else frozenset({revision}),
        )

    def _read(self, field: str, reading: Callable[[Any], T]) -> T:
        try:
            return reading(getattr(self, field))
        except JUNK as error:
            raise StoreInvariantError(
                f"recurring task {self.name!r} is damaged: its {field}: {error}; register it"
                " again, or delete it",
                task=self.name,
                field=field,
            ) from error


def _or_none(reading: Callable[[bytes], T | None], stored: bytes | None) -> T | None:
    try:
        return None if stored is None else reading(stored)
    except JUNK:
        return None


_NOT_SHOWN: Final = {"task_name", "timing_fingerprint"}


def _definition(text: bytes) -> dict[str, Any]:
    kept = msgspec.json.decode(text, type=_Definition)
    # A word that this release does not know breaks its own task only, when it is planned.
    return _fields(kept) | {
        "trigger_kind": _KINDS.get(kept.trigger_kind, kept.trigger_kind),
        "missed_run_policy": _POLICIES.get(kept.missed_run_policy, kept.missed_run_policy),
        "anchor_at": moment(kept.anchor_at),
        "created_at": moment(kept.created_at),
        "updated_at": moment(kept.updated_at),
    }


def _gate(text: bytes) -> tuple[bool, int]:
    enabled, epoch = text.split(b":")
    return enabled == b"1", int(epoch)


def _state(text: bytes) -> dict[str, Any]:
    kept = msgspec.json.decode(text, type=_State)
    return _fields(kept) | {
        name: None if getattr(kept, name) is None else moment(getattr(kept, name))
        for name in ("next_run_at", "last_run_at", "broken_at")
    }


def stored_task(name: str, values: Sequence[bytes | None], now: datetime) -> StoredTask | None:
    """Return a task of the six values that lua/task_read gives; None when it is unknown."""
    definition, gate, state, revision, requested, held = values
    if definition is None and gate is None and state is None:
        return None
    return StoredTask(
        name=name,
        definition=definition or b"",
        gate=gate or b"",
        state=state or b"",
        revision=revision,
        requested=requested,
        held=held is not None,
        now=now,
    )


def definition_text(task: CronTask) -> bytes:
    """Return what is stored of a complete definition. Gate, state and name are kept apart."""
    if task.anchor_at is None or task.created_at is None or task.updated_at is None:
        raise StoreInvariantError(
            f"recurring task {task.name!r} has no instants to be stored with"
        )
    return msgspec.json.encode(
        _Definition(
            trigger_kind=task.trigger_kind,
            trigger_value=task.trigger_value,
            zone=task.zone,
            handler=task.handler,
            queue=task.queue,
            priority=task.priority,
            missed_run_policy=task.missed_run_policy,
            anchor_at=micros(task.anchor_at),
            created_at=micros(task.created_at),
            updated_at=micros(task.updated_at),
            payload=task.payload,
            timeout_seconds=task.timeout_seconds,
            max_attempts=task.max_attempts,
        )
    )


def state_text(state: CronTaskScheduleState) -> bytes:
    """Return the whole schedule state as it is stored."""
    kept = _fields(state)
    del kept["task_name"]
    for name in ("next_run_at", "last_run_at", "broken_at"):
        kept[name] = None if kept[name] is None else micros(kept[name])
    return msgspec.json.encode(_State(**kept))


def look_at(state: CronTaskScheduleState) -> str:
    """Return when a tick must look at the task, in microseconds; empty for never."""
    at = state.next_run_at
    if at is None and state.broken_at is not None:
        at = state.broken_at + timedelta(seconds=BROKEN_RETRY_SECONDS)
    return "" if at is None else str(micros(at))


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}
