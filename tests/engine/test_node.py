"""Options, start and stop of a node, and what a process around it does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta

import pytest

from tests.engine.bench import Bench, arrives, engine_threads, eventually
from threadmill_sa.engine.processing.node import NodeOptions
from threadmill_sa.errors import InvalidNameError, InvalidValueError
from threadmill_sa.model.state import JobState

PROCESS_SECONDS = 30


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 1001},
        {"workers": 2.0},
        {"wakes": "no"},
        {"tick": 0},
        {"poll": -1},
        {"heartbeat": float("nan")},
        {"grace": -0.1},
        {"heartbeat": 20.1, "heartbeat_timeout": 60},
        {"queues": []},
        {"queues": "mail"},
        {"queues": 5},
    ],
)
def test_options_out_of_bounds_are_refused(options):
    with pytest.raises(InvalidValueError):
        NodeOptions(**options)


def test_a_queue_name_with_a_control_character_is_refused():
    with pytest.raises(InvalidNameError):
        NodeOptions(queues=["a\n"])


def test_options_take_timedeltas_and_name_each_queue_once():
    options = NodeOptions(grace=timedelta(minutes=1), queues=["b", "a", "b"])  # type: ignore[arg-type]

    assert (options.grace, options.queues) == (60.0, ("b", "a"))


def test_the_defaults_are_the_documented_ones():
    options = NodeOptions()

    assert (options.workers, options.queues, options.tick, options.poll) == (10, None, 1, 0.5)
    assert (options.heartbeat, options.heartbeat_timeout, options.grace) == (15, 60, 30)
    assert options.wakes is True


def test_a_node_is_registered_while_it_runs_and_gone_afterwards(any_bench: Bench):
    node = any_bench.node(workers=3, queues=["a"])
    with node:
        (view,) = any_bench.store.nodes.list()
        assert node.running

    assert (view.id, view.pid, view.queues, view.workers) == (node.id, os.getpid(), ("a",), 3)
    assert any_bench.store.nodes.list() == []
    assert not node.running


def test_a_stop_before_the_start_and_a_second_one_are_nothing(bench: Bench):
    node = bench.node()
    node.stop()
    node.start()
    node.start()
    assert len(bench.store.nodes.list()) == 1

    node.stop()
    node.stop()

    assert not node.running


def test_a_start_after_a_stop_works_under_another_id(bench: Bench):
    bench.declare(lambda: None)
    node = bench.node()
    node.start()
    first = node.id
    node.stop()

    node.start()

    bench.wait_state(bench.enqueue(), JobState.SUCCEEDED)
    assert node.id != first


def test_starting_and_stopping_twenty_times_leaks_no_thread(bench: Bench):
    async def on_loop() -> None: ...

    bench.declare(on_loop, "async")
    bench.declare(lambda: None)
    node = bench.node()

    for _ in range(20):
        job_ids = [bench.enqueue(), bench.enqueue("async")]
        with node:
            for job_id in job_ids:
                bench.wait_state(job_id, JobState.SUCCEEDED)

    assert engine_threads() == []


def test_what_before_start_raises_is_raised_and_nothing_has_started(bench: Bench):
    def refuse() -> None:
        raise ValueError("not ready")

    node = bench.node(before_start=refuse)

    with pytest.raises(ValueError, match="not ready"):
        node.start()

    assert not node.running
    assert engine_threads() == []
    assert bench.store.nodes.list() == []


def test_the_banner_tells_store_identity_sizes_and_cadences(bench: Bench):
    bench.declare(lambda: None, "relay")
    node = bench.node(queues=["a", "b"], workers=2)
    with node:
        banner = node.banner()

    assert banner["store"] == bench.store.describe()
    assert banner["node"] == str(node.id)
    assert (banner["queues"], banner["handlers"], banner["workers"]) == ("a, b", "relay", "2")
    assert banner["heartbeat"] == "15 s, timeout 60 s"


def test_a_full_queue_does_not_starve_another(bench: Bench):
    order: list[str] = []
    gate = threading.Event()

    def handler(queue: str) -> None:
        assert arrives(gate)
        order.append(queue)

    bench.declare(handler)
    full = [bench.enqueue(payload="full", queue="full") for _ in range(20)]
    other = bench.enqueue(payload="other", queue="other")

    with bench.node(workers=1, queues=["full", "other"]):
        gate.set()
        for job_id in [*full, other]:
            bench.wait_state(job_id, JobState.SUCCEEDED)

    assert order.index("other") <= 2


def test_many_more_jobs_than_slots_run_without_waiting_for_polls(bench: Bench):
    bench.declare(lambda: None)
    job_ids = [bench.enqueue() for _ in range(200)]

    with bench.node(workers=2, poll=5.0):
        for job_id in job_ids:
            bench.wait_state(job_id, JobState.SUCCEEDED)

    assert bench.store.calls("jobs.finish") <= 200


def test_a_forked_child_sees_a_stopped_node_and_may_start_its_own(bench: Bench):
    bench.declare(lambda: None)
    node = bench.node()
    with node:
        parent = node.id
        read, write = os.pipe()
        child = fork_quietly()
        if child == 0:  # pragma: no cover  Another process.
            answer = b"x"
            try:
                stopped = not node.running
                node.stop()
                node.wake()
                answer = b"ok" if stopped and node.id == parent else b"no"
            finally:
                os.write(write, answer)
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read, "rb") as answers:
            assert answers.read() == b"ok"
        assert node.running
        bench.wait_state(bench.enqueue(), JobState.SUCCEEDED)


def fork_quietly() -> int:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking with threads
        return os.fork()


PROGRAM = """
import sys, threading
from datetime import datetime
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.clock import SystemClock
from threadmill_sa.engine.processing.handlers import HandlerRegistry, declare_handler
from threadmill_sa.engine.processing.node import NodeOptions, ProcessingNode
from threadmill_sa.model.job import NewJob
from threadmill_sa.stores.memory.store import MemoryStore

store, registry, clock, ids = MemoryStore(), HandlerRegistry(), SystemClock(), Uuid7Source()
started = threading.Event()

def handler():
    started.set()
    {body}

registry.add(declare_handler(handler, name="h"))
store.jobs.insert([NewJob(id=ids(clock.now()), handler="h")])
node = ProcessingNode(
    store, registry, NodeOptions(grace={grace}, poll=0.01), clock=clock, ids=ids
)
node.start()
assert started.wait(10)
import atexit

def report():
    node.stop()
    (job,) = store.jobs.list()
    print(job.state)

if {report}:
    atexit.register(report)
"""


def run_program(body: str, *, grace: float, report: bool) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM).format(body=body, grace=grace, report=report)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("report", [False, True])
@pytest.mark.parametrize(
    ("body", "state"),
    [("threading.Event().wait(0.3)", "SUCCEEDED"), ("threading.Event().wait()", "ENQUEUED")],
)
def test_a_program_that_falls_off_its_end_drains_and_exits_without_a_traceback(
    body: str, state: str, report: bool
):
    done = run_program(body, grace=1.0, report=report)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == (state if report else "")


def test_a_handler_that_exits_ends_its_attempt_and_not_the_program():
    done = run_program("sys.exit(3)", grace=5.0, report=False)

    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_stopped_node_does_nothing_on_a_wake(bench: Bench):
    node = bench.node()
    with node:
        eventually(lambda: bench.store.calls("recurring.nominate") > 0, "the first tick")
    ticks = bench.store.calls("recurring.nominate")

    node.wake()

    assert bench.store.calls("recurring.nominate") == ticks
