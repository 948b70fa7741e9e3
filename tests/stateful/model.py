"""What the machines expect: tasks, accepted nudges by the order of commits, runs by creation.

Pure: it sees no store. Every event of the world gets the next number of one count, `moment`, so
"before" and "after" are comparisons of moments and never of revisions or of instants, which may
go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from uuid import UUID

from tests.stateful.timetable import Timing
from threadmill_sa.model.job import OutcomeKind
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import CronOrigin, MissedRunPolicy
from threadmill_sa.model.state import UNFINISHED, JobState
from threadmill_sa.spi.recurring import TickResult

CATCH_UP_MAX = 4  # the machines lower the product's bound to this


@dataclass(frozen=True, slots=True)
class Definition:
    """What one release says of a task; `release` is its payload, so a run tells its origin."""

    release: int
    handler: str
    timing: Timing
    missed: MissedRunPolicy
    queue: str
    priority: int


@dataclass(slots=True)
class Registration:
    """One life of a name."""

    name: str
    epoch: int
    definition: Definition
    enabled: bool
    anchor: datetime
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_run_job_id: UUID | None = None
    in_flight_job_id: UUID | None = None
    cleared: bool = False  # an operator took some of the pending nudges; nobody knows which


class Fate(Enum):
    OPEN = auto()  # its transaction has not ended
    UNDONE = auto()  # rolled back
    PENDING = auto()
    COVERED = auto()  # a run was created after its commit
    DROPPED = auto()  # by a flip, a delete or an operator, or its registration was gone


@dataclass(eq=False, slots=True)
class Acceptance:
    """One accepted nudge."""

    task: str
    epoch: int
    requested_at: datetime
    committed: int | None = None  # moment
    fate: Fate = Fate.OPEN


@dataclass(eq=False, slots=True)
class Run:
    """One job, of a task or of nobody."""

    id: UUID
    handler: str
    release: int
    queue: str
    priority: int
    created: int  # moment
    created_at: datetime
    task: str | None = None
    epoch: int | None = None
    origin: CronOrigin | None = None
    fire_time: datetime | None = None
    beside_another: bool = False  # an instance was unfinished at its creation
    state: JobState = JobState.ENQUEUED
    delay: timedelta | None = None  # asked for by its producer
    scheduled_at: datetime | None = None
    attempt: int = 0
    token: int = 0
    owner: UUID | None = None
    history: int = 0
    state_at: datetime | None = None  # since when it is finished
    removed: bool = False  # its time has passed

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED


@dataclass(frozen=True, slots=True)
class Pause:
    """A moment at which the committed nudges of one registration ceased to count."""

    epoch: int
    moment: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What a tick is to do with one task."""

    name: str
    result: TickResult
    origin: CronOrigin | None = None
    fires: tuple[datetime | None, ...] = ()
    next_run_at: datetime | None = None  # afterwards


Snapshot = dict[str, tuple[int, bool]]  # epoch and enabled, by name

_ENDS = {
    OutcomeKind.SUCCEEDED: (JobState.SUCCEEDED, 0),
    OutcomeKind.RETRY: (JobState.SCHEDULED, 2),
    OutcomeKind.FAILED: (JobState.FAILED, 1),
    OutcomeKind.QUARANTINED: (JobState.QUARANTINED, 1),
    OutcomeKind.RELEASED: (JobState.ENQUEUED, 2),
}


