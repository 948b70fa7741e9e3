"""What the suite's tests are written with: builders, pure plans and threads with a barrier."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest

from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    Job,
    JobId,
    NewJob,
    NodeId,
    OutcomeKind,
)
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import CronOrigin, CronTask, CronTaskView
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import Cron, Every, Trigger, timing_fingerprint, trigger_text
from threadmill_sa.spi.recurring import (
    NudgeAction,
    Plan,
    TaskOutcome,
    TaskPlan,
    TaskReading,
    TickResult,
)
from threadmill_sa.spi.store import JobStore

T0 = datetime(2026, 1, 5, 12, 0, 0, 123456, tzinfo=UTC)
# As `silent_since`: no beat is so old, and none so late.
BEFORE_ALL, AFTER_ALL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
HANDLER = "work"
EDITED = "an instance is made of the definition as it is stored by then"
JOIN_SECONDS = 60.0  # a thread that is not back by then hangs

T = TypeVar("T")

_numbers = itertools.count(1)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def new_id() -> JobId:
    """An id greater than every one before."""
    return JobId(UUID(int=(0x0198 << 112) | (next(_numbers) << 80) | (7 << 76) | (2 << 62)))


def new_node() -> NodeId:
    return NodeId(new_id())


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "handler": HANDLER, **fields})


def insert(store: JobStore, count: int = 1, **fields: Any) -> list[NewJob]:
    """Insert `count` equal jobs at T0."""
    jobs = [new_job(**fields) for _ in range(count)]
    store.jobs.insert(jobs, now=T0)
    return jobs


def read(store: JobStore, job_id: JobId) -> Job:
    job = store.jobs.get(job_id)
    assert job is not None, f"job {job_id} is not stored"
    return job


def claim_one(store: JobStore, node: NodeId, *, at: datetime = T0) -> ClaimedJob:
    """Claim the only job that is ready."""
    return only(claim(store, node, at=at), "a claim takes what is ready, and that once")


def claim(
    store: JobStore, node: NodeId, limit: int = 1000, *, at: datetime = T0
) -> list[ClaimedJob]:
    """Claim from all queues for the suite's one handler."""
    return store.jobs.claim(node, queues=None, handlers=[HANDLER], limit=limit, now=at)


def outcome(
    job: ClaimedJob, kind: OutcomeKind = OutcomeKind.SUCCEEDED, **fields: Any
) -> AttemptOutcome:
    reasons = {
        OutcomeKind.SUCCEEDED: failure.SUCCESS,
        OutcomeKind.RETRY: failure.EXCEPTION,
        OutcomeKind.FAILED: failure.EXCEPTION,
        OutcomeKind.QUARANTINED: failure.QUARANTINE,
        OutcomeKind.RELEASED: failure.SHUTDOWN,
    }
    if kind is OutcomeKind.RETRY:
        fields.setdefault("retry_seconds", 10.0)
    return AttemptOutcome(job.id, job.attempt_token, kind, reasons[kind], **fields)


def run_all(store: JobStore, *, at: datetime = T0) -> list[ClaimedJob]:
    """Claim and succeed everything that is ready."""
    node = new_node()
    claimed = claim(store, node, at=at)
    store.jobs.finish(node, [outcome(job) for job in claimed], now=at)
    return claimed


_ENDS = {
    JobState.SUCCEEDED: OutcomeKind.SUCCEEDED,
    JobState.FAILED: OutcomeKind.FAILED,
    JobState.QUARANTINED: OutcomeKind.QUARANTINED,
}


def bring(store: JobStore, state: JobState, *, at: datetime = T0, **fields: Any) -> NewJob:
    """Insert one job and bring it to `state` at `at`; no other job may be ready."""
    delay = 3600.0 if state is JobState.SCHEDULED else None
    job = new_job(delay_seconds=delay, **fields)
    store.jobs.insert([job], now=at)
    if state is JobState.PROCESSING or state in _ENDS:
        node = new_node()
        [held] = claim(store, node, at=at)
        if state in _ENDS:
            store.jobs.finish(node, [outcome(held, _ENDS[state])], now=at)
    if state is JobState.DELETED:
        store.jobs.delete(job.id, now=at)
    assert read(store, job.id).state is state
    return job


