"""The role `NudgeRecords` in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock

from threadmill_sa.clock import Clock
from threadmill_sa.model.job import JobId
from threadmill_sa.model.records import (
    REFUSED_EPOCH,
    RecordedNudge,
    RecordedRun,
    RecordsAudit,
    SnapshotEvent,
)

LivingEpoch = Callable[[str], int | None]
"""The epoch of an enabled task, or None. Takes no lock."""


@dataclass(frozen=True, slots=True)
class _Nudge:
    number: int  # under one lock the order of the numbers is that of the commits
    epoch: int
    view: RecordedNudge


@dataclass(frozen=True, slots=True)
class _Snapshot:
    task: str
    event: SnapshotEvent
    seen: int  # the last number given out before
    at: datetime
    run: RecordedRun | None = None


@dataclass(slots=True)
class RecordLog:
    """What was recorded. Takes no lock itself."""

    nudges: list[_Nudge] = field(default_factory=list)
    snapshots: list[_Snapshot] = field(default_factory=list)
    last: int = 0  # never reset

    def accepted(self, task: str, epoch: int, revision: int | None, at: datetime) -> int:
        """Return the number of the record."""
        self.last += 1
        self.nudges.append(_Nudge(self.last, epoch, RecordedNudge(task, revision, None, at)))
        return self.last

    def dropped(self, task: str, event: SnapshotEvent, at: datetime) -> None:
        """Note that everything recorded so far of `task` will not run any more."""
        if any(nudge.view.task == task for nudge in self.nudges):
            self.snapshots.append(_Snapshot(task, event, self.last, at))


class MemoryRecords:
    """Records under the store's lock; they grow until they are cleared."""

    def __init__(self, log: RecordLog, lock: Lock, clock: Clock, living: LivingEpoch) -> None:
        self._log = log
        self._lock = lock
        self._clock = clock
        self._living = living

    def expect(self, names: Sequence[str], *, now: datetime | None = None) -> Mapping[str, int]:
        promises: dict[str, int] = {}
        with self._lock:
            moment = now or self._clock.now()
            for name in names:
                epoch = self._living(name)
                if epoch is not None:
                    promises[name] = self._log.accepted(name, epoch, None, moment)
        return promises

    def refuse(self, name: str, promise: int) -> None:
        with self._lock:
            for place, nudge in enumerate(self._log.nudges):
                expected = nudge.view.task == name and nudge.view.revision is None
                if expected and nudge.number == promise:
                    self._log.nudges[place] = replace(nudge, epoch=REFUSED_EPOCH)

    def record_run(
        self, task: str, job_id: JobId, attempt: int, *, now: datetime | None = None
    ) -> None:
        with self._lock:
            moment, seen = now or self._clock.now(), self._log.last
            run = RecordedRun(task, job_id, attempt, str(seen), moment)
            snapshot = _Snapshot(task, SnapshotEvent.RUN, seen, moment, run)
            self._log.snapshots.append(snapshot)

    def audit(self, tasks: Sequence[str] | None, *, examples: int) -> RecordsAudit:
        with self._lock:
            wanted = None if tasks is None else set(tasks)
            nudges = [each for each in self._log.nudges if _wanted(each.view.task, wanted)]
            snapshots = [each for each in self._log.snapshots if _wanted(each.task, wanted)]
            ran, dropped = _latest(snapshots, run=True), _latest(snapshots, run=False)
            pending = [each for each in nudges if each.number > ran.get(each.view.task, -1)]
            uncovered = [
                each.view
                for each in pending
                if each.number > dropped.get(each.view.task, -1)
                and self._living(each.view.task) == each.epoch
            ]
        runs = [each.run for each in snapshots if each.run is not None]
        shown = tuple(uncovered[:examples])
        return RecordsAudit(
            nudges=len(nudges),
            runs=len(runs),
            covered=len(nudges) - len(pending),
            excused=len(pending) - len(uncovered),
            examples=shown,
            latest_runs=_newest(runs, {each.task for each in shown}, examples),
        )

    def clear(self) -> int:
        with self._lock:
            cleared = len(self._log.nudges)
            self._log.nudges.clear()
            self._log.snapshots.clear()
            return cleared


def _wanted(task: str, wanted: set[str] | None) -> bool:
    return wanted is None or task in wanted


def _latest(snapshots: Sequence[_Snapshot], *, run: bool) -> dict[str, int]:
    """The highest number seen, by task: what one snapshot shows every later one shows."""
    return {each.task: each.seen for each in snapshots if (each.event is SnapshotEvent.RUN) == run}


def _newest(runs: Sequence[RecordedRun], tasks: set[str], count: int) -> tuple[RecordedRun, ...]:
    newest: list[RecordedRun] = []
    for task in sorted(tasks):
        of_task = [run for run in runs if run.task == task]
        newest += reversed(of_task[-count:])
    return tuple(newest)
