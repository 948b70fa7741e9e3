"""A search over clocks, suspends, partitions, lost and late replies, with the real machine."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.leadership.world import CALL_SECONDS, DRIFT, TIMINGS, Node, World
from threadmill_sa.model.lease import Lease

NODES = 3
TTL = TIMINGS.seconds("ttl")
# After the faults: a lease that is held by nobody alive runs out, waiters come within the
# jitter, a cool-down may be under way, and a call that hangs is given up.
LIVENESS_SECONDS = TTL * (1 + TIMINGS.jitter) + TIMINGS.seconds("cooldown") + 4 * CALL_SECONDS

node_numbers = st.integers(0, NODES - 1)
picks = st.integers(0, 10)


class ContenderMachine(RuleBasedStateMachine):
    """Three nodes and one lease; every rule is something that happens to real processes."""

    @initialize(
        rates=st.lists(st.sampled_from([1 - DRIFT, 1.0, 1 + DRIFT]), min_size=3, max_size=3),
        seed=st.integers(0, 1000),
    )
    def begin(self, rates: list[float], seed: int) -> None:
        self.world = World(NODES, random.Random(seed).random)
        self.past: list[Lease] = []
        for node, rate in zip(self.world.nodes, rates, strict=True):
            node.rate = rate

    def _node(self, number: int) -> Node:
        return self.world.nodes[number]

    @rule(number=node_numbers)
    def start(self, number: int) -> None:
        node = self._node(number)
        if node.contender is None or node.contender.stopped:
            node.start()

    @rule(number=node_numbers)
    def crash(self, number: int) -> None:
        self._node(number).crash()

    @rule(number=node_numbers)
    def stop(self, number: int) -> None:
        node = self._node(number)
        node.event(lambda contender: contender.stop(node.local))

    @rule(number=node_numbers)
    def give_up(self, number: int) -> None:
        node = self._node(number)
        node.event(lambda contender: contender.give_up(node.local))

    @rule(number=node_numbers)
    def abandon(self, number: int) -> None:
        node = self._node(number)
        node.event(lambda contender: contender.abandon(node.local))

    @rule(number=node_numbers)
    def resign(self, number: int) -> None:
        node = self._node(number)
        node.event(lambda contender: contender.resign(node.local))

    @rule(number=node_numbers)
    def hint(self, number: int) -> None:
        node = self._node(number)
        node.event(lambda contender: contender.hint(node.local))

    @rule(number=node_numbers)
    def work_ends(self, number: int) -> None:
        self._node(number).drain()

    @rule(number=node_numbers)
    def pause(self, number: int) -> None:
        self._node(number).paused = True

    @rule(number=node_numbers)
    def resume(self, number: int) -> None:
        node = self._node(number)
        node.paused = False
        node.look()

    @rule(number=node_numbers)
    def cut(self, number: int) -> None:
        self._node(number).cut = True

    @rule(number=node_numbers)
    def heal(self, number: int) -> None:
        self._node(number).cut = False

    @rule(number=node_numbers, pick=picks)
    def call_arrives(self, number: int, pick: int) -> None:
        node = self._node(number)
        if node.calls:
            node.arrive(node.calls[pick % len(node.calls)])

    @rule(number=node_numbers, pick=picks, lost=st.booleans())
    def reply_comes(self, number: int, pick: int, lost: bool) -> None:
        node = self._node(number)
        if node.calls:
            node.answer(node.calls[pick % len(node.calls)], lost=lost)

    @rule()
    def network_works(self) -> None:
        self.world.serve()

    @rule(seconds=st.sampled_from([0.5, 2.0, 2.4]))
    def network_is_slow(self, seconds: float) -> None:
        """What is on the way is applied at once, and answered later than a margin."""
        flights = [(node, flight) for node in self.world.nodes for flight in node.calls]
        for node, flight in flights:
            node.arrive(flight)
        self.world.advance(seconds)
        for node, flight in flights:
            node.answer(flight)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 12.0, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def all_is_well(self, seconds: float) -> None:
        self.world.run_well(seconds)

    @precondition(lambda self: self.past)
    @rule(pick=picks)
    def fenced_write(self, pick: int) -> None:
        self.world.write_fenced(self.past[-1 - pick % len(self.past)])

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            for node in self.world.nodes:
                self.past += [t.lease for t in node.terms if t.lease not in self.past]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for node in self.world.nodes:
            node.paused = node.cut = False
        eligible = [n for n in self.world.nodes if n.contender and not n.contender.stopped]
        eligible = [n for n in eligible if not n.contender._stopping]  # type: ignore[union-attr]
        begun = sum(len(node.terms) for node in self.world.nodes)
        self.world.run_well(LIVENESS_SECONDS)
        if eligible and not any(node.grant for node in eligible):
            assert sum(len(node.terms) for node in self.world.nodes) > begun
        for node in self.world.nodes:
            gaps = [b - a for a, b in zip(node.attempts, node.attempts[1:], strict=False)]
            assert all(gap > 0.049 for gap in gaps)


def _search(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ContenderMachine,
        settings=settings(max_examples=examples, stateful_step_count=steps),
    )


def test_no_two_leaders_and_always_one_again() -> None:
    _search(60, 40)


@pytest.mark.long
def test_no_two_leaders_and_always_one_again_in_a_large_search() -> None:
    _search(1500, 60)


def test_when_the_clock_of_the_store_jumps_two_may_lead_and_only_the_newer_one_writes() -> None:
    world = World(2)
    first, second = world.nodes
    first.start()
    world.run_well(1.0)
    old = first.grant
    assert old is not None

    world.clock.advance(TTL)  # for the store alone: no other clock has moved
    second.start()
    world.serve()

    new = second.grant
    assert new is not None
    assert first.grant is old  # it cannot know, and no clock of its own says so
    assert new.lease.term == old.lease.term + 1
    assert world.write_fenced(new.lease)
    assert not world.write_fenced(old.lease)
    for _ in range(20):
        world.serve()
        for node in world.nodes:
            node.local += 1.0
            node.look()
    assert old.reason is not None  # its next renewal tells


def test_when_the_clock_of_the_store_jumps_back_the_lease_only_lasts_longer() -> None:
    world = World(2)
    first, second = world.nodes
    first.start()
    world.run_well(1.0)
    second.start()
    world.serve()

    world.clock.set(world.clock.now() - timedelta(seconds=TTL))
    world.run_well(3 * TTL)

    assert first.grant is not None
    assert second.grant is None
