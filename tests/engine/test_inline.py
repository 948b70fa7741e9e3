"""Everything due, in the caller's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.engine.bench import AT_ONCE, Bench
from threadmill_sa.engine.processing.context import JobContext, current_job
from threadmill_sa.errors import ThreadmillError
from threadmill_sa.model.recurring import MissedRunPolicy
from threadmill_sa.model.retry import Backoff
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import Every
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.testing.clock import ManualClock

START = datetime(2025, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def manual() -> Iterator[Bench]:
    """A bench whose clock stands still."""
    clock = ManualClock(START)
    bench = Bench(MemoryStore(clock), clock)
    yield bench
    bench.close()


def test_what_is_due_runs_in_this_thread_and_the_attempts_are_counted(any_bench: Bench):
    threads = []
    any_bench.declare(lambda: threads.append(threading.current_thread()))
    job_ids = [any_bench.enqueue() for _ in range(3)]
    later = any_bench.enqueue(delay_seconds=3600)

    ran = any_bench.run_until_idle()

    assert ran == 3
    assert set(threads) == {threading.current_thread()}
    assert {any_bench.state(job_id) for job_id in job_ids} == {JobState.SUCCEEDED}
    assert any_bench.state(later) is JobState.SCHEDULED


def test_an_instant_in_the_future_is_used_for_everything(any_bench: Bench):
    bench = any_bench
    seen = []

    def handler(ctx: JobContext) -> None:
        seen.append(ctx.deadline)

    bench.declare(handler, timeout=60)
    later = bench.enqueue(delay_seconds=3600)
    future = bench.clock.now() + timedelta(hours=2)

    assert bench.run_until_idle() == 0
    assert bench.run_until_idle(now=future) == 1
    assert seen == [future + timedelta(seconds=60)]
    assert bench.job(later).state_at == future


def test_retries_due_at_the_instant_run_and_later_ones_wait(any_bench: Bench):
    def handler(ctx: JobContext) -> None:
        raise ValueError

    any_bench.declare(handler, backoff=AT_ONCE)
    any_bench.declare(handler, "patient", backoff=Backoff(initial=3600))
    at_once = any_bench.enqueue(max_attempts=3)
    patient = any_bench.enqueue("patient", max_attempts=3)

    ran = any_bench.run_until_idle()

    assert ran == 4
    assert any_bench.state(at_once) is JobState.FAILED
    assert any_bench.state(patient) is JobState.SCHEDULED


def test_jobs_that_handlers_create_run_as_well(any_bench: Bench):
    def handler(depth: int) -> None:
        if depth:
            any_bench.enqueue(payload=depth - 1)

    any_bench.declare(handler)
    any_bench.enqueue(payload=3)

    assert any_bench.run_until_idle() == 4


def test_a_nudge_from_inside_its_own_run_gives_one_more_run(any_bench: Bench):
    origins = []

    def handler(ctx: JobContext) -> None:
        origins.append(ctx.cron_origin)
        if len(origins) == 1:
            any_bench.nudge("pump")
            any_bench.nudge("pump")

    any_bench.declare(handler)
    any_bench.register("pump")
    any_bench.nudge("pump")

    assert any_bench.run_until_idle() == 2
    assert origins == ["nudge", "nudge"]


def test_a_catch_up_task_runs_once_for_every_missed_fire(manual: Bench):
    fires = []

    def handler(ctx: JobContext) -> None:
        fires.append(ctx.fire_time)

    manual.declare(handler)
    manual.register("hourly", trigger=Every(hours=1), missed=MissedRunPolicy.CATCH_UP)
    manual.clock.advance(timedelta(hours=150))  # type: ignore[attr-defined]

    ran = manual.run_until_idle()

    assert ran == 150
    assert fires == [START + timedelta(hours=n) for n in range(1, 151)]


def test_work_that_never_ends_is_refused_by_name(bench: Bench):
    bench.declare(lambda: bench.enqueue(cron_task_name="pump"))
    bench.enqueue(cron_task_name="pump")

    with pytest.raises(ThreadmillError, match="recurring task 'pump' still has due work"):
        bench.run_until_idle(limit=10)

    assert bench.store.inner.jobs.counts()[JobState.PROCESSING] == 0


def test_exactly_the_limit_is_allowed(bench: Bench):
    bench.declare(lambda: None)
    for _ in range(5):
        bench.enqueue()

    assert bench.run_until_idle(limit=5) == 5


@pytest.mark.parametrize("inside_a_loop", [False, True])
def test_async_handlers_run_also_when_this_thread_has_a_loop(bench: Bench, inside_a_loop: bool):
    seen = []

    async def handler(number: int) -> int:
        await asyncio.sleep(0)
        seen.append(current_job() is not None)
        return number

    bench.declare(handler)
    job_id = bench.enqueue(payload=7)

    async def main() -> int:
        return bench.run_until_idle()

    ran = asyncio.run(main()) if inside_a_loop else bench.run_until_idle()

    assert (ran, seen) == (1, [True])
    assert bench.job(job_id).result == "7"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_interrupt_passes_through_and_gives_the_jobs_back(bench: Bench, is_async: bool):
    def interrupted() -> None:
        raise KeyboardInterrupt

    async def async_interrupted() -> None:
        raise KeyboardInterrupt

    bench.declare(async_interrupted if is_async else interrupted)
    job_ids = [bench.enqueue(), bench.enqueue()]

    with pytest.raises(KeyboardInterrupt):
        bench.run_until_idle()

    jobs = [bench.job(job_id) for job_id in job_ids]
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.ENQUEUED, 0)] * 2


def test_a_handler_that_exits_has_failed(bench: Bench):
    def handler() -> None:
        raise SystemExit(3)

    bench.declare(handler)
    job_id = bench.enqueue(max_attempts=1)

    assert bench.run_until_idle() == 1
    assert bench.state(job_id) is JobState.FAILED


def test_nothing_declared_is_nothing_to_run(bench: Bench):
    bench.enqueue("unknown")

    assert bench.run_until_idle() == 0
