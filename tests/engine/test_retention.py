"""Jobs that are deleted, and finished ones that go, beside nodes at work."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.bench import Bench, arrives, eventually
from threadmill_sa import Every, Retention, Threadmill
from threadmill_sa.errors import JobRunningError
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import JobId
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.clock import ManualClock
from threadmill_sa.testing.suite.tools import T0, new_id

SHORT = Retention(succeeded=60, failed=None)


def _old_and_fresh(bench: Bench) -> tuple[JobId, JobId, JobId]:
    """A job that succeeded long ago, one that failed then, and one that has just succeeded."""
    bench.declare(lambda: None, "fine")
    bench.declare(lambda: 1 / 0, "bad", max_attempts=1)
    old = bench.enqueue("fine")
    failed = bench.enqueue("bad", max_attempts=1)
    bench.run_until_idle(now=T0 - timedelta(days=1))
    fresh = bench.enqueue("fine")
    bench.run_until_idle()
    return old, failed, fresh


def test_a_node_removes_what_is_old_when_it_starts_and_keeps_the_rest(any_bench: Bench) -> None:
    old, failed, fresh = _old_and_fresh(any_bench)

    with any_bench.node(noise=lambda: 0.0, retention=SHORT):
        eventually(lambda: any_bench.store.inner.jobs.get(old) is None, "the old job is gone")
        eventually(lambda: any_bench.store.calls("jobs.remove_old") >= 3, "the end of the sweep")

    assert any_bench.state(failed) is JobState.FAILED
    assert any_bench.state(fresh) is JobState.SUCCEEDED
    assert any_bench.store.inner.jobs.counts()[JobState.SUCCEEDED] == 1


def test_nodes_that_sweep_at_once_remove_each_job_once(any_bench: Bench) -> None:
    any_bench.declare(lambda: None)
    for _ in range(230):
        any_bench.enqueue()
    any_bench.run_until_idle(now=T0 - timedelta(days=1))

    nodes = [any_bench.node(noise=lambda: 0.0, retention=SHORT) for _ in range(2)]
    for node in nodes:
        node.start()

    eventually(lambda: not any_bench.store.inner.jobs.list(), "all jobs are gone")
    assert any_bench.store.inner.jobs.counts()[JobState.SUCCEEDED] == 0


def test_a_sweep_that_fails_holds_up_nothing(bench: Bench) -> None:
    bench.store.fail("jobs.remove_old", RuntimeError("broken"))
    ran = threading.Event()
    bench.declare(ran.set)

    with bench.node(noise=lambda: 0.0):
        eventually(lambda: bench.store.calls("jobs.remove_old") >= 1, "the sweep")
        bench.enqueue()
        assert arrives(ran)


def test_a_wake_waits_for_one_batch_of_a_sweep_and_not_for_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RETENTION_BATCH", 1)
    bench.declare(lambda: None)
    bench.register("pump")
    for _ in range(20):
        bench.enqueue()
    bench.run_until_idle(now=T0 - timedelta(days=1))
    recurring = bench.store.inner.recurring
    nominate, removals = recurring.nominate, []

    def nominated(**asked: Any) -> list[str]:
        removals.append(bench.store.calls("jobs.remove_old"))
        return nominate(**asked)

    monkeypatch.setattr(recurring, "nominate", nominated)
    gate = bench.store.hold("jobs.remove_old")
    with bench.node(noise=lambda: 0.0, retention=SHORT, tick=3600.0, poll=3600.0) as node:
        assert arrives(gate.reached)
        removals.clear()
        node.wake()
        gate.open()
        eventually(lambda: removals, "the tick that was asked for")
        eventually(lambda: not bench.store.inner.jobs.list(), "the rest of the sweep")

    assert removals[0] == 1


def test_run_until_idle_removes_nothing(bench: Bench) -> None:
    old, _, _ = _old_and_fresh(bench)

    bench.run_until_idle()

    assert bench.store.calls("jobs.remove_old") == 0
    assert bench.state(old) is JobState.SUCCEEDED


def test_a_deleted_job_is_never_run(any_bench: Bench) -> None:
    runs: list[int] = []

    def handler(number: int) -> None:
        runs.append(number)

    any_bench.declare(handler)
    jobs = [any_bench.enqueue(payload=number) for number in range(4)]
    tm = _threadmill(any_bench)

    assert tm.delete_job(jobs[1]) is True
    assert tm.delete_job(jobs[1]) is False
    assert tm.delete_job(new_id()) is False
    with any_bench.node():
        for job in (jobs[0], jobs[2], jobs[3]):
            any_bench.wait_state(job, JobState.SUCCEEDED)

    assert sorted(runs) == [0, 2, 3]
    assert any_bench.state(jobs[1]) is JobState.DELETED
    assert any_bench.reasons(jobs[1]) == [failure.DELETE]


def test_a_running_job_is_refused_and_ends_as_if_nothing_had_been_asked(any_bench: Bench) -> None:
    started, gate = threading.Event(), threading.Event()

    def handler() -> int:
        started.set()
        assert arrives(gate)
        return 7

    any_bench.declare(handler)
    job_id = any_bench.enqueue()
    tm = _threadmill(any_bench)

    with any_bench.node():
        assert arrives(started)
        with pytest.raises(JobRunningError, match=str(job_id)) as caught:
            tm.delete_job(job_id)
        gate.set()
        job = any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert (caught.value.code, caught.value.job_id) == ("TM-E02", job_id)
    assert (job.result, job.history) == ("7", ())


def test_a_deleted_instance_lets_the_held_back_nudge_through(any_bench: Bench) -> None:
    ran = threading.Event()
    any_bench.declare(ran.set)
    any_bench.register("pump")
    tm = _threadmill(any_bench)
    any_bench.nudge("pump")
    [done] = tm.tick()
    any_bench.nudge("pump")

    tm.delete_job(done.jobs[0].id)
    with any_bench.node():
        assert arrives(ran)
        eventually(lambda: len(tm.list_jobs(state="succeeded")) == 1, "the follow-up")

    assert len(tm.list_jobs(task="pump")) == 2


def test_an_injected_clock_decides_what_is_old() -> None:
    clock = ManualClock(T0)
    tm = Threadmill.in_memory(clock=clock, retention=Retention(succeeded=3600))
    tm.job("h")(lambda: None)
    tm.recurring("pump", "h", Every(hours=1))
    job_id = tm.enqueue("h")
    tm.run_until_idle()
    node = tm.node(tick=0.01)
    node._noise = lambda: 0.0
    with node:
        eventually(lambda: node.running, "the node")
        assert tm.get_job(job_id) is not None
    clock.advance(3600)

    with node:
        eventually(lambda: tm.get_job(job_id) is None, "the removal")
    tm.close()


def _threadmill(bench: Bench) -> Threadmill:
    store: JobStore = bench.store.inner
    return Threadmill(store)
