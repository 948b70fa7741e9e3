"""Leases: one holder, a term that only grows, and times by the store's own clock."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

import pytest

from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    Lease,
    LeaseView,
    ReleaseVerdict,
    RenewVerdict,
)
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import together

TTL = 30.0  # seconds: nothing runs out by itself
SHORT = 0.05  # seconds: for those who wait for the end
CALL_SECONDS = 5.0
WAIT_SECONDS = 10.0  # a lease that has not run out by then never does
ROUNDS, CONTENDERS = 40, 16

_numbers = itertools.count(1)


class WithLeases:
    """The role; a store without it skips these tests."""

    @pytest.fixture
    def leases(self, store: JobStore) -> Leases:
        role: Leases | None = getattr(store, "leases", None)
        if role is None:
            pytest.skip("this store keeps no leases")
        return role


def _holder() -> str:
    return f"h\u00f6st:{next(_numbers)}"


def _acquire(
    leases: Leases, name: str = "settle", holder: str | None = None, ttl: float = TTL
) -> AcquireAnswer:
    return leases.acquire(name, holder or _holder(), ttl_seconds=ttl, timeout_seconds=CALL_SECONDS)


def _win(
    leases: Leases, name: str = "settle", holder: str | None = None, ttl: float = TTL
) -> Lease:
    answer = _acquire(leases, name, holder, ttl)
    assert answer.verdict is AcquireVerdict.ACQUIRED
    return answer.lease


def _renew(leases: Leases, lease: Lease, ttl: float = TTL) -> RenewVerdict:
    return leases.renew(lease, ttl_seconds=ttl, timeout_seconds=CALL_SECONDS)


def _release(leases: Leases, lease: Lease) -> ReleaseVerdict:
    return leases.release(lease, timeout_seconds=CALL_SECONDS)


def _view(leases: Leases, name: str = "settle") -> LeaseView:
    found = leases.peek(name)
    assert found is not None
    return found


def _run_out(leases: Leases, name: str = "settle") -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while _view(leases, name).holder is not None:
        assert time.monotonic() < deadline, "the lease does not run out"


class LeaseSuite(WithLeases):
    """What holds for one lease, whoever asks."""

    def test_the_first_holding_of_a_name_has_term_one(self, leases: Leases) -> None:
        answer = _acquire(leases, holder="first")

        assert answer.verdict is AcquireVerdict.ACQUIRED
        assert answer.lease == Lease("settle", "first", 1)
        assert 0 < answer.remaining_seconds <= TTL
        view = _view(leases)
        assert (view.name, view.holder, view.term) == ("settle", "first", 1)
        assert TTL - WAIT_SECONDS < view.remaining_seconds <= TTL
        assert view.acquired_at.utcoffset() is not None

    def test_who_finds_the_name_held_is_told_by_whom_and_changes_nothing(
        self, leases: Leases
    ) -> None:
        held = _win(leases)
        before = _view(leases)

        answer = _acquire(leases, holder="second")

        assert (answer.verdict, answer.lease) == (AcquireVerdict.HELD, held)
        assert 0 < answer.remaining_seconds <= TTL
        after = _view(leases)
        assert (after.holder, after.term, after.acquired_at) == (
            before.holder,
            before.term,
            before.acquired_at,
        )
        assert after.remaining_seconds <= before.remaining_seconds

    def test_the_holder_itself_is_told_that_it_holds(self, leases: Leases) -> None:
        held = _win(leases, holder="me")

        answer = _acquire(leases, holder="me")

        assert (answer.verdict, answer.lease) == (AcquireVerdict.HELD, held)

    def test_the_term_survives_the_release(self, leases: Leases) -> None:
        first = _win(leases)

        assert _release(leases, first) is ReleaseVerdict.RELEASED

        view = _view(leases)
        assert (view.holder, view.term, view.remaining_seconds) == (None, 1, 0.0)
        assert _win(leases).term == 2

    def test_the_same_holder_gets_a_new_term(self, leases: Leases) -> None:
        first = _win(leases, holder="me")
        _release(leases, first)

        assert _win(leases, holder="me") == Lease("settle", "me", 2)

    def test_a_lease_that_ran_out_is_taken_over(self, leases: Leases) -> None:
        crashed = _win(leases, ttl=SHORT)
        assert _acquire(leases).verdict in AcquireVerdict  # perhaps still held
        _run_out(leases)

        answer = _acquire(leases, holder="next")

        if answer.verdict is AcquireVerdict.ACQUIRED:
            assert answer.lease.term > crashed.term
        assert _view(leases).term > crashed.term

    def test_a_renewal_moves_the_end_and_nothing_else(self, leases: Leases) -> None:
        lease = _win(leases, ttl=TTL)
        before = _view(leases)

        assert _renew(leases, lease, ttl=10 * TTL) is RenewVerdict.RENEWED

        after = _view(leases)
        assert after.remaining_seconds > 9 * TTL
        assert (after.holder, after.term) == (before.holder, before.term)
        assert after.acquired_at == before.acquired_at

    def test_a_renewal_sets_the_rest_and_never_adds_to_it(self, leases: Leases) -> None:
        lease = _win(leases, ttl=TTL)

        _renew(leases, lease, ttl=TTL / 2)

        assert _view(leases).remaining_seconds <= TTL / 2

    def test_a_lease_that_ran_out_cannot_be_renewed(self, leases: Leases) -> None:
        lease = _win(leases, ttl=SHORT)
        _run_out(leases)

        assert _renew(leases, lease) is RenewVerdict.LOST
        assert _view(leases).holder is None

    def test_a_lease_that_was_taken_over_cannot_be_renewed(self, leases: Leases) -> None:
        old = _win(leases, holder="old", ttl=SHORT)
        _run_out(leases)
        new = _win(leases, holder="new")

        assert _renew(leases, old) is RenewVerdict.LOST
        assert (_view(leases).holder, _view(leases).term) == (new.holder, new.term)

    def test_a_released_lease_cannot_be_renewed(self, leases: Leases) -> None:
        lease = _win(leases)
        _release(leases, lease)

        assert _renew(leases, lease) is RenewVerdict.LOST

    @pytest.mark.parametrize("wrong", [Lease("settle", "me", 2), Lease("settle", "you", 1)])
    def test_another_term_or_holder_changes_nothing(self, leases: Leases, wrong: Lease) -> None:
        lease = _win(leases, holder="me")

        assert _renew(leases, wrong) is RenewVerdict.LOST
        assert _release(leases, wrong) is ReleaseVerdict.NOT_HELD
        assert (_view(leases).holder, _view(leases).term) == ("me", lease.term)

    def test_an_old_term_of_the_same_holder_ends_nothing(self, leases: Leases) -> None:
        old = _win(leases, holder="me", ttl=SHORT)
        _run_out(leases)
        new = _win(leases, holder="me")

        assert _release(leases, old) is ReleaseVerdict.NOT_HELD
        assert _renew(leases, old) is RenewVerdict.LOST
        assert _view(leases).holder == new.holder

    def test_a_release_happens_once(self, leases: Leases) -> None:
        lease = _win(leases)

        verdicts = [_release(leases, lease) for _ in range(2)]

        assert verdicts == [ReleaseVerdict.RELEASED, ReleaseVerdict.NOT_HELD]

    def test_what_was_never_held_cannot_be_renewed_or_released(self, leases: Leases) -> None:
        unknown = Lease("unknown", "me", 1)

        assert _renew(leases, unknown) is RenewVerdict.LOST
        assert _release(leases, unknown) is ReleaseVerdict.NOT_HELD
        assert leases.peek("unknown") is None

    def test_names_are_independent_and_listed_in_order(self, leases: Leases) -> None:
        names = ["b", "\u00e4-\u6f22", "a", "n" * 128, "A"]
        for name in names:
            _win(leases, name)
        _release(leases, _win(leases, "free"))

        views = leases.list()

        assert [view.name for view in views] == sorted([*names, "free"])
        assert {view.name for view in views if view.holder is None} == {"free"}
        assert all(view.term == 1 for view in views)

    def test_a_millisecond_is_a_lease(self, leases: Leases) -> None:
        lease = _win(leases, ttl=0.001)
        _run_out(leases)

        assert _win(leases).term == lease.term + 1

    def test_those_who_watch_hear_of_the_release(self, leases: Leases) -> None:
        lease = _win(leases)
        heard, other = threading.Event(), threading.Event()
        unwatch = leases.watch("settle", heard.set)
        unwatch_other = leases.watch("other", other.set)
        try:
            _release(leases, lease)

            assert heard.wait(WAIT_SECONDS)
        finally:
            unwatch()
            unwatch_other()

    def test_who_watches_no_longer_hears_nothing(self, leases: Leases) -> None:
        calls: list[int] = []
        unwatch = leases.watch("settle", lambda: calls.append(1))
        unwatch()
        unwatch()

        _release(leases, _win(leases))

        assert calls == []


class LeaseRaceSuite(WithLeases):
    """Of any number of callers at most one gets a term."""

    def test_sixteen_contenders_of_a_new_name_have_one_winner(self, leases: Leases) -> None:
        for number in range(ROUNDS):
            self._round(leases, f"new-{number}", term=1)

    def test_sixteen_contenders_of_a_free_name_have_one_winner(self, leases: Leases) -> None:
        lease = _win(leases)
        for number in range(ROUNDS):
            _release(leases, lease)
            lease = self._round(leases, "settle", term=number + 2)

    def test_a_renewal_and_a_takeover_never_both_succeed(self, leases: Leases) -> None:
        outcomes = set()
        for number in range(ROUNDS):
            name = f"late-{number}"
            lease = _win(leases, name, ttl=0.002)
            renewed, answer = together(
                partial(_renew, leases, lease), partial(_acquire, leases, name)
            )
            kept = renewed is RenewVerdict.RENEWED
            taken = answer.verdict is AcquireVerdict.ACQUIRED
            assert not (kept and taken)
            assert _view(leases, name).term == lease.term + taken
            outcomes.add((kept, taken))

    @staticmethod
    def _round(leases: Leases, name: str, *, term: int) -> Lease:
        contend = [partial(_acquire, leases, name, _holder()) for _ in range(CONTENDERS)]
        answers: list[AcquireAnswer] = together(*contend)

        winners = [each.lease for each in answers if each.verdict is AcquireVerdict.ACQUIRED]
        assert [lease.term for lease in winners] == [term]
        view = _view(leases, name)
        assert (view.holder, view.term) == (winners[0].holder, term)
        return winners[0]
