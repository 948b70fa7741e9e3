"""Stopping: no new claims, short jobs end, the rest is given back unspent."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.engine.bench import Bench, arrives, engine_threads, eventually
from threadmill_sa.clock import SystemClock
from threadmill_sa.engine.processing.attempts import Attempt, AttemptBook
from threadmill_sa.engine.processing.completer import Completer
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.engine.processing.runner import released
from threadmill_sa.model import failure
from threadmill_sa.model.state import JobState
from threadmill_sa.testing.suite.tools import new_node


def stop_in_thread(node, **options) -> threading.Thread:
    thread = threading.Thread(target=lambda: node.stop(**options), daemon=True)
    thread.start()
    return thread


def test_a_stop_lets_running_jobs_end_and_claims_no_more(any_bench: Bench):
    bench = any_bench
    started, gate = threading.Event(), threading.Event()

    def handler() -> str:
        started.set()
        assert arrives(gate)
        return "done"

    bench.declare(handler)
    running = bench.enqueue()
    node = bench.node(workers=1)
    node.start()
    assert arrives(started)
    waiting = bench.enqueue()

    stopping = stop_in_thread(node)
    eventually(lambda: not node.running, "the stop to begin")
    gate.set()
    stopping.join(15)

    assert bench.job(running).result == '"done"'
    assert bench.state(waiting) is JobState.ENQUEUED
    assert bench.store.nodes.list() == []


def test_what_still_runs_after_the_grace_is_given_back_with_its_attempt(any_bench: Bench):
    bench = any_bench
    started, gate, reasons = threading.Event(), threading.Event(), []

    def handler(ctx: JobContext) -> str:
        started.set()
        ctx.wait_cancelled(15)
        reasons.append(ctx.cancel_reason)
        assert arrives(gate)
        return "too late"

    bench.declare(handler)
    job_id = bench.enqueue()
    node = bench.node()
    node.start()
    assert arrives(started)

    node.stop(grace=0.05)
    job = bench.job(job_id)
    gate.set()

    assert (JobState.ENQUEUED, 0) == (job.state, job.attempt)
    assert failure.SHUTDOWN in bench.reasons(job_id)
    assert reasons == ["shutdown"]
    eventually(lambda: not engine_threads(), "the late thread to end")
    assert bench.job(job_id).result is None


def test_an_async_job_after_the_grace_is_cancelled_and_given_back(bench: Bench):
    started, cleaned = threading.Event(), threading.Event()

    async def handler() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    bench.declare(handler)
    job_id = bench.enqueue()
    node = bench.node()
    node.start()
    assert arrives(started)

    node.stop(grace=0)

    assert arrives(cleaned)
    assert (bench.state(job_id), bench.job(job_id).attempt) == (JobState.ENQUEUED, 0)
    assert engine_threads() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_an_attempt_that_is_given_back_is_not_told_as_failed(
    bench: Bench, is_async: bool, caplog: pytest.LogCaptureFixture
):
    started = threading.Event()

    def obey(ctx: JobContext) -> None:
        started.set()
        ctx.wait_cancelled(15)
        ctx.check_in()

    async def obey_async() -> None:
        started.set()
        await asyncio.sleep(15)

    bench.declare(obey_async if is_async else obey)
    job_id = bench.enqueue()
    node = bench.node()
    node.start()
    assert arrives(started)

    node.stop(grace=0)

    assert bench.state(job_id) is JobState.ENQUEUED
    told = [record.getMessage() for record in caplog.records]
    assert [each for each in told if "late result" in each and "shutdown" in each]
    assert not [each for each in told if "failed" in each]


def test_a_claim_in_flight_during_the_stop_gives_its_jobs_back(bench: Bench):
    ran = threading.Event()
    bench.declare(ran.set)
    gate = bench.store.hold("jobs.claim")
    job_id = bench.enqueue()
    node = bench.node()
    node.start()
    assert arrives(gate.reached)

    stopping = stop_in_thread(node)
    eventually(lambda: not node.running, "the stop to begin")
    gate.open()
    stopping.join(15)

    assert not ran.is_set()
    assert (bench.state(job_id), bench.job(job_id).attempt) == (JobState.ENQUEUED, 0)


def test_heartbeats_go_on_during_the_drain(bench: Bench):
    started, gate = threading.Event(), threading.Event()

    def handler() -> None:
        started.set()
        assert arrives(gate)

    bench.declare(handler)
    job_id = bench.enqueue()
    node = bench.node(heartbeat=0.02, heartbeat_timeout=60)
    node.start()
    assert arrives(started)
    stopping = stop_in_thread(node)
    eventually(lambda: not node.running, "the stop to begin")
    first = bench.job(job_id).heartbeat_at
    assert first is not None

    eventually(lambda: (bench.job(job_id).heartbeat_at or first) > first, "a beat in the drain")

    gate.set()
    stopping.join(15)
    assert bench.state(job_id) is JobState.SUCCEEDED


def test_a_second_stop_shortens_the_grace_of_the_first(bench: Bench):
    started, gate = threading.Event(), threading.Event()

    def handler() -> None:
        started.set()
        assert arrives(gate)

    bench.declare(handler)
    job_id = bench.enqueue()
    node = bench.node()
    node.start()
    assert arrives(started)
    first = stop_in_thread(node, grace=3600)
    eventually(lambda: not node.running, "the first stop to begin")

    node.stop(grace=0)
    first.join(15)
    gate.set()

    assert not first.is_alive()
    assert bench.state(job_id) is JobState.ENQUEUED


def test_a_stop_ends_in_time_while_the_store_is_out(bench: Bench, monkeypatch):
    monkeypatch.setattr("threadmill_sa.model.limits.COMPLETE_STOP_SECONDS", 0.2)
    started = threading.Event()

    def handler(ctx: JobContext) -> None:
        started.set()
        ctx.wait_cancelled(15)

    bench.declare(handler)
    bench.enqueue()
    node = bench.node()
    node.start()
    assert arrives(started)
    for operation in ("jobs.finish", "jobs.claim", "nodes.beat", "nodes.remove"):
        bench.store.fail(operation)
    monotonic = SystemClock().monotonic
    began = monotonic()

    node.stop(grace=0.1)

    assert monotonic() - began < 5
    assert not node.running


def test_the_zombie_of_a_timeout_does_not_hold_up_the_stop(bench: Bench):
    gate = threading.Event()

    def handler() -> None:
        assert arrives(gate)

    bench.declare(handler, timeout=0.02)
    job_id = bench.enqueue(max_attempts=1)
    node = bench.node()
    node.start()
    bench.wait_state(job_id, JobState.FAILED)

    node.stop(grace=3600)
    gate.set()

    assert bench.state(job_id) is JobState.FAILED


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop_from_inside_a_handler_ends_after_the_grace(bench: Bench, is_async: bool):
    node = bench.node(grace=0.1)
    ended = threading.Event()

    def stop() -> None:
        node.stop()
        ended.set()

    async def async_stop() -> None:
        stop()

    bench.declare(async_stop if is_async else stop)
    job_id = bench.enqueue()
    node.start()

    assert arrives(ended)
    assert bench.state(job_id) is JobState.ENQUEUED


def test_what_is_given_back_while_the_completer_finds_nothing_to_do_is_recorded(bench: Bench):
    """Between its look and its end the last outcome is accepted, and the stop asked for."""
    node_id = new_node()
    bench.declare(lambda: None)
    job_id = bench.enqueue()
    [claimed] = bench.store.jobs.claim(node_id, queues=None, handlers=["h"], limit=1)
    book, attempt = AttemptBook(1), Attempt(claimed)
    book.add(attempt)

    class Unlucky(Completer):
        def _take(self):
            batch = super()._take()
            if not attempt.settled:
                self.accept(attempt, released(claimed))
                self.ask_to_stop()
            return batch

    completer = Unlucky(
        "completer",
        bench.store.jobs,
        node_id,
        book,
        instant=lambda: None,
        monotonic=SystemClock().monotonic,
        on_recorded=lambda _job, _outcome: None,
    )
    completer.start()

    assert completer.drain(15) == 0
    assert (bench.state(job_id), bench.job(job_id).attempt) == (JobState.ENQUEUED, 0)
