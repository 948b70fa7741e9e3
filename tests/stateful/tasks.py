"""Rules for recurring tasks: releases, operators and ticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, precondition, rule

from tests.stateful.base import NAMES, NODES, definitions
from tests.stateful.jobs import JobRules
from tests.stateful.model import Definition, Expected
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.errors import UnknownTaskError
from threadmill_sa.model.nudge import ClearOutcome
from threadmill_sa.spi.recurring import TaskOutcome, TickResult

Observed = tuple[str, frozenset[int]]


class TaskRules(JobRules):
    nominations: Bundle[list[str]] = Bundle("nominations")  # what a slow tick still means to do
    observations: Bundle[Observed] = Bundle("observations")  # what an operator saw pending

    # Releases.

    @precondition(lambda self: self.free)
    @rule(
        number=NODES,
        names=st.sets(NAMES, min_size=1),
        definition=definitions,
        timed_as_before=st.booleans(),
        cold=st.booleans(),
        enabled=st.sampled_from((True, True, True, False)),
    )
    def deploy(
        self,
        number: int,
        names: set[str],
        definition: Definition,
        *,
        timed_as_before: bool,
        cold: bool,
        enabled: bool,
    ) -> None:
        """A new release replaces a process: new names, or edits of timing, handler and more."""
        declared = dict.fromkeys(sorted(names), definition)
        for name in names & self.model.tasks.keys() if timed_as_before else ():
            known = self.model.tasks[name].definition
            declared[name] = replace(definition, timing=known.timing)
        self.deploy_on(number, declared, cold=cold, enabled=enabled)

    @precondition(lambda self: self.free)
    @rule(number=NODES, killed=st.booleans())
    def start_again(self, number: int, *, killed: bool) -> None:
        """A process of the same release begins, perhaps an older one; it registers its tasks.

        A killed one leaves its jobs behind.
        """
        if killed:
            self.replace_node(number, self.world.connect(), self.nodes[number].declared)
        else:
            self.register_on(number)

    # Operators.

    @precondition(lambda self: self.free)
    @rule(number=NODES, name=NAMES, flips=st.sampled_from(((False,), (True,), (False, True))))
    def set_enabled(self, number: int, name: str, flips: tuple[bool, ...]) -> None:
        """Paused, resumed, or both at once."""
        tm = self.nodes[number].tm
        for enabled in flips:
            task = self.model.tasks.get(name)
            if task is None:
                with pytest.raises(UnknownTaskError):
                    tm.set_enabled(name, enabled)
                continue
            pending = len(self.model.pending(task))
            changed = self.model.set_enabled(name, enabled=enabled, now=self.now)
            assert tm.set_enabled(name, enabled) == changed
            self.count("nudges dropped by a flip", pending if changed else 0)

    @precondition(lambda self: self.free)
    @rule(number=NODES, name=NAMES, again=st.none() | definitions)
    def delete(self, number: int, name: str, again: Definition | None) -> None:
        """Deleted, and perhaps registered again at once."""
        tm = self.nodes[number].tm
        if name in self.model.tasks:
            tm.delete_recurring(name)
            self.model.delete(name)
        else:
            with pytest.raises(UnknownTaskError):
                tm.delete_recurring(name)
        if again is not None:
            self.deploy_on(number, {name: again}, cold=False)

    @precondition(lambda self: self.free)
    @rule(number=NODES, name=NAMES)
    def trigger(self, number: int, name: str) -> None:
        tm = self.nodes[number].tm
        if name not in self.model.tasks:
            with pytest.raises(UnknownTaskError):
                tm.trigger(name)
            return
        self.model.trigger(name, tm.trigger(name), self.now)
        self.count("triggered")

    @rule(target=observations, name=NAMES)
    def observe(self, name: str) -> Observed:
        view = self.nodes[0].store.recurring.get(name)
        return name, frozenset() if view is None else view.nudge_revisions

    @precondition(lambda self: self.free)
    @rule(observed=observations, number=NODES)
    def clear_what_was_observed(self, observed: Observed, number: int) -> None:
        name, revisions = observed
        recurring = self.nodes[number].store.recurring
        before = recurring.get(name)
        outcome = recurring.clear_cron_nudge(name, revisions)
        after = recurring.get(name)
        if before is None or after is None:
            assert outcome is ClearOutcome.ABSENT
            return
        hit = before.nudge_revisions & revisions
        assert after.nudge_revisions == before.nudge_revisions - revisions
        assert outcome is (ClearOutcome.CLEARED if hit else ClearOutcome.ABSENT)
        if hit:
            self.model.clear(name, all_of_them=not after.nudge_revisions)
            self.count("cleared by an operator")

    # Ticks.

    @precondition(lambda self: self.free)
    @rule(number=NODES, freed=st.booleans(), both=st.booleans())
    def tick(self, number: int, *, freed: bool, both: bool) -> None:
        """One pass, or one of each process; perhaps when what stood in the way has been run."""
        if freed:
            self.run_everything(number)
        self.tick_on(number)
        if both:
            self.tick_on(1 - number)

    @rule(target=nominations, number=NODES)
    def nominate(self, number: int) -> list[str]:
        found = self.nodes[number].store.recurring.nominate(after=None, limit=10, now=self.now)
        assert found == self.model.nominated(self.now)
        return found

    @precondition(lambda self: self.free)
    @rule(names=nominations, number=NODES)
    def materialize_what_was_nominated(self, names: list[str], number: int) -> None:
        """A tick that was slow between its hint and its commit: everything is read again."""
        if not names:
            return
        node = self.nodes[number]
        expected = [self.model.expect(name, self.now) for name in sorted(names)]
        done = node.store.recurring.materialize(names, Planner(node.tm._ids), now=self.now)
        self._apply(expected, done)

    def tick_on(self, number: int) -> None:
        expected = [self.model.expect(name, self.now) for name in self.model.nominated(self.now)]
        done = self.nodes[number].tm.tick()
        self._apply(expected, done)

    def _apply(self, expected: Sequence[Expected], done: Sequence[TaskOutcome]) -> None:
        by_name = {outcome.name: outcome for outcome in done}
        assert by_name.keys() == {each.name for each in expected}
        for each in expected:
            outcome = by_name[each.name]
            fires = tuple(job.fire_time for job in outcome.jobs)
            found = (outcome.result, outcome.origin, fires)
            assert found == (each.result, each.origin, each.fires), f"tick of {each.name}"
            self.model.materialize(each, [job.id for job in outcome.jobs], self.now)
            self.count(f"{each.origin} runs" if each.origin else f"tick found {each.result}")
        self.count("ticks without work" if not expected else "ticks with work")
        assert all(each.result is not TickResult.BROKEN for each in expected)
