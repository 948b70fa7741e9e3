"""A claim whose answer was lost: what it took is given back, and costs no attempt."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.engine.bench import Bench, arrives, eventually
from threadmill_sa.engine.processing.strays import give_back_strays
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.job import JobId, NodeId
from threadmill_sa.model.state import JobState


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadmill_sa.model.limits.OUTAGE_PAUSE_MIN_SECONDS", 0.002)


def test_a_claim_whose_answer_was_lost_costs_no_attempt(
    any_bench: Bench, caplog: pytest.LogCaptureFixture
):
    """The job's only attempt: a reclaim would end it as failed, though it has never run."""
    any_bench.declare(lambda: None)
    any_bench.store.fail("jobs.claim", times=1, after=True)
    job_id = any_bench.enqueue(max_attempts=1)

    with any_bench.node():
        job = any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.attempt == 1
    assert any_bench.reasons(job_id) == ["engine.shutdown", "engine.shutdown"]
    assert "1 jobs are given back: the answer to their claim was lost" in caplog.messages


def test_jobs_that_run_are_not_given_back(bench: Bench):
    started, over = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert arrives(over)

    bench.declare(hold, "hold")
    bench.declare(lambda: None)
    running = bench.enqueue("hold")
    with bench.node(workers=2):
        assert arrives(started)
        bench.store.fail("jobs.claim", times=3, after=True)
        bench.wait_state(bench.enqueue(), JobState.SUCCEEDED)
        assert bench.state(running) is JobState.PROCESSING
        over.set()
        bench.wait_state(running, JobState.SUCCEEDED)

    assert bench.job(running).attempt_token == 1


def test_nothing_is_looked_for_after_an_error_that_is_no_outage(bench: Bench):
    """What cannot be read would be claimed and given back for ever."""
    bench.declare(lambda: None)
    bench.store.fail("jobs.claim", ValueError("no such origin"), times=2)
    job_id = bench.enqueue()

    with bench.node():
        bench.wait_state(job_id, JobState.SUCCEEDED)

    assert bench.store.calls("jobs.list") == 0


def test_jobs_of_other_nodes_are_not_given_back(bench: Bench):
    bench.enqueue()
    ours, theirs = (NodeId(JobId(bench.ids(bench.clock.now()))) for _ in range(2))
    jobs = bench.store.jobs
    [held] = jobs.claim(theirs, queues=None, handlers=["h"], limit=1)

    assert give_back_strays(jobs, ours, ()) == 0
    assert give_back_strays(jobs, theirs, {held.id}) == 0
    assert bench.state(held.id) is JobState.PROCESSING
    assert give_back_strays(jobs, theirs, ()) == 1
    assert bench.job(held.id).attempt == 0


def test_run_until_idle_leaves_no_job_behind_when_its_claim_was_not_heard_of(bench: Bench):
    bench.declare(lambda: None)
    job_id = bench.enqueue(max_attempts=1)
    bench.store.fail("jobs.claim", times=1, after=True)

    with pytest.raises(StoreUnavailableError):
        bench.run_until_idle()

    assert bench.state(job_id) is JobState.ENQUEUED
    assert bench.run_until_idle() == 1
    assert bench.state(job_id) is JobState.SUCCEEDED


def test_an_interrupt_is_what_the_caller_sees_when_the_store_is_out_as_well(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    def interrupted() -> None:
        bench.store.fail("jobs.finish")
        raise KeyboardInterrupt

    bench.declare(interrupted)
    bench.enqueue()

    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        bench.run_until_idle()

    told = "jobs could not be given back, a node's reclaim will do it"
    eventually(lambda: any(told in message for message in caplog.messages), "the warning")
