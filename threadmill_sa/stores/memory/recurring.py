"""The role `Recurring` in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock

from threadmill_sa.clock import Clock
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.limits import BROKEN_RETRY_SECONDS
from threadmill_sa.model.nudge import ClearOutcome, NudgeOutcome, NudgeVerdict, PendingNudges
from threadmill_sa.model.records import SnapshotEvent
from threadmill_sa.model.recurring import (
    CronTask,
    CronTaskScheduleState,
    CronTaskView,
    FlipOutcome,
    RegisterOutcome,
)
from threadmill_sa.model.timing import edited_state, first_state, flipped_state
from threadmill_sa.spi.recurring import (
    MakeInstance,
    NudgeAction,
    Plan,
    TaskOutcome,
    TaskPlan,
    TaskReading,
    TickResult,
)
from threadmill_sa.stores.memory.due import DueIndex
from threadmill_sa.stores.memory.records import RecordLog
from threadmill_sa.stores.memory.table import JobTable


@dataclass(frozen=True, slots=True)
class _Nudge:
    """All pending acceptances of one task: under one lock nobody's write is still open."""

    revision: int
    requested_at: datetime  # of the earliest


@dataclass(slots=True)
class _Entry:
    """One registration. Its nudge dies with it, so none can reach a later registration."""

    task: CronTask
    state: CronTaskScheduleState
    nudge: _Nudge | None = None


