"""Deadlines, slots of threads that run on, and claims that were lost."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tests.engine.bench import AT_ONCE, Bench, arrives, eventually
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, JobId, OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.testing.suite.tools import AFTER_ALL

TIMEOUT = 0.05


def test_a_sync_job_over_its_time_fails_at_the_deadline_while_its_thread_keeps_the_slot(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    started, gate, reasons = threading.Event(), threading.Event(), []

    def slow(ctx: JobContext) -> str:
        started.set()
        ctx.wait_cancelled(15)
        reasons.append(ctx.cancel_reason)
        assert arrives(gate)
        return "too late"

    bench.declare(slow, timeout=TIMEOUT)
    bench.declare(lambda: None, "next")
    slow_id = bench.enqueue(max_attempts=1)
    node = bench.node(workers=1)
    node.start()
    assert arrives(started)
    job = bench.wait_state(slow_id, JobState.FAILED)
    claims = bench.store.calls("jobs.claim")
    waiting = bench.enqueue("next")
    node.wake()

    # The zombie holds the only slot, so nothing is claimed.
    eventually(lambda: reasons == ["timeout"], "the cooperative flag")
    assert bench.state(waiting) is JobState.ENQUEUED
    assert bench.store.calls("jobs.claim") == claims
    gate.set()
    bench.wait_state(waiting, JobState.SUCCEEDED)

    assert job.history[-1].reason == failure.TIMEOUT
    assert "within 0.05 s" in (job.history[-1].message or "")
    assert bench.job(slow_id).result is None
    late = [record for record in caplog.records if "late result" in record.getMessage()]
    assert len(late) == 1


def test_an_async_job_over_its_time_is_cancelled_and_frees_its_slot(bench: Bench):
    cancelled = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bench.declare(slow, timeout=TIMEOUT)
    bench.declare(lambda: None, "next")
    slow_id = bench.enqueue(max_attempts=1)
    next_id = bench.enqueue("next")

    with bench.node(workers=1):
        job = bench.wait_state(slow_id, JobState.FAILED)
        bench.wait_state(next_id, JobState.SUCCEEDED)

    assert arrives(cancelled)
    assert job.history[-1].reason == failure.TIMEOUT


def test_an_async_job_that_refuses_to_stop_has_timed_out_all_the_same(bench: Bench):
    gate = threading.Event()

    async def stubborn() -> str:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return "too late"

    bench.declare(stubborn, timeout=TIMEOUT)
    job_id = bench.enqueue(max_attempts=1)

    with bench.node():
        job = bench.wait_state(job_id, JobState.FAILED)
        gate.set()

    assert job.history[-1].reason == failure.TIMEOUT
    assert bench.job(job_id).result is None


def test_the_timeout_of_the_job_wins_over_that_of_its_handler(bench: Bench):
    def slow(ctx: JobContext) -> None:
        ctx.wait_cancelled(15)

    bench.declare(slow, timeout=3600)
    job_id = bench.enqueue(max_attempts=1, timeout_seconds=TIMEOUT)

    with bench.node():
        job = bench.wait_state(job_id, JobState.FAILED)

    assert job.history[-1].reason == failure.TIMEOUT


@pytest.mark.parametrize("stored", [0.0, -1.0, float("nan"), float("inf")])
def test_a_stored_timeout_that_is_none_never_disables_that_of_the_handler(
    bench: Bench, stored: float
):
    def slow(ctx: JobContext) -> None:
        ctx.wait_cancelled(15)

    bench.declare(slow, timeout=TIMEOUT)
    job_id = bench.enqueue(max_attempts=1, timeout_seconds=stored)

    with bench.node():
        job = bench.wait_state(job_id, JobState.FAILED)

    assert job.history[-1].reason == failure.TIMEOUT


def test_a_timed_out_job_is_retried_while_its_first_thread_still_runs(bench: Bench):
    gate = threading.Event()

    def handler(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            assert arrives(gate)
            return "first"
        return "second"

    bench.declare(handler, timeout=TIMEOUT, backoff=AT_ONCE)
    job_id = bench.enqueue()
    node = bench.node(workers=2)
    node.start()
    job = bench.wait_state(job_id, JobState.SUCCEEDED)

    gate.set()
    node.stop()

    assert job.result == '"second"'
    assert bench.job(job_id).result == '"second"'


def test_a_job_that_ends_in_time_is_left_alone_by_its_deadline(bench: Bench):
    bench.declare(lambda: "done", timeout=TIMEOUT)
    bench.declare(lambda: None, "other", timeout=3600)
    job_ids = [bench.enqueue() for _ in range(20)]

    with bench.node():
        for job_id in job_ids:
            bench.wait_state(job_id, JobState.SUCCEEDED)

    assert all(bench.job(job_id).attempt == 1 for job_id in job_ids)


def take_over(bench: Bench, job_id: JobId) -> None:
    """End the running attempt as another node's reclaim would."""

    def decide(orphan):
        return AttemptOutcome(
            orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.ORPHAN, "taken over"
        )

    ended = bench.store.inner.jobs.reclaim(decide, silent_since=AFTER_ALL, limit=10)
    assert [orphan.id for orphan, _ in ended] == [job_id]


def test_a_finish_after_the_job_was_taken_over_is_lost_and_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    started, gate = threading.Event(), threading.Event()

    def handler() -> str:
        started.set()
        assert arrives(gate)
        return "mine"

    bench.declare(handler)
    job_id = bench.enqueue()
    with caplog.at_level(logging.WARNING), bench.node():
        assert arrives(started)
        take_over(bench, job_id)
        gate.set()
        eventually(lambda: "is lost" in caplog.text, "the verdict")

    assert bench.state(job_id) is JobState.FAILED
    assert bench.job(job_id).result is None
    assert caplog.text.count("is lost") == 1


def test_a_heartbeat_that_finds_a_job_lost_tells_its_handler_to_stop(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    started, reasons = threading.Event(), []

    def handler(ctx: JobContext) -> None:
        started.set()
        ctx.wait_cancelled(15)
        reasons.append(ctx.cancel_reason)
        ctx.check_in()

    bench.declare(handler)
    job_id = bench.enqueue()
    with caplog.at_level(logging.WARNING), bench.node(heartbeat=0.02, heartbeat_timeout=60):
        assert arrives(started)
        take_over(bench, job_id)
        eventually(lambda: reasons, "the cancellation")

    assert reasons == ["lost"]
    assert bench.state(job_id) is JobState.FAILED
    assert caplog.text.count("is lost") == 1
