"""The store fails: before the effect, after it, for one outcome only, for a while, for good."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.engine.bench import AT_ONCE, Bench, arrives, engine_threads, eventually
from threadmill_sa.errors import StoreInvariantError, StoreUnavailableError
from threadmill_sa.model.job import JobId
from threadmill_sa.model.state import JobState


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadmill_sa.model.limits.OUTAGE_PAUSE_MIN_SECONDS", 0.002)


def told(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_an_outcome_survives_an_outage_of_the_store(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.declare(lambda: "kept")
    bench.store.fail("jobs.finish")
    job_id = bench.enqueue()

    with caplog.at_level(logging.INFO), bench.node():
        eventually(lambda: bench.store.calls("jobs.finish") > 3, "several tries")
        assert bench.state(job_id) is JobState.PROCESSING
        bench.store.mend()
        job = bench.wait_state(job_id, JobState.SUCCEEDED)
        eventually(lambda: told(caplog, "recording of outcomes works again"), "the good news")

    assert job.result == '"kept"'
    assert told(caplog, "recording of outcomes failed") == 1


def test_nothing_is_claimed_while_outcomes_cannot_be_recorded(bench: Bench):
    bench.declare(lambda: None)
    bench.store.fail("jobs.finish")
    bench.enqueue()
    node = bench.node(workers=1)
    node.start()
    eventually(lambda: bench.store.calls("jobs.finish") > 1, "the outage")
    later = bench.enqueue()
    node.wake()
    eventually(lambda: bench.store.calls("jobs.finish") > 4, "more of the outage")

    assert bench.state(later) is JobState.ENQUEUED
    bench.store.mend()

    bench.wait_state(later, JobState.SUCCEEDED)


def test_a_finish_whose_answer_was_lost_is_not_recorded_twice_nor_told_as_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    runs = []
    bench.declare(lambda: runs.append(1))
    bench.store.fail("jobs.finish", times=1, after=True)
    job_id = bench.enqueue()

    with caplog.at_level(logging.WARNING), bench.node():
        bench.wait_state(job_id, JobState.SUCCEEDED)
        eventually(
            lambda: told(caplog, "a try whose answer was lost recorded it"), "the second try"
        )

    assert bench.store.calls("jobs.finish") == 2
    assert told(caplog, "is lost") == 0
    assert runs == [1]


def test_a_claim_outage_is_told_once_and_ends_by_itself(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.declare(lambda: None)
    bench.store.fail("jobs.claim", times=4)
    job_id = bench.enqueue()

    with caplog.at_level(logging.INFO), bench.node():
        bench.wait_state(job_id, JobState.SUCCEEDED)

    assert told(caplog, "claim failed, trying again") == 1
    assert told(caplog, "claim works again after 4 failures") == 1


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), RuntimeError("odd")])
def test_the_claim_loop_outlives_any_error(bench: Bench, error: Exception):
    bench.declare(lambda: None)
    bench.store.fail("jobs.claim", error, times=3)
    job_id = bench.enqueue()

    with bench.node():
        bench.wait_state(job_id, JobState.SUCCEEDED)


class PoisonedStore:
    """Refuses every batch that holds an outcome of one job, as a value no column takes would."""

    def __init__(self, bench: Bench) -> None:
        self.jobs = bench.store.inner.jobs
        self.poisoned: object = None
        self.plain_failure_too = False

    def finish(self, node_id, outcomes, *, now=None):
        for outcome in outcomes:
            plain = (outcome.message or "").startswith("outcome could not be recorded")
            if outcome.job_id == self.poisoned and (self.plain_failure_too or not plain):
                raise StoreInvariantError("value out of range")
        return self.jobs.finish(node_id, outcomes, now=now)

    def __getattr__(self, name):
        return getattr(self.jobs, name)


def poison(bench: Bench, *, plain_failure_too: bool = False) -> PoisonedStore:
    jobs = PoisonedStore(bench)
    jobs.plain_failure_too = plain_failure_too
    bench.store._jobs = jobs
    return jobs


def test_an_outcome_that_the_store_refuses_holds_up_no_other_and_becomes_a_plain_failure(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    jobs = poison(bench)
    gate = threading.Event()

    def handler() -> str:
        assert arrives(gate)
        return "fine"

    bench.declare(handler)
    job_ids = [bench.enqueue() for _ in range(5)]
    jobs.poisoned = job_ids[2]
    with bench.node(workers=5):
        gate.set()
        for job_id in set(job_ids) - {job_ids[2]}:
            bench.wait_state(job_id, JobState.SUCCEEDED)
        job = bench.wait_state(job_ids[2], JobState.FAILED)

    assert job.history[-1].message == "outcome could not be recorded: StoreInvariantError"
    assert told(caplog, "is refused, a failure is recorded instead") == 1


def test_a_job_without_any_recordable_outcome_is_left_to_the_reclaim(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    jobs = poison(bench, plain_failure_too=True)
    bench.declare(lambda: None)
    job_id = bench.enqueue()
    jobs.poisoned = job_id
    node = bench.node(heartbeat=0.01, heartbeat_timeout=60)
    with node:
        eventually(lambda: told(caplog, "left to the reclaim"), "the end of the tries")
        last = bench.job(job_id).heartbeat_at
        beats = bench.store.calls("nodes.beat")
        eventually(lambda: bench.store.calls("nodes.beat") > beats + 2, "more beats")

        assert bench.job(job_id).heartbeat_at == last


def test_a_node_that_cannot_beat_claims_nothing_until_it_can(bench: Bench):
    bench.declare(lambda: None)
    node = bench.node(heartbeat=0.02, heartbeat_timeout=0.2, poll=0.01)
    with node:
        bench.store.fail("nodes.beat")
        beats = bench.store.calls("nodes.beat")
        eventually(lambda: bench.store.calls("nodes.beat") > beats + 1, "failing beats")
        eventually(lambda: not claims_grow(bench), "the claims to end")
        job_id = bench.enqueue()
        assert bench.state(job_id) is JobState.ENQUEUED
        bench.store.mend()

        bench.wait_state(job_id, JobState.SUCCEEDED)


def test_an_outage_longer_than_the_timeout_takes_no_job_from_a_living_node(bench: Bench):
    gate = threading.Event()
    bench.declare(lambda: arrives(gate), backoff=AT_ONCE)
    job_id = bench.enqueue()
    timeout = 1.0
    nodes = [bench.node(heartbeat=0.25, heartbeat_timeout=timeout) for _ in range(2)]
    with nodes[0], nodes[1]:
        bench.wait_state(job_id, JobState.PROCESSING)
        bench.store.fail("nodes.beat")
        eventually(lambda: silence(bench, job_id) > timeout, "a silence beyond the timeout")
        passes = bench.store.calls("recurring.sweep_nudges")
        eventually(
            lambda: bench.store.calls("recurring.sweep_nudges") > passes + 4, "housekeeping"
        )
        bench.store.mend()
        eventually(lambda: silence(bench, job_id) < timeout, "a beat")
        gate.set()
        job = bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.attempt == 1


def silence(bench: Bench, job_id: JobId) -> float:
    last = bench.job(job_id).heartbeat_at
    return 0.0 if last is None else (bench.clock.now() - last).total_seconds()


def claims_grow(bench: Bench) -> bool:
    before = bench.store.calls("jobs.claim")
    threading.Event().wait(0.1)  # ten polls
    return bench.store.calls("jobs.claim") > before


def test_a_start_that_cannot_reach_the_store_leaves_nothing_behind(bench: Bench):
    bench.store.fail("nodes.beat", times=1)
    node = bench.node()

    with pytest.raises(StoreUnavailableError):
        node.start()

    assert not node.running
    assert engine_threads() == []
    bench.declare(lambda: None)
    job_id = bench.enqueue()
    node.start()
    bench.wait_state(job_id, JobState.SUCCEEDED)


def test_a_job_that_no_thread_can_take_is_released_and_runs_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    from threadmill_sa.engine.processing.workers import WorkerPool

    submit, refusals = WorkerPool.submit, [2]

    def refuse(self, attempt):
        if refusals[0]:
            refusals[0] -= 1
            raise RuntimeError("can't start new thread")
        submit(self, attempt)

    monkeypatch.setattr(WorkerPool, "submit", refuse)
    bench.declare(lambda: None)
    job_id = bench.enqueue()

    with bench.node():
        job = bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.attempt == 1
