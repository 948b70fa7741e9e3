"""What a handler sees of its attempt."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.engine.bench import AT_ONCE, Bench, arrives, eventually
from threadmill_sa.engine.processing.context import Cancellation, JobContext, current_job
from threadmill_sa.errors import InvalidValueError, JobCancelledError
from threadmill_sa.model.job import JobId
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.state import JobState

FIRE = datetime(2025, 3, 1, tzinfo=UTC)


def context(*, cancellation: Cancellation | None = None) -> JobContext:
    return JobContext(
        id=JobId(UUID(int=7)),
        attempt=2,
        max_attempts=5,
        queue="mail",
        handler="h",
        cron_task_name="pump",
        cancellation=cancellation or Cancellation(),
    )


def test_the_context_tells_the_job_its_attempt_its_origin_and_its_deadline(bench: Bench):
    seen: list[JobContext] = []

    def handler(ctx: JobContext) -> None:
        seen.append(ctx)

    bench.declare(handler, timeout=600)
    job_id = bench.enqueue(
        queue="mail", cron_task_name="pump", cron_origin=CronOrigin.SCHEDULE, fire_time=FIRE
    )
    before = bench.clock.now()

    with bench.node():
        bench.wait_state(job_id, JobState.SUCCEEDED)

    ctx = seen[0]
    assert (ctx.id, ctx.attempt, ctx.max_attempts, ctx.queue) == (job_id, 1, 5, "mail")
    assert (ctx.cron_task_name, ctx.cron_origin, ctx.fire_time) == ("pump", "schedule", FIRE)
    assert ctx.deadline is not None
    assert before + timedelta(seconds=600) <= ctx.deadline
    assert not ctx.cancelled


@pytest.mark.parametrize("is_async", [False, True])
def test_the_current_job_is_known_inside_the_handler_and_nowhere_else(
    bench: Bench, is_async: bool
):
    inside: list[JobContext | None] = []

    def sync_handler() -> None:
        inside.append(current_job())

    async def async_handler() -> None:
        inside.append(current_job())

    bench.declare(async_handler if is_async else sync_handler)
    job_id = bench.enqueue()

    with bench.node():
        bench.wait_state(job_id, JobState.SUCCEEDED)

    assert [job.id for job in inside if job] == [job_id]
    assert current_job() is None


@pytest.mark.parametrize("is_async", [False, True])
def test_handlers_see_the_context_variables_of_the_host_but_not_each_others(
    bench: Bench, is_async: bool
):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("host")
    seen = []

    def work() -> None:
        seen.append(variable.get())
        variable.set("job")

    async def async_handler() -> None:
        work()

    bench.declare(async_handler if is_async else work)
    job_ids = [bench.enqueue(), bench.enqueue()]

    with bench.node(workers=1):
        for job_id in job_ids:
            bench.wait_state(job_id, JobState.SUCCEEDED)

    assert seen == ["host", "host"]
    assert variable.get() == "host"


def test_a_log_line_carries_the_fields_of_the_job(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="threadmill_sa.job"):
        context().log("sent %d of %d", 1, 2)

    record = caplog.records[0]
    assert record.getMessage() == "sent 1 of 2"
    assert record.__dict__["job_id"] == str(UUID(int=7))
    assert record.__dict__["job_attempt"] == 2
    assert record.__dict__["job_task"] == "pump"


def test_progress_is_logged_with_its_fraction(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="threadmill_sa.job"):
        context().progress(0.5, "half")

    assert caplog.records[0].getMessage() == "progress 50.0%: half"
    assert caplog.records[0].__dict__["progress"] == 0.5


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True, "0.5"])
def test_progress_outside_of_zero_to_one_is_refused(fraction):
    with pytest.raises(InvalidValueError, match="fraction from 0 to 1"):
        context().progress(fraction)


def test_a_check_in_passes_until_the_attempt_is_cancelled_and_then_says_why():
    cancellation = Cancellation()
    ctx = context(cancellation=cancellation)
    ctx.check_in()

    cancellation.cancel("timeout")
    cancellation.cancel("shutdown")

    with pytest.raises(JobCancelledError, match="must stop: timeout") as caught:
        ctx.check_in()
    assert caught.value.reason == "timeout"
    assert ctx.cancel_reason == "timeout"
    assert ctx.wait_cancelled(0)


def test_a_listener_of_a_cancellation_is_called_once_even_when_it_comes_late():
    cancellation, calls = Cancellation(), []
    cancellation.on_cancel(lambda: calls.append("early"))

    cancellation.cancel("lost")
    cancellation.cancel("lost")
    cancellation.on_cancel(lambda: calls.append("late"))

    assert calls == ["early", "late"]


def test_async_handlers_run_at_the_same_time_within_the_slots(bench: Bench):
    running, peak, lock = [0], [0], threading.Lock()
    gate = threading.Event()

    async def handler() -> None:
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        await asyncio.to_thread(arrives, gate)
        with lock:
            running[0] -= 1

    bench.declare(handler, backoff=AT_ONCE)
    job_ids = [bench.enqueue() for _ in range(6)]

    with bench.node(workers=3):
        eventually(lambda: running[0] == 3, "three at once")
        gate.set()
        for job_id in job_ids:
            bench.wait_state(job_id, JobState.SUCCEEDED)

    assert peak[0] == 3
