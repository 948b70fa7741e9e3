"""Simulated nodes: the real state machine, the real store in memory, a network and clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from threadmill_sa.engine.leadership import contender as machine
from threadmill_sa.engine.leadership.contender import Call, CallKind, Contender, Reply
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.model.lease import AcquireAnswer, Lease, LeaseView, LossReason
from threadmill_sa.stores.memory.leases import MemoryLeases
from threadmill_sa.testing import ManualClock

NAME = "settle"
DRIFT = 0.02  # a local clock is at most so much faster or slower than the store's
TIMINGS = Timings(ttl=15.0)  # margin 1.5 s, more than twice the drift over one ttl
STEP_MIN, STEP_MAX = 1e-3, 1.0  # seconds of store time between two looks at every node
CALL_SECONDS = TIMINGS.seconds("call_timeout")


@dataclass(slots=True)
class Term:
    """What a node tells of one term."""

    lease: Lease
    trusted_until: float  # on its own clock
    reason: LossReason | None = None
    drained: bool = False


@dataclass(slots=True)
class InFlight:
    """A call on the network."""

    call: Call
    contender: Contender
    lease: Lease
    applied: bool = False
    reply: Reply = None


@dataclass
class Node:
    """One process: a clock of its own, one contender at a time, calls on the way."""

    number: int
    world: World
    rate: float = 1.0
    local: float = 0.0
    paused: bool = False
    cut: bool = False  # no call reaches the store, no reply comes back
    starts: int = 0
    contender: Contender | None = None
    holder: str = ""
    terms: list[Term] = field(default_factory=list)
    calls: list[InFlight] = field(default_factory=list)
    asked_after_stop: list[CallKind] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)

    @property
    def grant(self) -> Term | None:
        """The term that the node may act for now, by its own clock alone."""
        term = self.terms[-1] if self.terms else None
        if term is None or term.reason is not None or self.contender is None:
            return None
        return term if self.local < term.trusted_until else None

    def start(self) -> None:
        self.starts += 1
        self.attempts = []
        self.holder = f"node-{self.number}/{self.starts}"
        self.contender = Contender(self.holder, TIMINGS, self.world.noise)
        self.handle(self.contender.start(self.local), self.contender)

    def crash(self) -> None:
        self.contender = None
        for term in self.terms:
            term.reason = term.reason or LossReason.FORKED
        self.calls = []

    def event(self, act: Callable[[Contender], list[machine.Action]]) -> None:
        contender = self.contender
        if contender is not None and not self.paused:
            self.handle(act(contender), contender)

    def look(self) -> None:
        """Take the time that has passed; a paused node does not."""
        contender = self.contender
        if contender is None or self.paused:
            return
        for _ in range(1000):
            if contender.wake_at > self.local:
                return
            self.handle(contender.pass_time(self.local), contender)
        raise AssertionError(f"the contender asks to be woken for ever at {contender.wake_at}")

    def drain(self) -> None:
        """End what acts for terms that are over; in a paused process nothing does."""
        if self.paused:
            return
        for term in self.terms:
            if term.reason is not None and not term.drained:
                term.drained = True
                self.event(lambda each, term=term: each.drained(term.lease.term, self.local))  # type: ignore[misc]

    def handle(self, actions: list[machine.Action], contender: Contender) -> None:
        for action in actions:
            match action:
                case Call():
                    self._send(action, contender)
                case machine.Began(term, until):
                    self._began(Lease(NAME, self.holder, term), until)
                case machine.Extended(term, until):
                    current = self.terms[-1]
                    assert (current.lease.term, current.reason) == (term, None)
                    assert until > current.trusted_until
                    assert self.local < current.trusted_until, "revived after its end"
                    current.trusted_until = until
                case machine.Ended(term, reason):
                    current = self.terms[-1]
                    assert (current.lease.term, current.reason) == (term, None)
                    current.reason = reason

    def _began(self, lease: Lease, until: float) -> None:
        assert all(term.reason is not None for term in self.terms), "two terms at once"
        assert all(term.drained for term in self.terms if term.lease.holder == self.holder), (
            "campaigned while work of an ended term went on"
        )
        if self.terms:
            assert lease.term > self.terms[-1].lease.term, "a term began twice, or an older one"
        self.terms.append(Term(lease, until))

    def _send(self, call: Call, contender: Contender) -> None:
        if contender.stopped:
            self.asked_after_stop.append(call.kind)
        if call.kind is CallKind.ACQUIRE:
            self.attempts.append(self.local)
        self.calls.append(InFlight(call, contender, Lease(NAME, self.holder, call.term)))

    # The network -----------------------------------------------------------------------------

    def arrive(self, flight: InFlight) -> None:
        """Let the store do what the call asks for."""
        if flight.applied or self.cut:
            return
        flight.applied = True
        flight.reply = self.world.apply(flight)

    def answer(self, flight: InFlight, *, lost: bool = False) -> None:
        """Let the reply, or its absence, reach the node."""
        if flight not in self.calls or self.paused or self.cut:
            return
        self.calls.remove(flight)
        if self.contender is None:
            return
        # An old life's reply may come to a new one only as what it is: late and of another.
        contender = flight.contender
        reply = None if lost or not flight.applied else flight.reply
        actions = contender.reply(flight.call, reply, self.local)
        if contender is self.contender or contender.stopped:
            self.handle(actions, contender)


class World:
    """The store and its time, the nodes, and what must hold at every instant."""

    def __init__(self, nodes: int, noise: Callable[[], float] = lambda: 0.5) -> None:
        self.noise = noise
        self.clock = ManualClock(datetime(2026, 1, 5, 12, tzinfo=UTC))
        self.leases = MemoryLeases(self.clock)
        self.nodes = [Node(number, self) for number in range(nodes)]
        self.fenced: list[int] = []  # the terms of accepted fenced writes, in order

    def apply(self, flight: InFlight) -> Any:
        bounds = {"timeout_seconds": CALL_SECONDS}
        ttl = {"ttl_seconds": TIMINGS.seconds("ttl")}
        match flight.call.kind:
            case CallKind.ACQUIRE:
                before = self.leases.peek(NAME)
                answer = self.leases.acquire(NAME, flight.lease.holder, **ttl, **bounds)
                self._check_terms(before, answer)
                return answer
            case CallKind.RENEW:
                return self.leases.renew(flight.lease, **ttl, **bounds)
            case CallKind.RELEASE:
                return self.leases.release(flight.lease, **bounds)

    def _check_terms(self, before: LeaseView | None, answer: AcquireAnswer) -> None:
        term = 0 if before is None else before.term
        assert answer.lease.term in {term, term + 1}

    def write_fenced(self, lease: Lease) -> bool:
        """A write of a past or present grant: accepted only while the store has that term."""
        view = self.leases.peek(NAME)
        accepted = view is not None and (view.holder, view.term) == (lease.holder, lease.term)
        if accepted:
            self.fenced.append(lease.term)
        return accepted

    def advance(self, seconds: float) -> None:
        """Let time pass for everybody, from one instant at which a node wakes to the next."""
        left = seconds
        while left > 0:
            step = min(left, STEP_MAX, self._until_somebody_wakes())
            left -= step
            self.clock.advance(step)
            for node in self.nodes:
                node.local += step * node.rate
                node.look()
            self.check()

    def _until_somebody_wakes(self) -> float:
        waits = [
            (node.contender.wake_at - node.local) / node.rate
            for node in self.nodes
            if node.contender is not None and not node.paused
        ]
        return max(STEP_MIN, min(waits, default=STEP_MAX))

    def serve(self) -> None:
        """Deliver everything that is on the way, as a healthy network does."""
        for node in self.nodes:
            for flight in list(node.calls):
                node.arrive(flight)
                node.answer(flight)

    def run_well(self, seconds: float) -> None:
        """Let time pass on a healthy network, with work that ends when it should."""
        left = seconds
        while left > 0:
            self.serve()
            for node in self.nodes:
                node.drain()
            self.serve()
            step = min(left, STEP_MAX, self._until_somebody_wakes())
            left -= step
            self.advance(step)

    def check(self) -> None:
        """At most one grant, never trusted beyond the store's end, and terms as they should."""
        granted = [node for node in self.nodes if node.grant is not None]
        assert len(granted) <= 1, [(node.number, node.grant) for node in granted]
        view = self.leases.peek(NAME)
        for node in granted:
            grant = node.grant
            assert grant is not None
            assert view is not None
            assert (view.holder, view.term) == (grant.lease.holder, grant.lease.term)
            local_rest = (grant.trusted_until - node.local) / node.rate
            assert local_rest <= view.remaining_seconds
        assert self.fenced == sorted(self.fenced)
        for node in self.nodes:
            assert set(node.asked_after_stop) <= {CallKind.RELEASE}
