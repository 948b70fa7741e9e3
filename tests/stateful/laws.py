"""What must hold after every step, between the model and what a store shows.

N1 to N6 are read from the logs of accepted nudges and of runs alone, so that they do not rest on
how the model predicts a tick.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tests.stateful.model import Acceptance, Model, Registration, Run
from threadmill_sa.model.job import Job
from threadmill_sa.model.recurring import CronOrigin, CronTaskView
from threadmill_sa.model.state import UNFINISHED, JobState


@dataclass(frozen=True, slots=True)
class Seen:
    """What a store shows after one step."""

    tasks: Mapping[str, CronTaskView]
    jobs: Mapping[UUID, Job]
    counts: Mapping[JobState, int]
    depths: Mapping[str, int]
    state_rows: int | None  # rows of schedule state, where they can be counted


def check(model: Model, before: Seen | None, seen: Seen) -> None:
    """Raise AssertionError, whose text names the promise, when anything does not hold."""
    tasks_are_as_committed(model, seen)
    schedules_follow_definitions_and_fires(model, seen)
    jobs_are_as_committed(model, seen)
    counts_are_exact(seen)
    if before is not None:
        nothing_ended_moves(model, before, seen)
    every_nudge_is_followed(model, seen)
    every_follow_up_has_a_nudge(model)
    instances_do_not_pile_up(model)


def tasks_are_as_committed(model: Model, seen: Seen) -> None:
    """N6: nothing but a registration creates a task or a state. N3: a commit alone accepts."""
    assert sorted(seen.tasks) == sorted(model.tasks), "N6: tasks that nobody registered, or lost"
    assert seen.state_rows in {None, len(model.tasks)}, "N6: a schedule state without its task"
    for name, task in model.tasks.items():
        view, definition = seen.tasks[name], task.definition
        assert view.enabled == task.enabled, f"{name}: enabled"
        found = (view.handler, view.queue, view.priority, view.missed_run_policy)
        expected = (
            definition.handler,
            definition.queue,
            definition.priority,
            definition.missed,
        )
        assert found == expected, f"{name}: definition"
        assert _release(view.payload) == definition.release, f"{name}: release"
        assert view.anchor_at == task.anchor, f"{name}: anchor"
        assert view.broken_reason is None, f"{name}: broken"
        _nudges_are_as_committed(model, task, view)


def _nudges_are_as_committed(model: Model, task: Registration, view: CronTaskView) -> None:
    pending = model.pending(task)
    assert bool(view.nudge_revisions) == bool(pending), (
        f"N3: {task.name} shows nudges {sorted(view.nudge_revisions)}, committed and not covered"
        f" are {pending}"
    )
    if not task.cleared:
        earliest = min((each.requested_at for each in pending), default=None)
        assert view.nudge_requested_at == earliest, f"{task.name}: earliest request"


def schedules_follow_definitions_and_fires(model: Model, seen: Seen) -> None:
    """N4: only a registration, a flip or a fire moves the next run."""
    for name, task in model.tasks.items():
        view = seen.tasks[name]
        assert view.next_run_at == task.next_run_at, f"N4: {name}: next run"
        found = (view.last_run_at, view.last_run_job_id, view.in_flight_job_id)
        expected = (task.last_run_at, task.last_run_job_id, task.in_flight_job_id)
        assert found == expected, f"{name}: last run"
    for run in model.runs:
        scheduled = run.origin is CronOrigin.SCHEDULE
        assert scheduled == (run.fire_time is not None), f"N4: fire time of {run}"


def jobs_are_as_committed(model: Model, seen: Seen) -> None:
    """Each job is there once, made from the definition that was committed at its creation."""
    kept = [run for run in model.runs if not run.removed]
    assert seen.jobs.keys() == {run.id for run in kept}, "jobs that nobody made, or lost"
    for run in kept:
        job = seen.jobs[run.id]
        assert _release(job.payload) == run.release, f"definition of {run}"
        made = (job.handler, job.queue, job.priority, job.created_at)
        assert made == (run.handler, run.queue, run.priority, run.created_at), f"making of {run}"
        origin = (job.cron_task_name, job.cron_origin, job.fire_time)
        assert origin == (run.task, run.origin, run.fire_time), f"origin of {run}"
        now = (job.state, job.attempt, job.attempt_token, job.owner_node_id, job.scheduled_at)
        expected = (run.state, run.attempt, run.token, run.owner, run.scheduled_at)
        assert now == expected, f"progress of {run}"
        assert len(job.history) == run.history, f"history of {run}: {job.history}"


def counts_are_exact(seen: Seen) -> None:
    states = Counter(job.state for job in seen.jobs.values())
    assert dict(seen.counts) == {state: states[state] for state in JobState}, "counts by state"
    depths = Counter(job.queue for job in seen.jobs.values() if job.state is JobState.ENQUEUED)
    assert dict(seen.depths) == dict(depths), "depths of queues"


def nothing_ended_moves(model: Model, before: Seen, seen: Seen) -> None:
    """Terminal states stay until the job is deleted or removed, and no attempt token falls."""
    removed = {run.id for run in model.runs if run.removed}
    for job_id, old in before.jobs.items():
        if job_id in removed:
            assert old.state not in UNFINISHED, f"{job_id} was removed as {old.state}"
            continue
        new = seen.jobs[job_id]
        assert new.attempt_token >= old.attempt_token, f"token of {job_id} fell"
        deleted = new.state is JobState.DELETED is not old.state
        if old.state not in UNFINISHED and not deleted:
            assert new == old, f"{job_id} had ended as {old.state}"


def every_nudge_is_followed(model: Model, seen: Seen) -> None:
    """N1: a run created after the commit, a pause, or the nudge is still there to be seen."""
    for nudge in model.acceptances:
        if nudge.committed is None or _paused(model, nudge, since=nudge.committed):
            continue
        if any(_follows(run, nudge) for run in model.runs):
            continue
        if _was_registered(model, nudge):
            view = seen.tasks[nudge.task]
            assert view.nudge_revisions, f"N1: {nudge} was lost"


def every_follow_up_has_a_nudge(model: Model) -> None:
    """N2, N5, N6: a nudged run has a nudge of its own that no run, pause or delete had ended."""
    for number, run in enumerate(model.runs):
        if run.origin is not CronOrigin.NUDGE:
            continue
        since = max(
            (
                earlier.created
                for earlier in model.runs[:number]
                if earlier.epoch == run.epoch and earlier.origin is not CronOrigin.MANUAL
            ),
            default=0,
        )
        assert any(
            nudge.epoch == run.epoch
            and nudge.committed is not None
            and since < nudge.committed < run.created
            and not _paused(model, nudge, since=nudge.committed, until=run.created)
            for nudge in model.acceptances
        ), f"N2/N5/N6: nothing asked for {run}"


def instances_do_not_pile_up(model: Model) -> None:
    """One instance at a time, but for the batch of one catch-up tick and for `trigger`."""
    ticks: dict[str, set[int]] = {}
    for run in model.runs:
        if run.task is None or run.origin is CronOrigin.MANUAL:
            continue
        assert not run.beside_another, f"guard: {run} began beside another"
        if run.unfinished:
            ticks.setdefault(run.task, set()).add(run.created)
    assert all(len(moments) == 1 for moments in ticks.values()), f"guard: {ticks}"


def _follows(run: Run, nudge: Acceptance) -> bool:
    assert nudge.committed is not None
    return (
        run.epoch == nudge.epoch
        and run.origin is not CronOrigin.MANUAL
        and run.created > nudge.committed
    )


def _paused(model: Model, nudge: Acceptance, *, since: int, until: int | None = None) -> bool:
    return any(
        pause.epoch == nudge.epoch
        and pause.moment > since
        and (until is None or pause.moment < until)
        for pause in model.pauses
    )


def _was_registered(model: Model, nudge: Acceptance) -> bool:
    task = model.tasks.get(nudge.task)
    return task is not None and task.epoch == nudge.epoch


def _release(payload: str | None) -> int:
    assert payload is not None
    release: int = json.loads(payload)
    return release
