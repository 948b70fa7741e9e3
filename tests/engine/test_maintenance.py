"""Ticks, wakes, promotion, reclaim and tidying, as every node does them."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

import pytest

from tests.engine.bench import AT_ONCE, Bench, arrives, eventually
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.model import failure
from threadmill_sa.model.job import NodeId
from threadmill_sa.model.node import NodeInfo
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import Every
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.testing.clock import ManualClock


def claim_as_dead_node(bench: Bench, **fields):
    """A job that a node holds which never beats again."""
    job_id = bench.enqueue(**fields)
    dead = NodeId(bench.ids(bench.clock.now()))
    claimed = bench.store.inner.jobs.claim(dead, queues=None, handlers=["h"], limit=1)
    assert [job.id for job in claimed] == [job_id]
    return job_id


def test_a_due_task_runs_by_its_schedule(any_bench: Bench):
    origins = []

    def handler(ctx: JobContext) -> None:
        origins.append((ctx.cron_origin, ctx.fire_time is not None))

    any_bench.declare(handler)
    any_bench.register("pump", trigger=Every(seconds=0.1))

    with any_bench.node():
        eventually(lambda: len(origins) >= 2, "two fires")

    assert set(origins) == {("schedule", True)}


def test_a_wake_makes_a_nudge_run_at_once(any_bench: Bench):
    ran = threading.Event()
    any_bench.declare(ran.set)
    any_bench.register("pump")
    node = any_bench.node(tick=3600.0, poll=3600.0)
    node.start()
    eventually(lambda: any_bench.store.calls("recurring.nominate") >= 1, "the first tick")
    any_bench.nudge("pump")

    node.wake()

    assert arrives(ran)


def test_wakes_during_a_tick_cause_exactly_one_more(bench: Bench):
    gate = bench.store.hold("recurring.nominate")
    node = bench.node(tick=3600.0)
    node.start()
    assert arrives(gate.reached)

    for _ in range(10):
        node.wake()
    gate.open()

    eventually(lambda: bench.store.calls("recurring.nominate") == 2, "the second tick")
    assert not threading.Event().wait(0.1)  # longer than any pause between two ticks
    assert bench.store.calls("recurring.nominate") == 2


def test_an_activity_that_fails_holds_up_no_other_and_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    for operation in ("recurring.nominate", "recurring.sweep_nudges", "jobs.fold_counts"):
        bench.store.fail(operation, RuntimeError("broken"))
    bench.declare(lambda: None)
    job_id = bench.enqueue(delay_seconds=0.01)
    orphan = claim_as_dead_node(bench)

    with caplog.at_level(logging.INFO), bench.node(heartbeat=0.05, heartbeat_timeout=0.2):
        bench.wait_state(job_id, JobState.SUCCEEDED)
        bench.wait_state(orphan, JobState.SUCCEEDED)
        calls = bench.store.calls("recurring.nominate")
        eventually(lambda: bench.store.calls("recurring.nominate") > calls + 2, "more ticks")
        bench.store.mend()
        eventually(lambda: "tick works again" in caplog.text, "the good news")

    assert caplog.text.count("tick failed, trying again") == 1
    assert bench.store.calls("nodes.remove_stale") > 0


def test_an_orphan_is_taken_back_and_the_recovery_counts_as_an_attempt(any_bench: Bench):
    runs = []
    any_bench.declare(lambda: runs.append(1))
    job_id = claim_as_dead_node(any_bench)

    with any_bench.node(heartbeat=0.05, heartbeat_timeout=0.3):
        job = any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert (runs, job.attempt) == ([1], 2)
    assert failure.ORPHAN in any_bench.reasons(job_id)


def test_a_job_that_kills_its_last_worker_has_failed_as_worker_lost(bench: Bench):
    bench.declare(lambda: None)
    job_id = claim_as_dead_node(bench, max_attempts=1)

    with bench.node(heartbeat=0.05, heartbeat_timeout=0.2):
        job = bench.wait_state(job_id, JobState.FAILED)

    assert job.history[-1].reason == failure.ORPHAN
    assert (job.history[-1].message or "").startswith("worker lost")


def test_a_long_job_of_a_node_that_beats_is_never_taken_back(bench: Bench):
    started, gate, runs = threading.Event(), threading.Event(), []

    def handler() -> None:
        runs.append(1)
        started.set()
        assert arrives(gate)

    bench.declare(handler, backoff=AT_ONCE)
    job_id = bench.enqueue()
    with (
        bench.node(heartbeat=0.05, heartbeat_timeout=0.3),
        bench.node(heartbeat=0.05, heartbeat_timeout=0.3),
    ):
        assert arrives(started)
        passes = bench.store.calls("jobs.reclaim")
        # Ten passes are more than twice the timeout.
        eventually(lambda: bench.store.calls("jobs.reclaim") > passes + 16, "many passes")
        gate.set()
        job = bench.wait_state(job_id, JobState.SUCCEEDED)

    assert (runs, job.attempt) == ([1], 1)


def test_jobs_for_other_nodes_are_announced_to_them(bench: Bench):
    class Channel:
        def __init__(self) -> None:
            self.notified = threading.Event()
            self.listeners: list[object] = []
            self.closed = 0

        def notify(self) -> None:
            self.notified.set()

        def notify_when_committed(self, slot: int) -> None: ...

        def listen(self, on_wake) -> None:
            self.listeners.append(on_wake)

        def close(self) -> None:
            self.closed += 1

    channel = Channel()
    type(bench.store).wakes, kept = property(lambda _: channel), type(bench.store).wakes  # type: ignore[assignment,method-assign]
    try:
        bench.register("pump", "of-another-node")
        bench.nudge("pump")
        with bench.node(), bench.node():
            assert arrives(channel.notified)
            assert (len(channel.listeners), channel.closed) == (1, 0)
            bench.nodes[0].stop()
            assert channel.closed == 0
            ticks = bench.store.calls("recurring.nominate")
            channel.listeners[0]()  # type: ignore[operator]
            eventually(lambda: bench.store.calls("recurring.nominate") > ticks, "the wake")
        assert channel.closed == 1
    finally:
        type(bench.store).wakes = kept  # type: ignore[method-assign]


def test_the_row_of_a_node_that_is_long_silent_is_removed(bench: Bench, monkeypatch):
    monkeypatch.setattr("threadmill_sa.model.limits.NODE_STALE_SECONDS", 0.01)
    stale = NodeInfo(NodeId(bench.ids(bench.clock.now())), "host", 1, None, 1)
    bench.store.inner.nodes.beat(stale, [])

    with bench.node(heartbeat=0.005, heartbeat_timeout=0.1):
        eventually(
            lambda: stale.id not in [node.id for node in bench.store.nodes.list()], "removal"
        )


def test_nudges_of_a_deleted_task_are_swept_and_told(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    answers = [3]
    monkeypatch.setattr(
        bench.store.inner.recurring,
        "sweep_nudges",
        lambda **_: answers.pop() if answers else 0,
    )

    with bench.node():
        eventually(lambda: "3 nudges dropped" in caplog.text, "the count")


def test_an_injected_clock_decides_what_is_due_while_the_threads_wait_in_real_time():
    clock = ManualClock(datetime(2025, 3, 1, 12, tzinfo=UTC))
    bench = Bench(MemoryStore(clock), clock)
    fires: list[datetime | None] = []

    def handler(ctx: JobContext) -> None:
        fires.append(ctx.fire_time)

    bench.declare(handler)
    bench.register("hourly", trigger=Every(hours=1))
    try:
        bench.node().start()
        ticks = bench.store.calls("recurring.nominate")
        eventually(lambda: bench.store.calls("recurring.nominate") > ticks + 2, "idle ticks")
        assert fires == []

        clock.advance(3600)

        eventually(lambda: fires, "the fire")
        assert fires == [datetime(2025, 3, 1, 13, tzinfo=UTC)]
    finally:
        bench.close()
