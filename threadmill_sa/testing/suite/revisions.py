"""The identity of an acceptance: its revision, and what clearing by it does."""

from __future__ import annotations

import pytest

from threadmill_sa.model import limits
from threadmill_sa.model.nudge import ClearOutcome, NudgeVerdict
from threadmill_sa.spi.recurring import Plan, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    WithPump,
    compacting,
    insert,
    new_task,
    nudge,
    one_instance,
    seconds,
    tick,
    view,
)

ACCEPTED = NudgeVerdict.ACCEPTED
DUE = T0 + seconds(600)


class RevisionSuite(WithPump):
    def test_acceptances_at_one_instant_are_told_apart(self, store: JobStore) -> None:
        revisions = [nudge(store) for _ in range(20)]

        assert len(set(revisions)) == 20

    def test_a_revision_is_never_used_again(self, store: JobStore) -> None:
        revisions = [nudge(store)]
        tick(store, one_instance)
        revisions.append(nudge(store))
        store.recurring.clear_cron_nudge("pump", frozenset(revisions))
        revisions.append(nudge(store))
        store.recurring.delete("pump")
        store.recurring.register(new_task(), now=T0)
        revisions.append(nudge(store))

        assert len(set(revisions)) == 4

    def test_revisions_grow_where_the_store_orders_them(self, store: JobStore) -> None:
        revisions = [nudge(store) for _ in range(5)]

        if store.capabilities.ordered_revisions:
            assert revisions == sorted(revisions)

    def test_what_was_observed_is_cleared(self, store: JobStore, plan: Plan) -> None:
        revisions = {nudge(store) for _ in range(3)}

        cleared = store.recurring.clear_cron_nudge("pump", frozenset(revisions))

        assert cleared is ClearOutcome.CLEARED
        assert view(store).nudge_revisions == frozenset()
        assert tick(store, plan).result is TickResult.IDLE

    def test_a_newer_acceptance_is_never_cleared(self, store: JobStore) -> None:
        old = nudge(store)
        new = nudge(store)

        store.recurring.clear_cron_nudge("pump", frozenset({old}))

        assert view(store).nudge_revisions == {new}

    def test_an_older_acceptance_that_was_not_observed_is_not_cleared(
        self, store: JobStore
    ) -> None:
        nudge(store)
        new = nudge(store)
        pending = view(store).nudge_revisions

        store.recurring.clear_cron_nudge("pump", frozenset({new}))

        assert view(store).nudge_revisions == pending - {new}

    def test_what_a_compaction_made_is_cleared_by_its_own_revision_only(
        self, store: JobStore
    ) -> None:
        for _ in range(2):
            nudge(store)
        before = view(store).nudge_revisions
        tick(store, compacting)
        after = view(store).nudge_revisions

        if before != after:
            assert store.recurring.clear_cron_nudge("pump", before) is ClearOutcome.ABSENT
        assert view(store).nudge_revisions == after
        assert store.recurring.clear_cron_nudge("pump", after) is ClearOutcome.CLEARED

    @pytest.mark.parametrize("observed", [frozenset(), frozenset({2**62})])
    def test_clearing_what_is_not_pending_is_absent(
        self, store: JobStore, observed: frozenset[int]
    ) -> None:
        revision = nudge(store)

        assert store.recurring.clear_cron_nudge("pump", observed) is ClearOutcome.ABSENT
        assert view(store).nudge_revisions == {revision}

    def test_clearing_twice_is_absent(self, store: JobStore) -> None:
        observed = frozenset({nudge(store)})
        store.recurring.clear_cron_nudge("pump", observed)

        assert store.recurring.clear_cron_nudge("pump", observed) is ClearOutcome.ABSENT

    def test_clearing_an_unknown_task_is_absent(self, store: JobStore) -> None:
        cleared = store.recurring.clear_cron_nudge("nobody", frozenset({1}))

        assert cleared is ClearOutcome.ABSENT

    def test_the_revision_of_another_task_is_not_cleared(self, store: JobStore) -> None:
        store.recurring.register(new_task("other"), now=T0)
        nudge(store)
        foreign = nudge(store, name="other")

        cleared = store.recurring.clear_cron_nudge("pump", frozenset({foreign}))

        assert cleared is ClearOutcome.ABSENT
        assert view(store, "other").nudge_revisions == {foreign}

    def test_a_blanket_write_of_the_state_touches_no_nudge(
        self, store: JobStore, plan: Plan
    ) -> None:
        revision = nudge(store)
        insert(store, cron_task_name="pump")

        tick(store, plan, DUE)
        store.recurring.register(new_task(payload="9"), now=DUE)

        assert view(store).nudge_revisions == {revision}

    def test_a_nudge_reaches_its_own_task_only(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task("Pump"), now=T0)
        nudge(store)

        done = store.recurring.materialize(["Pump", "pump"], plan, now=T0)

        results = {each.name: each.result for each in done}
        assert results == {"Pump": TickResult.IDLE, "pump": TickResult.MATERIALIZED}

    @pytest.mark.parametrize("name", ["it's %s", 'a"b;--', "\U0001f9f5", "a:b", "%(name)s"])
    def test_any_accepted_name_can_be_nudged(self, store: JobStore, name: str) -> None:
        store.recurring.register(new_task(name), now=T0)

        revision = nudge(store, name=name)

        assert view(store, name).nudge_revisions == {revision}

    def test_an_overlong_name_is_unknown_and_no_error(self, store: JobStore) -> None:
        name = "x" * (limits.NAME_MAX_CHARS * 100)

        answer = store.recurring.request_cron_nudge(name, now=T0)

        assert answer.verdict is NudgeVerdict.UNKNOWN_TASK

    def test_verdicts_tell_what_a_nudge_would_be_told(self, store: JobStore) -> None:
        store.recurring.register(new_task("paused", enabled=False), now=T0)

        verdicts = store.recurring.task_verdicts(["pump", "paused", "nobody", "pump"])

        assert dict(verdicts) == {
            "pump": ACCEPTED,
            "paused": NudgeVerdict.DISABLED,
            "nobody": NudgeVerdict.UNKNOWN_TASK,
        }
        assert dict(store.recurring.task_verdicts([])) == {}
        assert view(store).nudge_revisions == frozenset()

    def test_a_sweep_takes_no_living_nudge(self, store: JobStore) -> None:
        store.recurring.register(new_task("gone"), now=T0)
        nudge(store, name="gone")
        store.recurring.delete("gone")
        revision = nudge(store)

        store.recurring.sweep_nudges(limit=100)

        assert view(store).nudge_revisions == {revision}
        assert store.recurring.sweep_nudges(limit=100) == 0
