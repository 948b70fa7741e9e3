"""Jobs run, succeed, fail, retry and are quarantined: the core, on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.engine.bench import AT_ONCE, Bench, arrives, eventually
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.model import failure
from threadmill_sa.model.retry import Backoff
from threadmill_sa.model.state import JobState


def object_without_json() -> object:
    return object()


@dataclass
class Order:
    items: list[int]


def test_a_job_runs_with_its_payload_and_its_result_is_recorded(any_bench: Bench):
    any_bench.declare(lambda: None, "other")

    def total(order: Order, ctx: JobContext) -> dict[str, int]:
        return {"sum": sum(order.items), "attempt": ctx.attempt}

    any_bench.declare(total)
    job_id = any_bench.enqueue(payload={"items": [1, 2, 3]})

    with any_bench.node():
        job = any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.result == '{"sum":6,"attempt":1}'


def test_an_async_job_runs_on_the_one_loop_and_its_result_is_recorded(any_bench: Bench):
    loops = []

    async def handler(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return number * 2

    any_bench.declare(handler)
    job_ids = [any_bench.enqueue(payload=number) for number in range(3)]

    with any_bench.node():
        jobs = [any_bench.wait_state(job_id, JobState.SUCCEEDED) for job_id in job_ids]

    assert [job.result for job in jobs] == ["0", "2", "4"]
    assert len(set(loops)) == 1


def test_a_failing_job_is_retried_and_what_one_attempt_changes_the_next_does_not_see(
    any_bench: Bench,
):
    seen = []

    def handler(order: Order, ctx: JobContext) -> None:
        order.items.append(ctx.attempt)
        seen.append(list(order.items))
        if ctx.attempt < 3:
            raise ValueError("not yet")

    any_bench.declare(handler, backoff=AT_ONCE)
    job_id = any_bench.enqueue(payload={"items": []})

    with any_bench.node(tick=30.0):  # the follow-up does not wait for a tick
        job = any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert seen == [[1], [2], [3]]
    assert job.attempt == 3
    assert any_bench.reasons(job_id).count(failure.EXCEPTION) == 2


def test_a_job_out_of_attempts_has_failed_with_type_message_and_frames(any_bench: Bench):
    def handler() -> None:
        raise ValueError("the reason\x00")

    any_bench.declare(handler, backoff=AT_ONCE)
    job_id = any_bench.enqueue(max_attempts=2)

    with any_bench.node():
        job = any_bench.wait_state(job_id, JobState.FAILED)

    last = job.history[-1]
    assert (JobState.FAILED, failure.EXCEPTION, 2) == (last.state, last.reason, last.attempt)
    assert last.message is not None
    assert last.message.startswith("ValueError: the reason\\x00\n")
    assert "test_running.py" in last.message


def test_a_payload_that_does_not_fit_is_quarantined_with_its_path_and_never_retried(
    any_bench: Bench,
):
    ran = threading.Event()

    def handler(order: Order) -> None:
        ran.set()

    any_bench.declare(handler, backoff=AT_ONCE)
    job_id = any_bench.enqueue(payload={"items": [1, "two"]})

    with any_bench.node():
        job = any_bench.wait_state(job_id, JobState.QUARANTINED)

    assert not ran.is_set()
    assert job.history[-1].reason == failure.QUARANTINE
    assert job.history[-1].message is not None
    assert "payload.items[1]" in job.history[-1].message


def test_a_result_that_has_no_json_form_is_dropped_and_the_job_has_succeeded(any_bench: Bench):
    any_bench.declare(object_without_json)
    job_id = any_bench.enqueue()

    with any_bench.node():
        job = any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.result is None
    assert any("dropped" in note for note in job.metadata.values())


def test_a_job_of_an_unknown_handler_waits_and_holds_up_nobody(any_bench: Bench):
    any_bench.declare(lambda: None)
    unknown = any_bench.enqueue("of-another-release", priority=10)
    known = any_bench.enqueue()

    with any_bench.node():
        any_bench.wait_state(known, JobState.SUCCEEDED)

    assert any_bench.state(unknown) is JobState.ENQUEUED
    assert any_bench.job(unknown).attempt == 0


def test_a_node_takes_only_from_its_queues(any_bench: Bench):
    any_bench.declare(lambda: None)
    other = any_bench.enqueue(queue="other")
    own = [any_bench.enqueue(queue=queue) for queue in ("a", "b")]

    with any_bench.node(queues=["a", "b"]):
        for job_id in own:
            any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert any_bench.state(other) is JobState.ENQUEUED


def test_two_nodes_run_each_job_once(any_bench: Bench):
    lock, runs = threading.Lock(), []

    def handler(number: int) -> None:
        with lock:
            runs.append(number)

    any_bench.declare(handler)
    job_ids = [any_bench.enqueue(payload=number) for number in range(60)]

    with any_bench.node(workers=3), any_bench.node(workers=3):
        for job_id in job_ids:
            any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert sorted(runs) == list(range(60))


def test_a_delayed_job_runs_when_its_time_has_come(any_bench: Bench):
    any_bench.declare(lambda: None)
    job_id = any_bench.enqueue(delay_seconds=0.05)
    late = any_bench.enqueue(delay_seconds=3600)

    with any_bench.node():
        any_bench.wait_state(job_id, JobState.SUCCEEDED)

    assert any_bench.state(late) is JobState.SCHEDULED


def test_a_nudge_during_a_run_gives_one_prompt_follow_up(any_bench: Bench):
    started, gate, runs = threading.Event(), threading.Event(), []

    def handler(ctx: JobContext) -> None:
        runs.append(ctx.cron_origin)
        started.set()
        assert arrives(gate)

    any_bench.declare(handler)
    any_bench.register("pump")
    any_bench.nudge("pump")
    node = any_bench.node(tick=30.0)  # a follow-up by the next tick would come too late
    node.start()
    assert arrives(started)
    for _ in range(5):
        any_bench.nudge("pump")
    node.wake()

    gate.set()

    eventually(lambda: len(runs) == 2, "the follow-up")
    node.stop()
    any_bench.run_until_idle()
    assert runs == ["nudge", "nudge"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_handler_raises_fails_the_attempt_and_the_worker_lives(
    bench: Bench, kind: type[BaseException], is_async: bool
):
    def sync_handler() -> None:
        raise kind

    async def async_handler() -> None:
        raise kind

    bench.declare(async_handler if is_async else sync_handler)
    bench.declare(lambda: None, "sync")
    failing = bench.enqueue(max_attempts=1)

    with bench.node(workers=1):
        job = bench.wait_state(failing, JobState.FAILED)
        after = bench.enqueue("sync")
        bench.wait_state(after, JobState.SUCCEEDED)

    assert job.history[-1].reason == failure.EXCEPTION
    assert kind.__name__ in (job.history[-1].message or "")


class _HostileError(Exception):
    """Its text ends the process, where somebody lets it."""

    def __str__(self) -> str:
        raise SystemExit


class _HostileResult(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise SystemExit


@dataclass
class _HostilePayload:
    number: int

    def __post_init__(self) -> None:
        raise SystemExit


@pytest.mark.parametrize("is_async", [False, True])
def test_code_of_a_users_value_that_raises_systemexit_costs_neither_outcome_nor_worker(
    bench: Bench, is_async: bool
):
    def declare(name: str, function: Callable[..., object]) -> None:
        async def twin() -> object:
            return function()

        bench.declare(twin if is_async else function, name)

    def fail() -> object:
        raise _HostileError

    async def take_async(payload: _HostilePayload) -> None: ...

    def take(payload: _HostilePayload) -> None: ...

    declare("text", fail)
    declare("result", lambda: _HostileResult([1]))
    declare("sound", lambda: 1)
    bench.declare(take_async if is_async else take, "payload")
    text = bench.enqueue("text", max_attempts=1)
    result = bench.enqueue("result")
    payload = bench.enqueue("payload", {"number": 1})

    with bench.node(workers=1):
        failed = bench.wait_state(text, JobState.FAILED)
        bench.wait_state(result, JobState.SUCCEEDED)
        bench.wait_state(payload, JobState.QUARANTINED)
        bench.wait_state(bench.enqueue("sound"), JobState.SUCCEEDED)

    assert "its __str__ raised SystemExit" in (failed.history[-1].message or "")


def test_a_task_that_a_handler_starts_can_neither_stop_nor_leave_the_common_loop(bench: Bench):
    started: list[object] = []

    async def leave() -> None:
        async def child() -> None:
            raise SystemExit

        started.append(asyncio.create_task(child()))
        await asyncio.sleep(0)

    async def stop() -> None:
        asyncio.get_running_loop().stop()

    async def wait() -> None:
        await gate.wait()

    gate = asyncio.Event()
    bench.declare(wait, "wait")
    bench.declare(leave, "leave")
    bench.declare(stop, "stop")

    async def open_gate() -> None:
        gate.set()

    bench.declare(open_gate, "open")
    waiting = bench.enqueue("wait")

    with bench.node(workers=4):
        bench.wait_state(waiting, JobState.PROCESSING)
        for name in ("leave", "stop", "open"):
            bench.wait_state(bench.enqueue(name), JobState.SUCCEEDED)
        bench.wait_state(waiting, JobState.SUCCEEDED)


def test_a_sync_handler_that_returns_a_coroutine_has_failed(bench: Bench):
    async def work() -> None: ...

    bench.declare(lambda: work())  # noqa: PLW0108  A sync function around it.
    job_id = bench.enqueue(max_attempts=1)

    with bench.node():
        job = bench.wait_state(job_id, JobState.FAILED)

    assert "async def" in (job.history[-1].message or "")


class _Odd(Backoff):
    """A policy of the user's own, which raises or returns what `answer` says."""

    answer: float | BaseException = 0.0

    def seconds(self, *_: object, **__: object) -> float:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class _Raising(_Odd):
    answer = RuntimeError("no policy")


