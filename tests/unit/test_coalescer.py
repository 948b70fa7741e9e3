from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from threadmill_sa.engine.recurring.coalescer import NudgeCoalescer
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict

WAIT_SECONDS = 10.0


class GatedWrites:
    """Each write reports its start and then waits until it is let go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: list[tuple[str, int]] = []  # name, thread
        self.in_flight = 0
        self.most_in_flight = 0
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.answers: dict[int, BaseException | NudgeVerdict] = {}

    def __call__(self, name: str) -> NudgeOutcome:
        with self.lock:
            self.started.append((name, threading.get_ident()))
            number = len(self.started)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.begun.release()
        assert self.go.acquire(timeout=WAIT_SECONDS)
        with self.lock:
            self.in_flight -= 1
        answer = self.answers.get(number, NudgeVerdict.ACCEPTED)
        if isinstance(answer, BaseException):
            raise answer
        return NudgeOutcome(answer, revision=number)

    def await_start(self) -> None:
        assert self.begun.acquire(timeout=WAIT_SECONDS)


class Crowd:
    """Callers in threads, each known to be waiting before the test goes on."""

    def __init__(self, coalescer: NudgeCoalescer, pool: ThreadPoolExecutor) -> None:
        self.coalescer = coalescer
        self.pool = pool

    def arrive(self, count: int, name: str = "pump") -> list[Future[NudgeOutcome]]:
        before = self.waiting(name)
        futures = [self.pool.submit(self.coalescer.request, name) for _ in range(count)]
        self.until(lambda: self.waiting(name) >= before + count)
        return futures

    def start(self, name: str = "pump") -> Future[NudgeOutcome]:
        return self.pool.submit(self.coalescer.request, name)

    def waiting(self, name: str) -> int:
        with self.coalescer._lock:
            total, current = 0, self.coalescer._current.get(name)
            while current is not None:
                total += current.waiters
                current = current.following
            return total

    def until(self, reached: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.001)):
            if reached():
                return
            pause.wait(0.001)
        raise AssertionError("the callers did not arrive in time")


@pytest.fixture
def writes():
    return GatedWrites()


@pytest.fixture
def crowd(writes):
    with ThreadPoolExecutor(64) as pool:
        yield Crowd(NudgeCoalescer(writes), pool)


def result(future: Future[NudgeOutcome]) -> NudgeOutcome:
    return future.result(timeout=WAIT_SECONDS)


def test_a_burst_during_a_write_shares_one_following_write(writes, crowd):
    first = crowd.start()
    writes.await_start()
    others = crowd.arrive(40)
    writes.go.release()
    assert result(first).revision == 1
    writes.await_start()
    writes.go.release()
    assert {result(other).revision for other in others} == {2}
    assert len(writes.started) == 2
    assert writes.most_in_flight == 1


def test_the_covering_write_starts_after_the_caller_arrived(writes, crowd):
    first = crowd.start()
    writes.await_start()
    [second] = crowd.arrive(1)
    writes.go.release()
    writes.await_start()
    [third] = crowd.arrive(1)  # the second write has started: it must not cover this one
    writes.go.release()
    writes.await_start()
    writes.go.release()
    assert [result(f).revision for f in (first, second, third)] == [1, 2, 3]


def test_tasks_do_not_wait_for_each_other(writes, crowd):
    pump = crowd.start("pump")
    writes.await_start()
    other = crowd.start("other")
    writes.await_start()
    assert writes.most_in_flight == 2
    writes.go.release(2)
    assert {result(pump).revision, result(other).revision} == {1, 2}


def test_a_failure_reaches_every_caller_it_covers_and_the_next_one_starts_fresh(writes, crowd):
    writes.answers = {2: OSError("lost")}
    first = crowd.start()
    writes.await_start()
    covered = crowd.arrive(5)
    writes.go.release()
    assert result(first).verdict is NudgeVerdict.ACCEPTED
    writes.await_start()
    later = crowd.arrive(1)
    writes.go.release()
    for future in covered:
        with pytest.raises(OSError, match="lost"):
            result(future)
    writes.await_start()
    writes.go.release()
    assert result(later[0]).revision == 3


def test_a_failing_first_write_is_not_the_followers_failure(writes, crowd):
    writes.answers = {1: OSError("lost")}
    first = crowd.start()
    writes.await_start()
    [second] = crowd.arrive(1)
    writes.go.release()
    with pytest.raises(OSError, match="lost"):
        result(first)
    writes.await_start()
    writes.go.release()
    assert result(second).revision == 2


def test_a_verdict_reaches_every_covered_caller(writes, crowd):
    writes.answers = {2: NudgeVerdict.DISABLED}
    first = crowd.start()
    writes.await_start()
    covered = crowd.arrive(3)
    writes.go.release(2)
    assert result(first).verdict is NudgeVerdict.ACCEPTED
    assert {result(f).verdict for f in covered} == {NudgeVerdict.DISABLED}


def test_nobody_is_kept_to_drive_for_others_under_sustained_arrivals(writes, crowd):
    previous = [crowd.start()]
    writes.await_start()
    for _ in range(25):
        arrived = crowd.arrive(3)  # there is always somebody waiting
        writes.go.release()
        revisions = {result(future).revision for future in previous}  # return at once
        assert len(revisions) == 1
        writes.await_start()  # the next write is open while they have returned
        previous = arrived
    writes.go.release()
    assert {result(future).revision for future in previous} == {26}
    assert len(writes.started) == 26


def test_nothing_is_kept_while_idle(writes, crowd):
    futures = [crowd.start(f"task-{n}") for n in range(20)]
    for _ in futures:
        writes.await_start()
    followers = [future for n in range(20) for future in crowd.arrive(2, f"task-{n}")]
    writes.go.release(40)
    for future in futures + followers:
        result(future)
    assert crowd.coalescer._current == {}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupted_driver_strands_nobody(writes, crowd, interrupt):
    writes.answers = {2: interrupt}
    first = crowd.start()
    writes.await_start()
    covered = crowd.arrive(4)
    writes.go.release()
    result(first)
    writes.await_start()
    later = crowd.arrive(1)
    writes.go.release()  # one of the covered dies of the interrupt, another tries again
    writes.await_start()
    writes.go.release()
    writes.await_start()
    writes.go.release()
    ends = [future.exception(timeout=WAIT_SECONDS) for future in covered]
    assert [end for end in ends if end is not None] == [interrupt]
    assert {result(f).revision for f, end in zip(covered, ends, strict=True) if end is None} == {3}
    assert result(later[0]).revision == 4
    assert crowd.coalescer._current == {}


def test_an_interrupted_only_caller_leaves_nothing_behind():
    def write(_name: str) -> NudgeOutcome:
        raise KeyboardInterrupt

    coalescer = NudgeCoalescer(write)
    with pytest.raises(KeyboardInterrupt):
        coalescer.request("pump")
    assert coalescer._current == {}


def test_a_waiter_interrupted_with_the_turn_passes_it_on(writes, crowd, monkeypatch):
    first = crowd.start()
    writes.await_start()
    coalescer = crowd.coalescer
    followers = crowd.arrive(2)
    covering = coalescer._current["pump"].following
    interrupted: list[int] = []
    plain_wait = covering.changed.wait

    def wait_then_die(timeout: float | None = None) -> bool:
        plain_wait(timeout)
        interrupted.append(threading.get_ident())
        raise KeyboardInterrupt

    monkeypatch.setattr(covering.changed, "wait", wait_then_die)
    [doomed] = crowd.arrive(1)
    with coalescer._lock:
        # Whoever wakes first: let it be the doomed one, with the turn in its hand.
        covering.changed._waiters.rotate(1)
    writes.go.release()
    result(first)
    writes.await_start()
    writes.go.release()
    with pytest.raises(KeyboardInterrupt):
        result(doomed)
    assert len(interrupted) == 1
    assert {result(follower).revision for follower in followers} == {2}
    assert coalescer._current == {}