class MemoryRecurring:
    """Recurring tasks under the store's lock."""

    def __init__(
        self, table: JobTable, lock: Lock, clock: Clock, log: RecordLog | None = None
    ) -> None:
        self._log = log
        self._table = table
        self._lock = lock
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._due = DueIndex()
        self._nudged: set[str] = set()
        self._last_epoch = 0  # never reset: an epoch is drawn once
        self._last_revision = 0  # never reset: a revision is drawn once

    def register(self, task: CronTask, *, now: datetime | None = None) -> RegisterOutcome:
        with self._lock:
            moment = now or self._clock.now()
            entry = self._entries.get(task.name)
            if entry is None:
                self._create(task, moment)
                return RegisterOutcome.CREATED
            stored = entry.task
            edited = replace(
                task,
                enabled=stored.enabled,
                anchor_at=task.anchor_at or stored.anchor_at,
                epoch=stored.epoch,
                created_at=stored.created_at,
                updated_at=stored.updated_at,
            )
            state = edited_state(edited, entry.state, now=moment)
            if edited == stored and state == entry.state:
                return RegisterOutcome.UNCHANGED
            entry.task = replace(edited, updated_at=moment)
            self._write_state(entry, state)
            return RegisterOutcome.UPDATED

    def set_enabled(self, name: str, *, enabled: bool, now: datetime | None = None) -> FlipOutcome:
        with self._lock:
            moment = now or self._clock.now()
            entry = self._entries.get(name)
            if entry is None:
                return FlipOutcome.UNKNOWN_TASK
            if entry.task.enabled == enabled:
                return FlipOutcome.UNCHANGED
            entry.task = replace(entry.task, enabled=enabled, updated_at=moment)
            state = flipped_state(entry.task, entry.state, enabled=enabled, now=moment)
            self._write_state(entry, state)
            self._write_nudge(entry, None)
            if self._log is not None:
                event = SnapshotEvent.ENABLED if enabled else SnapshotEvent.DISABLED
                self._log.dropped(name, event, moment)
            return FlipOutcome.CHANGED

    def delete(self, name: str) -> bool:
        with self._lock:
            if self._entries.pop(name, None) is None:
                return False
            self._due.put(name, None)
            self._nudged.discard(name)
            return True

    def trigger(
        self, name: str, make: MakeInstance, *, now: datetime | None = None
    ) -> NewJob | None:
        with self._lock:
            moment = now or self._clock.now()
            entry = self._entries.get(name)
            if entry is None:
                return None
            job = make(entry.task)
            self._table.require_new([job])
            self._table.add(job, moment)
            entry.state = replace(entry.state, last_run_at=moment, last_run_job_id=job.id)
            return job

    def get(self, name: str) -> CronTaskView | None:
        with self._lock:
            entry = self._entries.get(name)
            return None if entry is None else _view(entry)

    def task_verdicts(self, names: Sequence[str]) -> Mapping[str, NudgeVerdict]:
        with self._lock:
            return {name: self._verdict(name) for name in names}

    def request_cron_nudge(self, name: str, *, now: datetime | None = None) -> NudgeOutcome:
        with self._lock:
            verdict = self._verdict(name)
            if verdict is not NudgeVerdict.ACCEPTED:
                return NudgeOutcome(verdict)
            entry = self._entries[name]
            earliest = moment = now or self._clock.now()
            if entry.nudge is not None:
                earliest = min(earliest, entry.nudge.requested_at)
            self._write_nudge(entry, earliest)
            if self._log is not None:
                self._log.accepted(name, entry.task.epoch, self._last_revision, moment)
            return NudgeOutcome(verdict, revision=self._last_revision)

    def clear_cron_nudge(self, name: str, observed: frozenset[int]) -> ClearOutcome:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.nudge is None or entry.nudge.revision not in observed:
                return ClearOutcome.ABSENT
            self._write_nudge(entry, None)
            if self._log is not None:
                self._log.dropped(name, SnapshotEvent.CLEARED, self._clock.now())
            return ClearOutcome.CLEARED

    def nominate(self, *, after: str | None, limit: int, now: datetime | None = None) -> list[str]:
        with self._lock:
            moment = now or self._clock.now()
            names = self._due.names(moment) | self._nudged
            return sorted(name for name in names if after is None or name > after)[:limit]

    def materialize(
        self,
        names: Sequence[str],
        plan: Plan,
        *,
        wait: bool = False,
        now: datetime | None = None,
    ) -> list[TaskOutcome]:
        del wait  # Nobody keeps the lock, so no task is ever busy.
        with self._lock:
            moment = now or self._clock.now()
            plans: dict[str, TaskPlan] = {}
            for name in sorted(set(names)):
                reading = self._read(name, moment)
                plans[name] = (
                    TaskPlan(TickResult.UNKNOWN_TASK) if reading is None else plan(reading)
                )
            # All that can fail is done before the first write: the batch is written or not.
            self._table.require_new(job for each in plans.values() for job in each.jobs)
            return [self._commit(name, each, moment) for name, each in plans.items()]

    def sweep_nudges(self, *, limit: int) -> int:
        del limit  # A nudge dies with its registration.
        return 0

    def list(self) -> list[CronTaskView]:
        with self._lock:
            return [_view(self._entries[name]) for name in sorted(self._entries)]

    def living_epoch(self, name: str) -> int | None:
        """Return the epoch of an enabled task, or None. Takes no lock."""
        entry = self._entries.get(name)
        return entry.task.epoch if entry is not None and entry.task.enabled else None

    def _create(self, task: CronTask, now: datetime) -> None:
        self._last_epoch += 1
        stored = replace(
            task,
            anchor_at=task.anchor_at or now,
            epoch=self._last_epoch,
            created_at=now,
            updated_at=now,
        )
        entry = _Entry(stored, CronTaskScheduleState(task.name))
        self._entries[task.name] = entry
        self._write_state(entry, first_state(stored, now=now))

    def _verdict(self, name: str) -> NudgeVerdict:
        entry = self._entries.get(name)
        if entry is None:
            return NudgeVerdict.UNKNOWN_TASK
        return NudgeVerdict.ACCEPTED if entry.task.enabled else NudgeVerdict.DISABLED

    def _read(self, name: str, now: datetime) -> TaskReading | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        nudge = entry.nudge
        return TaskReading(
            task=entry.task,
            state=entry.state,
            unfinished=self._table.unfinished[name] > 0,
            pending=None if nudge is None else PendingNudges(1, nudge.requested_at),
            now=now,
        )

    def _commit(self, name: str, plan: TaskPlan, now: datetime) -> TaskOutcome:
        entry = self._entries.get(name)
        if entry is not None:
            for job in plan.jobs:
                self._table.add(job, now)
            if plan.state is not None:
                self._write_state(entry, plan.state)
            if plan.nudges is NudgeAction.CONSUME:
                self._write_nudge(entry, None)
            # COMPACT has nothing to do: there is one acceptance at most.
        reason = None if plan.state is None else plan.state.broken_reason
        return TaskOutcome(name, plan.result, plan.jobs, reason)

    def _write_state(self, entry: _Entry, state: CronTaskScheduleState) -> None:
        entry.state = state
        look_at = state.next_run_at
        if look_at is None and state.broken_at is not None:
            look_at = state.broken_at + timedelta(seconds=BROKEN_RETRY_SECONDS)
        self._due.put(entry.task.name, look_at)

    def _write_nudge(self, entry: _Entry, requested_at: datetime | None) -> None:
        """Replace the pending nudge by a fresh revision, or clear it."""
        if requested_at is None:
            entry.nudge = None
            self._nudged.discard(entry.task.name)
            return
        self._last_revision += 1
        entry.nudge = _Nudge(self._last_revision, requested_at)
        self._nudged.add(entry.task.name)


def _view(entry: _Entry) -> CronTaskView:
    task, state, nudge = entry.task, entry.state, entry.nudge
    if task.anchor_at is None or task.created_at is None or task.updated_at is None:
        raise StoreInvariantError(f"recurring task {task.name!r} was stored without its instants")
    return CronTaskView(
        name=task.name,
        trigger_kind=task.trigger_kind,
        trigger_value=task.trigger_value,
        zone=task.zone,
        handler=task.handler,
        payload=task.payload,
        queue=task.queue,
        priority=task.priority,
        missed_run_policy=task.missed_run_policy,
        timeout_seconds=task.timeout_seconds,
        max_attempts=task.max_attempts,
        enabled=task.enabled,
        epoch=task.epoch,
        anchor_at=task.anchor_at,
        created_at=task.created_at,
        updated_at=task.updated_at,
        next_run_at=state.next_run_at,
        last_run_at=state.last_run_at,
        last_run_job_id=state.last_run_job_id,
        in_flight_job_id=state.in_flight_job_id,
        broken_reason=state.broken_reason,
        broken_at=state.broken_at,
        nudge_requested_at=None if nudge is None else nudge.requested_at,
        nudge_revisions=frozenset() if nudge is None else frozenset({nudge.revision}),
    )