@dataclass
class Model:
    moment: int = 0
    epochs: int = 0
    tasks: dict[str, Registration] = field(default_factory=dict)
    acceptances: list[Acceptance] = field(default_factory=list)  # by commit, the open ones last
    runs: list[Run] = field(default_factory=list)  # by creation
    pauses: list[Pause] = field(default_factory=list)

    def step(self) -> int:
        self.moment += 1
        return self.moment

    # Lifecycle.

    def register(self, name: str, definition: Definition, *, enabled: bool, now: datetime) -> None:
        self.step()
        known = self.tasks.get(name)
        explicit = definition.timing.anchor
        if known is None:
            self.epochs += 1
            known = Registration(name, self.epochs, definition, enabled, explicit or now)
            self.tasks[name] = known
            if enabled:
                known.next_run_at = definition.timing.after(now, known.anchor)
            return
        edited = known.definition.timing != definition.timing
        known.definition = definition
        known.anchor = explicit or known.anchor
        overdue = known.next_run_at is not None and known.next_run_at <= now
        if edited and known.enabled and not overdue:
            known.next_run_at = definition.timing.after(now, known.anchor)

    def set_enabled(self, name: str, *, enabled: bool, now: datetime) -> bool:
        """Whether it changed anything."""
        task = self.tasks[name]
        if task.enabled == enabled:
            return False
        task.enabled = enabled
        task.next_run_at = task.definition.timing.after(now, task.anchor) if enabled else None
        self._drop(task)
        return True

    def delete(self, name: str) -> None:
        self._drop(self.tasks.pop(name))

    def clear(self, name: str, *, all_of_them: bool) -> None:
        """An operator took away some of what was pending."""
        task = self.tasks[name]
        task.cleared = True
        if all_of_them:
            self._drop(task)

    def _drop(self, task: Registration) -> None:
        self.pauses.append(Pause(task.epoch, self.step()))
        for acceptance in self.pending(task):
            acceptance.fate = Fate.DROPPED
        task.cleared = False

    # Nudges.

    def snapshot(self) -> Snapshot:
        return {name: (task.epoch, task.enabled) for name, task in self.tasks.items()}

    def accept(self, name: str, snapshot: Snapshot, now: datetime) -> Acceptance:
        acceptance = Acceptance(name, snapshot[name][0], now)
        self.acceptances.append(acceptance)
        return acceptance

    def commit(self, acceptances: Iterable[Acceptance]) -> None:
        """One transaction has committed with these."""
        moment = self.step()
        for acceptance in acceptances:
            self.acceptances.remove(acceptance)
            acceptance.committed = moment
            task = self.tasks.get(acceptance.task)
            alive = task is not None and task.epoch == acceptance.epoch
            acceptance.fate = Fate.PENDING if alive else Fate.DROPPED
            self.acceptances.append(acceptance)

    def undo(self, acceptances: Iterable[Acceptance]) -> None:
        for acceptance in acceptances:
            acceptance.fate = Fate.UNDONE

    def pending(self, task: Registration) -> list[Acceptance]:
        return [
            acceptance
            for acceptance in self.acceptances
            if acceptance.fate is Fate.PENDING and acceptance.epoch == task.epoch
        ]

    # Ticks.

    def unfinished(self, name: str) -> list[Run]:
        return [run for run in self.runs if run.task == name and run.unfinished]

    def nominated(self, now: datetime) -> list[str]:
        return sorted(
            name
            for name, task in self.tasks.items()
            if task.enabled and (_due(task, now) or self.pending(task))
        )

    def expect(self, name: str, now: datetime) -> Expected:
        """What a tick at `now` is to do with the task, without doing it."""
        task = self.tasks.get(name)
        if task is None:
            return Expected(name, TickResult.UNKNOWN_TASK)
        if not task.enabled:
            return Expected(name, TickResult.DISABLED)
        nudged = bool(self.pending(task))
        if not (_due(task, now) or nudged):
            return Expected(name, TickResult.IDLE, next_run_at=task.next_run_at)
        if self.unfinished(name):
            return Expected(name, TickResult.HELD, next_run_at=task.next_run_at)
        done = TickResult.MATERIALIZED
        if not _due(task, now):
            return Expected(name, done, CronOrigin.NUDGE, (None,), task.next_run_at)
        timing = task.definition.timing
        assert task.next_run_at is not None
        fires = timing.until(task.next_run_at, now, task.anchor)
        if task.definition.missed is MissedRunPolicy.CATCH_UP:
            fires = fires[:CATCH_UP_MAX]
        else:
            fires = fires[-1:]
        upcoming = timing.after(fires[-1], task.anchor)
        return Expected(name, done, CronOrigin.SCHEDULE, tuple(fires), upcoming)

    def materialize(self, expected: Expected, ids: Sequence[UUID], now: datetime) -> None:
        """The tick has done it, with jobs of these ids."""
        if expected.result is not TickResult.MATERIALIZED:
            return
        task = self.tasks[expected.name]
        moment = self.step()
        held = bool(self.unfinished(task.name))
        for job_id, fire in zip(ids, expected.fires, strict=True):
            run = self._instance(task, job_id, now, origin=expected.origin, moment=moment)
            run.fire_time, run.beside_another = fire, held
            self.runs.append(run)
        for acceptance in self.pending(task):
            acceptance.fate = Fate.COVERED
        task.cleared = False
        task.next_run_at = expected.next_run_at
        task.last_run_at = now
        task.last_run_job_id = task.in_flight_job_id = ids[-1]

    def trigger(self, name: str, job_id: UUID, now: datetime) -> None:
        task = self.tasks[name]
        self.runs.append(
            self._instance(task, job_id, now, origin=CronOrigin.MANUAL, moment=self.step())
        )
        task.last_run_at, task.last_run_job_id = now, job_id

    def _instance(
        self,
        task: Registration,
        job_id: UUID,
        now: datetime,
        *,
        origin: CronOrigin | None,
        moment: int,
    ) -> Run:
        definition = task.definition
        return Run(
            id=job_id,
            handler=definition.handler,
            release=definition.release,
            queue=definition.queue,
            priority=definition.priority,
            created=moment,
            created_at=now,
            task=task.name,
            epoch=task.epoch,
            origin=origin,
        )

    # Jobs.

    def insert(self, runs: Iterable[Run]) -> None:
        moment = self.step()
        for run in runs:
            run.created = moment
            self.runs.append(run)

    def run(self, job_id: UUID) -> Run:
        return next(run for run in self.runs if run.id == job_id)

    def claimable(
        self, *, queues: Sequence[str] | None, handlers: Sequence[str], limit: int
    ) -> list[Run]:
        ready = sorted(
            (run for run in self.runs if run.state is JobState.ENQUEUED),
            key=lambda run: (-run.priority, run.id),
        )
        ready = [run for run in ready if run.handler in handlers]
        if queues is None:
            return ready[:limit]
        return [run for queue in queues for run in ready if run.queue == queue][:limit]

    def claim(self, runs: Iterable[Run], owner: UUID) -> None:
        for run in runs:
            run.state, run.owner = JobState.PROCESSING, owner
            run.attempt += 1
            run.token += 1

    def holds(self, job_id: UUID, owner: UUID, token: int) -> bool:
        run = self.run(job_id)
        return run.state is JobState.PROCESSING and (run.owner, run.token) == (owner, token)

    def end(
        self, job_id: UUID, kind: OutcomeKind, *, now: datetime, retry_seconds: float | None
    ) -> None:
        run = self.run(job_id)
        run.state, entries = _ENDS[kind]
        run.history += entries
        run.owner = None
        run.state_at = now
        if kind is OutcomeKind.RETRY:
            run.scheduled_at = now + timedelta(seconds=retry_seconds or 0.0)
        if kind is OutcomeKind.RELEASED:
            run.attempt -= 1

    def delete_job(self, run: Run, now: datetime) -> None:
        run.state, run.state_at = JobState.DELETED, now
        run.history += 1

    def removable(self, state: JobState, until: datetime, limit: int) -> list[Run]:
        old = [
            (run.state_at, run.id, run)
            for run in self.runs
            if run.state is state and not run.removed and run.state_at and run.state_at <= until
        ]
        return [run for _, _, run in sorted(old, key=lambda each: each[:2])[:limit]]

    def processing(self) -> list[Run]:
        return sorted(
            (run for run in self.runs if run.state is JobState.PROCESSING), key=lambda run: run.id
        )

    def promotable(self, now: datetime, limit: int) -> list[Run]:
        due = [
            (run.scheduled_at, run.id, run)
            for run in self.runs
            if run.state is JobState.SCHEDULED and run.scheduled_at and run.scheduled_at <= now
        ]
        return [run for _, _, run in sorted(due, key=lambda each: each[:2])[:limit]]

    def promote(self, runs: Iterable[Run]) -> None:
        for run in runs:
            run.state = JobState.ENQUEUED

    # Verdicts.

    @staticmethod
    def verdict(name: str, snapshot: Snapshot) -> NudgeVerdict:
        if name not in snapshot:
            return NudgeVerdict.UNKNOWN_TASK
        return NudgeVerdict.ACCEPTED if snapshot[name][1] else NudgeVerdict.DISABLED


def _due(task: Registration, now: datetime) -> bool:
    return task.next_run_at is not None and task.next_run_at <= now