class _Exiting(_Odd):
    answer = SystemExit("no policy")


class _Nan(_Odd):
    answer = float("nan")


class _Negative(_Odd):
    answer = -1.0


class _Infinite(_Odd):
    answer = float("inf")


@pytest.mark.parametrize("backoff", [_Raising(), _Exiting(), _Nan(), _Negative()])
def test_a_backoff_that_fails_fails_its_job_visibly_and_the_worker_lives(
    bench: Bench, backoff: Backoff
):
    def handler() -> None:
        raise ValueError("the cause")

    bench.declare(handler, backoff=backoff)
    job_id = bench.enqueue(max_attempts=5)

    with bench.node(workers=1):
        job = bench.wait_state(job_id, JobState.FAILED)

    message = job.history[-1].message or ""
    assert message.startswith("backoff failed")
    assert "the cause" in message


def test_an_endless_backoff_is_capped(bench: Bench):
    def handler() -> None:
        raise ValueError

    bench.declare(handler, backoff=_Infinite())
    job_id = bench.enqueue()

    with bench.node():
        job = bench.wait_state(job_id, JobState.SCHEDULED)

    assert job.scheduled_at is not None
    assert 364 < (job.scheduled_at - job.state_at).days < 366


def test_a_recurring_instance_never_backs_off_longer_than_a_minute(bench: Bench):
    def handler() -> None:
        raise ValueError

    bench.declare(handler, backoff=Backoff(initial=3600, jitter=0))
    job_id = bench.enqueue(cron_task_name="pump")

    with bench.node():
        job = bench.wait_state(job_id, JobState.SCHEDULED)

    assert job.scheduled_at is not None
    assert 59 <= (job.scheduled_at - job.state_at).total_seconds() <= 61


def test_a_stored_payload_for_a_handler_without_one_is_quarantined(bench: Bench):
    bench.declare(lambda: None)
    job_id = bench.enqueue(payload={"a": 1})

    with bench.node():
        job = bench.wait_state(job_id, JobState.QUARANTINED)

    assert "takes none" in (job.history[-1].message or "")
