"""Work that only the leader runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.leadership.conftest import FAST, STEADY
from threadmill_sa import (
    AbstractScheduler,
    LeaderScheduler,
    ScheduleConfig,
    Threadmill,
    Tick,
    Timings,
)
from threadmill_sa.errors import DeclarationError, InvalidValueError, LeadershipLostError
from threadmill_sa.model.lease import Lease
from threadmill_sa.testing.stores import FaultingStore

WAIT_SECONDS = 20.0
SOON = 0.01  # seconds: a period


class Work:
    """Counts its runs, and holds them when told to."""

    def __init__(self, *, hold: bool = False) -> None:
        self.ran = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.ticks: list[Tick] = []
        self.at_once = self.most_at_once = 0
        if not hold:
            self.go_on.set()

    def __call__(self, tick: Tick) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.ticks.append(tick)
        self.ran.release()
        self.go_on.wait(WAIT_SECONDS)
        self.at_once -= 1

    def wait(self, runs: int = 1) -> None:
        for _ in range(runs):
            assert self.ran.acquire(timeout=WAIT_SECONDS)


def schedule(
    tm: Threadmill, work: Callable[[Tick], None], timings: Timings = FAST, **options: object
) -> LeaderScheduler:
    scheduler = tm.scheduler("settle", timings=timings)
    scheduler.every(SOON, name="work", **options)(work)  # type: ignore[arg-type]
    return scheduler


@pytest.mark.parametrize("strategy", ["fixed_rate", "fixed_delay"])
def test_only_the_leader_works_and_another_goes_on(each_tm: Threadmill, strategy: str) -> None:
    first, second = Work(), Work()
    leading = schedule(each_tm, first, STEADY, strategy=strategy).start()
    first.wait(3)
    waiting = schedule(each_tm, second, STEADY, strategy=strategy).start()
    first.wait(3)
    assert second.ticks == []

    assert leading.stop().released
    second.wait(3)

    assert max(tick.grant.term for tick in first.ticks) < min(
        tick.grant.term for tick in second.ticks
    )
    assert not leading.running
    waiting.stop()


def test_slots_rise_and_the_thread_has_the_name_of_the_work(tm: Threadmill) -> None:
    names: set[str] = set()
    work = Work()

    def note(tick: Tick) -> None:
        names.add(threading.current_thread().name)
        work(tick)

    with schedule(tm, note):
        work.wait(5)

    slots = [tick.slot for tick in work.ticks]
    assert slots == sorted(set(slots))
    assert names == {"work-0"}


def test_what_work_raises_is_counted_and_the_schedule_goes_on(tm: Threadmill) -> None:
    scheduler = tm.scheduler("settle", timings=FAST)
    ran = threading.Semaphore(0)

    @scheduler.every(SOON, strategy="fixed_delay")
    def fails() -> None:
        ran.release()
        raise RuntimeError("broken")

    with scheduler:
        for _ in range(3):
            assert ran.acquire(timeout=WAIT_SECONDS)

    counts = scheduler.counts()["fails"]
    assert counts.runs == counts.failures >= 3


def test_a_lost_term_cancels_the_work_and_is_no_failure(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    ended = threading.Event()

    def work(tick: Tick) -> None:
        tick.grant.lost.wait(WAIT_SECONDS)
        assert tick.cancelled
        ended.set()
        tick.ensure()

    scheduler = schedule(tm, work).start()
    scheduler.leader.wait_leader(WAIT_SECONDS)
    faulty.fail("leases.renew")

    assert ended.wait(WAIT_SECONDS)
    faulty.mend()
    scheduler.stop()
    assert scheduler.counts()["work"].failures == 0


def test_a_lost_term_of_another_mutex_is_a_failure(tm: Threadmill) -> None:
    ran = threading.Event()

    def work(_: Tick) -> None:
        ran.set()
        raise LeadershipLostError("another", name="other", term=1)

    with schedule(tm, work) as scheduler:
        assert ran.wait(WAIT_SECONDS)

    assert scheduler.counts()["work"].failures > 0


def test_a_stop_keeps_leading_while_the_work_drains(tm: Threadmill, faulty: FaultingStore) -> None:
    work = Work(hold=True)
    scheduler = schedule(tm, work).start()
    work.wait()
    reports = []
    stopping = threading.Thread(target=lambda: reports.append(scheduler.stop()))
    stopping.start()
    [tick] = work.ticks
    while not tick.cancelled:
        threading.Event().wait(0.01)

    assert not tick.grant.lost.wait(1.2 * FAST.seconds("ttl"))
    assert tick.ensure() == 1
    assert faulty.calls("leases.release") == 0
    work.go_on.set()
    stopping.join(WAIT_SECONDS)

    assert [report.released for report in reports] == [True]
    assert len(work.ticks) == 1


def test_a_drain_that_is_too_long_names_the_work_and_gives_nothing_back(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    work = Work(hold=True)
    scheduler = schedule(tm, work).start()
    work.wait()

    report = scheduler.stop(drain=0.1)

    assert (report.released, report.stragglers) == (False, ("work",))
    assert faulty.calls("leases.release") == 0
    assert not work.ticks[0].grant
    with pytest.raises(RuntimeError, match="still goes on"):
        scheduler.start()
    work.go_on.set()


def test_who_has_a_stuck_run_does_not_campaign_and_never_runs_twice(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    work = Work(hold=True)
    scheduler = schedule(tm, work).start()
    work.wait()
    grant = work.ticks[0].grant
    leases = faulty.inner.leases
    assert leases is not None
    leases.release(Lease("settle", grant.lease.holder, grant.term), timeout_seconds=1)
    assert grant.lost.wait(WAIT_SECONDS)
    attempts = faulty.calls("leases.acquire")

    threading.Event().wait(1.3 * FAST.seconds("ttl"))
    assert faulty.calls("leases.acquire") == attempts
    work.go_on.set()
    work.wait(2)

    assert work.ticks[1].grant.term == grant.term + 1
    assert work.most_at_once == 1
    scheduler.stop()


def test_a_scheduler_starts_again_after_a_stop(tm: Threadmill) -> None:
    work = Work()
    scheduler = schedule(tm, work)
    for _ in range(2):
        scheduler.start().start()
        work.wait(2)
        scheduler.stop()
        scheduler.stop()

    assert {tick.grant.term for tick in work.ticks} == {1, 2}


def test_work_that_returns_a_coroutine_has_failed(tm: Threadmill) -> None:
    ran = threading.Event()

    async def body() -> None: ...

    def work(_: Tick) -> object:
        ran.set()
        return body()

    with schedule(tm, work) as scheduler:  # type: ignore[arg-type]
        assert ran.wait(WAIT_SECONDS)

    counts = scheduler.counts()["work"]
    assert counts.failures == counts.runs > 0


def test_several_works_share_one_leader(tm: Threadmill) -> None:
    scheduler = tm.scheduler("settle", timings=FAST)
    works = {name: Work() for name in "abc"}
    for name, work in works.items():
        scheduler.every(SOON, name=name)(work)

    with scheduler:
        for work in works.values():
            work.wait(2)

    assert {tick.grant.term for work in works.values() for tick in work.ticks} == {1}


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_work_that_asks_to_exit_fails_alone_and_the_schedule_goes_on(
    tm: Threadmill, kind: type[BaseException]
) -> None:
    ran = threading.Semaphore(0)

    def exits(_: Tick) -> None:
        ran.release()
        raise kind

    other = Work()
    scheduler = schedule(tm, exits)
    scheduler.every(SOON, name="other")(other)
    for _ in range(2):
        with scheduler:
            for _ in range(2):
                assert ran.acquire(timeout=WAIT_SECONDS)
            other.wait(2)
            assert scheduler.running

    assert scheduler.counts()["work"].failures == scheduler.counts()["work"].runs >= 4
    assert {tick.grant.term for tick in other.ticks} == {1, 2}


def test_a_stop_takes_no_longer_than_its_drain(tm: Threadmill, faulty: FaultingStore) -> None:
    work = Work(hold=True)
    scheduler = schedule(tm, work).start()
    work.wait()
    gate = faulty.hold("leases.release")  # the lease takes whatever time is left
    threading.Timer(0.5, work.go_on.set).start()
    began = time.monotonic()

    report = scheduler.stop(drain=1.0)

    assert time.monotonic() - began < 1.4
    assert not report.released
    gate.open()


def test_work_that_cannot_be_scheduled_is_refused(tm: Threadmill) -> None:
    scheduler = tm.scheduler("settle", timings=FAST)

    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    class Later:
        async def __call__(self) -> None: ...

    for later in (coroutine, partial(coroutine), Later()):
        with pytest.raises(DeclarationError, match="coroutine"):
            scheduler.every(1, name="later")(later)
    for none in (generator, 5):
        with pytest.raises(DeclarationError, match=r"generator|expected a function"):
            scheduler.every(1, name="none")(none)  # type: ignore[type-var]
    with pytest.raises(DeclarationError, match="2 parameters"):
        scheduler.every(1)(lambda _a, _b: None)
    with pytest.raises(InvalidValueError):
        scheduler.every(0)
    scheduler.every(1, name="once")(lambda: None)
    with pytest.raises(DeclarationError, match="taken"):
        scheduler.every(1, name="once")(lambda: None)


class Settlement(AbstractScheduler):
    config = ScheduleConfig.delay(period=SOON)
    worker = "settlement"

    def __init__(self, tm: Threadmill) -> None:
        super().__init__("settle", tm, timings=FAST)
        self.ran = threading.Semaphore(0)

    def work(self) -> None:
        self.ran.release()


def test_a_scheduler_as_a_class(tm: Threadmill) -> None:
    settlement = Settlement(tm)
    running = [settlement.running]
    assert settlement.start() is settlement
    for _ in range(3):
        assert settlement.ran.acquire(timeout=WAIT_SECONDS)

    assert settlement.leader.is_leader
    running.append(settlement.running)
    assert settlement.stop().released
    running.append(settlement.running)
    assert running == [False, True, False]
    assert settlement.counts().runs >= 3
    assert settlement.mutex == "settle"


def test_a_class_with_a_schedule_that_cannot_work_is_refused_at_construction(
    tm: Threadmill,
) -> None:
    class Broken(Settlement):
        @property
        def config(self) -> ScheduleConfig:  # type: ignore[override]
            return ScheduleConfig.rate(period=0)

    with pytest.raises(InvalidValueError):
        Broken(tm)
