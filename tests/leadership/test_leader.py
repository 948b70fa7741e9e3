"""`Leader` on threads: what is told to whom, when, and what is kept until then."""

from __future__ import annotations

import os
import threading
import warnings
from functools import partial
from queue import Empty, Queue
from typing import Any

import pytest

from tests.leadership.conftest import FAST, STEADY
from threadmill_sa import Grant, Leader, LeadershipLostError, LossReason, Threadmill, Timings
from threadmill_sa.errors import (
    DeclarationError,
    InvalidNameError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from threadmill_sa.model.lease import AcquireVerdict
from threadmill_sa.testing.stores import FaultingStore

WAIT_SECONDS = 20.0


class Diary:
    """Callbacks that note what they were told."""

    def __init__(self) -> None:
        self.news: Queue[tuple[str, int, Any]] = Queue()

    def acquired(self, grant: Grant) -> None:
        self.news.put(("acquired", grant.term, bool(grant)))

    def released(self, grant: Grant, reason: LossReason) -> None:
        self.news.put(("released", grant.term, reason))

    def next(self) -> tuple[str, int, Any]:
        return self.news.get(timeout=WAIT_SECONDS)

    def is_silent(self) -> bool:
        try:
            self.news.get_nowait()
        except Empty:
            return True
        return False


def lead(
    tm: Threadmill, name: str = "settle", *, timings: Timings = FAST, **options: Any
) -> tuple[Leader, Grant]:
    leader = tm.leader(name, timings=timings, **options).start()
    grant = leader.wait_leader(WAIT_SECONDS)
    assert grant is not None
    return leader, grant


def test_one_leads_and_hands_over_when_it_stops(each_tm: Threadmill) -> None:
    first, grant = lead(each_tm, timings=STEADY)
    second = each_tm.leader("settle", timings=STEADY).start()
    second.wait_for(lambda: second.observed, WAIT_SECONDS)

    assert (first.is_leader, second.is_leader) == (True, False)
    report = first.stop()
    other = second.wait_leader(WAIT_SECONDS)

    assert report.released
    assert report.stragglers == ()
    assert grant.reason is LossReason.RELEASED
    assert other is not None
    assert other.term == grant.term + 1
    second.stop()


def test_a_lease_is_renewed_past_its_length(each_tm: Threadmill) -> None:
    leader, grant = lead(each_tm, timings=STEADY)

    assert not grant.lost.wait(1.2 * STEADY.seconds("ttl"))
    assert leader.grant is grant
    assert grant.valid_for() > 0
    assert grant.ensure() == grant.term
    leader.stop()


def test_a_leader_starts_again_as_somebody_else(tm: Threadmill) -> None:
    leader, first = lead(tm)
    leader.stop()
    leader.start()
    second = leader.wait_leader(WAIT_SECONDS)

    assert second is not None
    assert second.term == first.term + 1
    assert second.lease.holder != first.lease.holder
    leader.stop()


def test_start_and_stop_are_nothing_the_second_time(tm: Threadmill) -> None:
    leader = tm.leader("settle", timings=FAST)

    assert not leader.stop().released
    leader.start().start()
    leader.wait_leader(WAIT_SECONDS)
    assert leader.stop().released
    assert not leader.stop().released
    assert not leader.running


def test_callbacks_alternate_once_per_term_off_the_heartbeat(tm: Threadmill) -> None:
    diary = Diary()
    names: list[str] = []

    def acquired(grant: Grant) -> None:
        names.append(threading.current_thread().name)
        diary.acquired(grant)

    leader, grant = lead(tm, on_acquired=acquired, on_released=diary.released)
    first = diary.next()
    leader.resign(cooldown=0)
    second, third = diary.next(), diary.next()
    leader.stop()

    assert first == ("acquired", grant.term, True)
    assert second == ("released", grant.term, LossReason.RESIGNED)
    assert third == ("acquired", grant.term + 1, True)
    assert diary.next() == ("released", grant.term + 1, LossReason.RELEASED)
    assert diary.is_silent()
    assert "threadmill-lease" not in names


def test_a_callback_that_blocks_delays_neither_renewals_nor_the_loss(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    blocked, go_on = threading.Event(), threading.Event()

    def block(_: Grant) -> None:
        blocked.set()
        go_on.wait(WAIT_SECONDS)

    leader, grant = lead(tm, on_acquired=block)
    assert blocked.wait(WAIT_SECONDS)
    assert not grant.lost.wait(1.4 * FAST.seconds("ttl"))
    assert grant

    faulty.fail("leases.renew")

    assert grant.lost.wait(WAIT_SECONDS)
    assert grant.reason is LossReason.EXPIRED
    assert not leader.is_leader
    go_on.set()
    leader.stop()


def test_a_failing_on_acquired_resigns_and_cools_down(tm: Threadmill) -> None:
    diary = Diary()

    def fail(_: Grant) -> None:
        raise RuntimeError("cannot lead")

    leader = tm.leader("settle", timings=FAST, on_acquired=fail, on_released=diary.released)
    leader.start()

    assert diary.next() == ("released", 1, LossReason.CALLBACK_FAILED)
    other, grant = lead(tm)  # within the cool-down of the first
    assert grant.term == 2
    other.stop()
    leader.stop()


def test_the_lease_is_kept_until_on_released_has_returned(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wind_up(_grant: Grant, _reason: LossReason) -> None:
        entered.set()
        go_on.wait(WAIT_SECONDS)

    leader, grant = lead(tm, on_released=wind_up)
    leader.resign()
    assert entered.wait(WAIT_SECONDS)

    assert not leader.is_leader
    renewals = faulty.calls("leases.renew")
    threading.Event().wait(1.2 * FAST.seconds("ttl"))
    view = faulty.inner.leases.peek("settle") if faulty.inner.leases else None
    assert view is not None
    assert (view.holder, view.term) == (grant.lease.holder, grant.term)
    assert faulty.calls("leases.renew") > renewals
    assert faulty.calls("leases.release") == 0
    go_on.set()
    leader.stop()


def test_a_drain_that_is_too_long_leaves_the_lease_to_run_out(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    go_on = threading.Event()
    leader, _ = lead(tm, on_released=lambda *_: go_on.wait(WAIT_SECONDS))

    report = leader.stop(drain=0.1)

    assert (report.released, report.stragglers) == (False, ("on_released",))
    assert faulty.calls("leases.release") == 0
    assert not leader.running
    go_on.set()


def test_a_short_outage_does_not_lose_leadership(tm: Threadmill, faulty: FaultingStore) -> None:
    leader, grant = lead(tm)

    faulty.fail("leases.renew", times=2)

    assert not grant.lost.wait(1.4 * FAST.seconds("ttl"))
    assert leader.grant is grant
    leader.stop()


def test_a_long_outage_loses_it_at_the_deadline_and_it_comes_back(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    diary = Diary()
    leader, grant = lead(tm, on_acquired=diary.acquired, on_released=diary.released)
    diary.next()
    faulty.fail("leases.renew")
    faulty.fail("leases.acquire")

    assert diary.next() == ("released", grant.term, LossReason.EXPIRED)
    with pytest.raises(LeadershipLostError) as caught:
        grant.ensure()
    assert (caught.value.name, caught.value.term) == ("settle", grant.term)
    faulty.mend()

    assert diary.next()[:2] == ("acquired", grant.term + 1)
    leader.stop()


def test_a_call_that_hangs_does_not_keep_the_loss_from_being_told(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    leader, grant = lead(tm)

    gate = faulty.hold("leases.renew")

    assert grant.lost.wait(WAIT_SECONDS)
    assert grant.reason is LossReason.EXPIRED
    gate.open()
    leader.stop()


def test_a_lost_answer_to_an_acquisition_is_settled_by_the_next_attempt(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    faulty.fail("leases.acquire", times=1, after=True)

    leader, grant = lead(tm)

    assert grant.term == 1
    assert leader.is_leader
    leader.stop()


def test_what_is_won_after_the_stop_is_given_back(tm: Threadmill, faulty: FaultingStore) -> None:
    gate = faulty.hold("leases.acquire")
    leader = tm.leader("settle", timings=FAST).start()
    assert gate.reached.wait(WAIT_SECONDS)
    leader.stop()
    heard = threading.Event()
    assert faulty.inner.leases is not None
    faulty.inner.leases.watch("settle", heard.set)

    gate.open()

    assert heard.wait(WAIT_SECONDS)
    view = faulty.inner.leases.peek("settle")
    assert view is not None
    assert view.holder is None


def test_a_takeover_by_others_is_a_loss(tm: Threadmill, faulty: FaultingStore) -> None:
    leader, grant = lead(tm)
    leases = faulty.inner.leases
    assert leases is not None
    leases.release(grant.lease, timeout_seconds=1)
    answer = leases.acquire("settle", "thief", ttl_seconds=60, timeout_seconds=1)

    assert answer.verdict is AcquireVerdict.ACQUIRED
    assert grant.lost.wait(WAIT_SECONDS)
    assert grant.reason is LossReason.TAKEN_OVER
    leader.stop()


def test_terms_are_iterated_until_the_stop(tm: Threadmill) -> None:
    leader = tm.leader("settle", timings=FAST).start()
    seen = []
    for grant in leader.terms():
        seen.append(grant.term)
        if grant.term == 3:
            leader.stop()
        else:
            leader.resign(cooldown=0)

    assert seen == [1, 2, 3]


def test_resigning_without_leading_is_nothing(tm: Threadmill) -> None:
    holder, _ = lead(tm)
    waiter = tm.leader("settle", timings=FAST).start()

    assert not tm.leader("settle").resign()
    assert not waiter.resign()
    waiter.stop()
    holder.stop()


def test_a_resignation_and_a_stop_by_a_callback_are_seen_at_once(tm: Threadmill) -> None:
    """It failed: is_leader stayed true until the heartbeat had taken notice."""
    leader, grant = lead(tm)
    seen: Queue[object] = Queue()

    assert leader.resign(cooldown=60)
    assert (leader.is_leader, bool(grant), grant.reason) == (False, False, LossReason.RESIGNED)
    assert not leader.resign()
    leader.stop()

    def stop(grant: Grant) -> None:
        other.stop()
        seen.put((other.is_leader, grant.reason))

    other = tm.leader("other", timings=FAST, on_acquired=stop)
    other.start()
    assert seen.get(timeout=WAIT_SECONDS) == (False, LossReason.RELEASED)
    other.wait_for(lambda: not other.running, WAIT_SECONDS)


async def _coroutine(*_: object) -> None: ...


def _generator(*_: object) -> Any:
    yield


@pytest.mark.parametrize("callback", [_coroutine, partial(_coroutine), _generator, 5, "settle"])
@pytest.mark.parametrize("option", ["on_acquired", "on_released"])
def test_a_callback_that_would_never_run_is_refused(
    tm: Threadmill, option: str, callback: Any
) -> None:
    with pytest.raises(DeclarationError, match=option):
        tm.leader("settle", **{option: callback})


def test_an_on_acquired_that_returns_a_coroutine_has_failed(tm: Threadmill) -> None:
    diary = Diary()
    leader = tm.leader(
        "settle", timings=FAST, on_acquired=lambda _: _coroutine(), on_released=diary.released
    )
    leader.start()

    assert diary.next() == ("released", 1, LossReason.CALLBACK_FAILED)
    leader.stop()


def test_a_grant_says_how_long_is_left_when_more_is_needed(tm: Threadmill) -> None:
    leader, grant = lead(tm)

    with pytest.raises(LeadershipLostError, match=r"for 1\.\d s, not for 10 s") as caught:
        grant.ensure(10)

    assert caught.value.reason is None
    assert grant
    leader.stop()
    with pytest.raises(LeadershipLostError, match=r"over \(released\)"):
        grant.ensure()


def test_who_does_not_hold_the_lease_writes_nothing_and_asks_rarely(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    leader, _ = lead(tm)
    waiters = [tm.leader("settle", timings=FAST).start() for _ in range(5)]
    for waiter in waiters:
        waiter.wait_for(lambda waiter=waiter: waiter.observed, WAIT_SECONDS)  # type: ignore[misc]
    before = faulty.calls("leases.acquire")

    threading.Event().wait(1.4 * FAST.seconds("ttl"))

    # One attempt of each when the lease would have run out, plus the first after it listens.
    assert faulty.calls("leases.acquire") - before <= 5 * 5
    for each in [*waiters, leader]:
        each.stop()


def test_a_forked_child_holds_nothing(tm: Threadmill, faulty: FaultingStore) -> None:
    leader, grant = lead(tm)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads are running
        child = os.fork()
    if child == 0:  # pragma: no cover - another process
        holds = bool(grant) or leader.is_leader or leader.running
        reason = str(grant.reason)
        os.write(writing, f"{holds} {reason}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)

    assert os.read(reading, 100) == b"False forked"
    assert grant
    os.close(reading)
    leader.stop()


def test_a_callback_may_stop_its_leader(tm: Threadmill) -> None:
    reports: Queue[Any] = Queue()
    leader = tm.leader("settle", timings=FAST, on_acquired=lambda _: reports.put(leader.stop()))
    leader.start()

    report = reports.get(timeout=WAIT_SECONDS)
    leader.wait_for(lambda: not leader.running, WAIT_SECONDS)

    assert report.stragglers == ("on_acquired",)
    [view] = tm.leases()
    assert view.holder is None


def test_closing_stops_what_still_leads(faulty: FaultingStore) -> None:
    tm = Threadmill(faulty)
    grant = tm.leader("settle", timings=FAST).start().wait_leader(WAIT_SECONDS)
    scheduler = tm.scheduler("metrics", timings=FAST).start()
    scheduler.leader.wait_leader(WAIT_SECONDS)

    tm.close()

    assert grant is not None
    assert grant.reason is LossReason.RELEASED
    assert not scheduler.running
    assert [view.holder for view in tm.leases()] == [None, None]


def test_the_heartbeat_outlives_a_listener_that_fails(tm: Threadmill) -> None:
    leader = tm.leader("settle", timings=FAST)
    broken = iter([True])

    def listen() -> None:
        if next(broken, False):
            raise RuntimeError("a bug")

    leader.listen(listen)
    leader.start()
    grant = leader.wait_leader(WAIT_SECONDS)

    assert grant is not None
    assert not grant.lost.wait(1.4 * FAST.seconds("ttl"))
    leader.stop()


@pytest.mark.parametrize("name", ["", "x" * 129, "threadmill:maintenance", "a\nb"])
def test_a_name_that_users_may_not_have_is_refused(tm: Threadmill, name: str) -> None:
    with pytest.raises(InvalidNameError):
        tm.leader(name)


def test_a_store_without_leases_says_so(faulty: FaultingStore) -> None:
    faulty._leases = None

    with pytest.raises(UnsupportedStoreError, match="keeps no leases"):
        Threadmill(faulty).leader("settle")


def test_leases_are_listed(tm: Threadmill) -> None:
    leader, grant = lead(tm)
    [view] = tm.leases()

    assert (view.name, view.holder, view.term) == ("settle", grant.lease.holder, 1)
    assert 0 < view.remaining_seconds <= FAST.seconds("ttl")
    leader.stop()


def test_an_error_of_the_store_is_remembered(tm: Threadmill, faulty: FaultingStore) -> None:
    faulty.fail("leases.acquire")
    leader = tm.leader("settle", timings=FAST).start()

    leader.wait_for(lambda: leader.error, WAIT_SECONDS)

    assert isinstance(leader.error, StoreUnavailableError)
    leader.stop()
