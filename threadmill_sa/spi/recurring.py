"""The role that keeps recurring tasks, their schedule and their nudges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from threadmill_sa.model.job import NewJob
from threadmill_sa.model.nudge import ClearOutcome, NudgeOutcome, NudgeVerdict, PendingNudges
from threadmill_sa.model.recurring import (
    CronOrigin,
    CronTask,
    CronTaskScheduleState,
    CronTaskView,
    FlipOutcome,
    RegisterOutcome,
)


@dataclass(frozen=True, slots=True)
class TaskReading:
    """What one tick knows of one task, read after its lock was taken."""

    task: CronTask
    state: CronTaskScheduleState
    unfinished: bool  # an unfinished job of the task exists, whatever its origin or epoch
    pending: PendingNudges | None  # acceptances of the task's own epoch
    now: datetime


class NudgeAction(StrEnum):
    """What the commit does to the pending nudges of the task."""

    KEEP = "keep"
    CONSUME = "consume"  # delete what is visible
    COMPACT = "compact"  # replace what is visible by one acceptance


class TickResult(StrEnum):
    """What one tick did with one task."""

    MATERIALIZED = "materialized"
    HELD = "held"  # due or nudged, but an instance is unfinished
    IDLE = "idle"  # nothing to do any more
    DISABLED = "disabled"
    BROKEN = "broken"  # its stored trigger cannot be evaluated
    UNKNOWN_TASK = "unknown_task"  # deleted since it was nominated
    BUSY = "busy"  # another tick or a lifecycle call holds it


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The decision for one task: jobs to insert, the new state, the nudges' fate."""

    result: TickResult
    jobs: tuple[NewJob, ...] = ()
    state: CronTaskScheduleState | None = None  # None leaves it as it is
    nudges: NudgeAction = NudgeAction.KEEP

    @property
    def writes_nothing(self) -> bool:
        """Whether the store is left as it is."""
        return not self.jobs and self.state is None and self.nudges is NudgeAction.KEEP


Plan = Callable[[TaskReading], TaskPlan]
"""A pure function: no I/O, no clock. An exception of it fails the whole batch."""

MakeInstance = Callable[[CronTask], NewJob]
"""A pure function, as `Plan`: the instance of a definition. It may be called more than once."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What was committed for one nominated name."""

    name: str
    result: TickResult
    jobs: tuple[NewJob, ...] = ()
    broken_reason: str | None = None

    @property
    def origin(self) -> CronOrigin | None:
        return self.jobs[0].cron_origin if self.jobs else None


class Recurring(Protocol):
    """Register, steer, nudge and materialize recurring tasks.

    Every lifecycle call (register, set_enabled, delete, trigger) and every commit of a tick is
    one atomic step that excludes the others for the same task. `now` is as in `Jobs`.
    """

    def register(self, task: CronTask, *, now: datetime | None = None) -> RegisterOutcome:
        """Create or edit the definition of `task.name`.

        Guarantee: a new row draws a new epoch and sets `enabled` and the anchor; an edit keeps
        epoch, `enabled` and (unless `task.anchor_at` is given) the anchor. The schedule follows
        `model.timing`. Pending nudges are kept.
        """
        ...

    def set_enabled(self, name: str, *, enabled: bool, now: datetime | None = None) -> FlipOutcome:
        """Pause or resume a task.

        Guarantee: a nudge that committed before the flip is gone afterwards; one whose
        transaction was open across the flip and commits later counts.
        """
        ...

    def delete(self, name: str) -> bool:
        """Remove definition, schedule state and visible nudges; False when the name is unknown.

        Jobs already created stay and still run.
        """
        ...

    def trigger(
        self, name: str, make: MakeInstance, *, now: datetime | None = None
    ) -> NewJob | None:
        """Insert what `make` makes of the definition; None when the task is unknown.

        Guarantee: the definition is read under the lock that the insert holds, so no edit and no
        new registration of the name can come between. Ignores the guard and the pause; moves no
        schedule and consumes no nudge.
        """
        ...

    def get(self, name: str) -> CronTaskView | None:
        """Return definition, state and pending nudges read together, or None."""
        ...

    def task_verdicts(self, names: Sequence[str]) -> Mapping[str, NudgeVerdict]:
        """Return for each name whether a nudge would be accepted now. Writes nothing."""
        ...

    def request_cron_nudge(self, name: str, *, now: datetime | None = None) -> NudgeOutcome:
        """Accept a nudge of `name` in a transaction of its own.

        Guarantee: ACCEPTED is durable, and a job of the task created later follows it unless the
        task is disabled or deleted first. Never creates a task or a state, never moves a schedule.
        """
        ...

    def clear_cron_nudge(self, name: str, observed: frozenset[int]) -> ClearOutcome:
        """Clear exactly the acceptances whose revisions were observed, never a newer one."""
        ...

    def nominate(self, *, after: str | None, limit: int, now: datetime | None = None) -> list[str]:
        """Return names that are due or nudged, sorted, greater than `after`, at most `limit`.

        A hint, without a lock: the commit reads everything again. Costs nothing per idle task.
        """
        ...

    def materialize(
        self,
        names: Sequence[str],
        plan: Plan,
        *,
        wait: bool = False,
        now: datetime | None = None,
    ) -> list[TaskOutcome]:
        """Turn fires and nudges of `names` into jobs.

        For each task, under its lock: read definition, state, unfinished jobs and pending
        nudges; call `plan`; write jobs, state and nudges.

        Args:
            names: 1..limits.MATERIALIZE_BATCH.
            wait: wait for a task that is locked instead of reporting BUSY.
        Returns: one outcome per name, sorted by name.
        Atomicity: one transaction for the whole batch. Creating jobs, advancing the state and
            consuming nudges happen together or not at all.
        """
        ...

    def sweep_nudges(self, *, limit: int) -> int:
        """Delete up to `limit` nudges whose task is deleted or replaced; returns how many."""
        ...

    def list(self) -> list[CronTaskView]:
        """Return every task, by name."""
        ...