def new_task(name: str = "pump", trigger: Trigger | None = None, **fields: Any) -> CronTask:
    """A declared task, every 10 minutes unless `trigger` says otherwise."""
    trigger = trigger or Every(minutes=10)
    kind, value, zone = trigger_text(trigger)
    declared = CronTask(
        name=name,
        trigger_kind=kind,
        trigger_value=value,
        zone=zone,
        handler=HANDLER,
        timing_fingerprint=timing_fingerprint(trigger),
        anchor_at=trigger.anchor if isinstance(trigger, Every) else None,
    )
    return replace(declared, **fields)


def daily(hour: int) -> Cron:
    return Cron(f"0 {hour} * * *")


def view(store: JobStore, name: str = "pump") -> CronTaskView:
    found = store.recurring.get(name)
    assert found is not None, f"task {name!r} is not registered"
    return found


def instances(store: JobStore, name: str = "pump") -> list[Job]:
    """Every job of a task, oldest first."""
    found = store.jobs.list(task=name, limit=500)
    return [read(store, job.id) for job in reversed(found)]


def nudge(store: JobStore, at: datetime = T0, name: str = "pump") -> int:
    """Nudge and return the revision; a refusal fails the test."""
    answer = store.recurring.request_cron_nudge(name, now=at)
    assert answer.verdict is NudgeVerdict.ACCEPTED, "an enabled task accepts every nudge"
    assert answer.revision is not None, "an acceptance tells its revision"
    return answer.revision


def tick(
    store: JobStore, plan: Plan, at: datetime = T0, name: str = "pump", *, wait: bool = False
) -> TaskOutcome:
    """Materialize one task."""
    done = store.recurring.materialize([name], plan, wait=wait, now=at)
    return only(done, "a tick answers once for each name")


class WithPump:
    """A task `pump`, every 10 minutes, registered at T0."""

    @pytest.fixture(autouse=True)
    def _pump(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)


def one_instance(reading: TaskReading) -> TaskPlan:
    """The plainest plan: one instance whatever the reading, the nudges consumed."""
    job = new_job(cron_task_name=reading.task.name, cron_origin=CronOrigin.NUDGE)
    ran = replace(reading.state, last_run_at=reading.now, last_run_job_id=job.id)
    return TaskPlan(TickResult.MATERIALIZED, (job,), ran, NudgeAction.CONSUME)


def compacting(reading: TaskReading) -> TaskPlan:
    del reading
    return TaskPlan(TickResult.HELD, nudges=NudgeAction.COMPACT)


def together(*actions: Callable[[], Any]) -> list[Any]:
    """Run `actions` at the same time, one thread each; their results, in order.

    The last is the likeliest to begin first: it arrives when the others wait already.
    Raises: the first exception of an action; AssertionError when one does not come back.
    """
    barrier = threading.Barrier(len(actions))
    results: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def run(index: int, action: Callable[[], Any]) -> None:
        try:
            barrier.wait(JOIN_SECONDS)
            results[index] = action()
        except BaseException as error:  # noqa: BLE001  Raised again below, in the test's thread.
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(index, action), daemon=True)
        for index, action in enumerate(actions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "an action did not come back"
    if errors:
        raise errors[0]
    return results


def only(found: Iterable[T], rule: str) -> T:
    """The one element of `found`; none, or a second one, breaks `rule`."""
    elements = list(found)
    assert len(elements) == 1, f"{rule}; found {len(elements)}: {elements!r:.500}"
    return elements[0]


def ids_of(jobs: Iterable[Any]) -> list[JobId]:
    return [job.id for job in jobs]
