"""The promises of a nudge, N1 to N6, one interleaving at a time."""

from __future__ import annotations

from datetime import datetime

import pytest

from threadmill_sa.model import limits
from threadmill_sa.model.nudge import ClearOutcome, NudgeVerdict
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.spi.recurring import Plan, TaskOutcome, TaskPlan, TaskReading, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    claim,
    compacting,
    daily,
    insert,
    instances,
    new_node,
    new_task,
    one_instance,
    outcome,
    run_all,
    seconds,
    view,
)

ACCEPTED = NudgeVerdict.ACCEPTED
DUE = T0 + seconds(600)


def nudge(store: JobStore, at: datetime = T0, name: str = "pump") -> int:
    """An accepted nudge's revision."""
    answer = store.recurring.request_cron_nudge(name, now=at)
    assert answer.verdict is ACCEPTED
    assert answer.revision is not None
    return answer.revision


def tick(store: JobStore, plan: Plan, at: datetime = T0) -> TaskOutcome:
    [done] = store.recurring.materialize(["pump"], plan, now=at)
    return done


@pytest.fixture
def pump(store: JobStore) -> None:
    """A task `pump`, every 10 minutes, registered at T0."""
    store.recurring.register(new_task(), now=T0)


@pytest.mark.usefixtures("pump")
class NudgeSuite:
    def test_n1_a_nudge_is_followed_by_a_run(self, store: JobStore, plan: Plan) -> None:
        nudge(store, T0 + seconds(1))

        done = tick(store, plan, T0 + seconds(2))

        [job] = instances(store)
        assert (done.result, done.origin) == (TickResult.MATERIALIZED, CronOrigin.NUDGE)
        assert job.created_at > T0 + seconds(1)
        assert view(store).nudge_revisions == frozenset()

    def test_n1_a_run_in_flight_does_not_count(self, store: JobStore, plan: Plan) -> None:
        nudge(store)
        tick(store, plan)
        node = new_node()
        [running] = claim(store, node)
        nudge(store)

        held = tick(store, plan)
        store.jobs.finish(node, [outcome(running)], now=T0)
        follow_up = tick(store, plan)

        assert (held.result, follow_up.result) == (TickResult.HELD, TickResult.MATERIALIZED)
        assert len(instances(store)) == 2

    def test_n1_a_nudge_after_the_nomination_is_served_by_that_run(
        self, store: JobStore, plan: Plan
    ) -> None:
        assert store.recurring.nominate(after=None, limit=9, now=DUE) == ["pump"]
        nudge(store, DUE)

        tick(store, plan, DUE)

        assert view(store).nudge_revisions == frozenset()
        assert len(instances(store)) == 1

    def test_n2_a_burst_gives_one_run(self, store: JobStore, plan: Plan) -> None:
        for _ in range(50):
            nudge(store)

        results = []
        for _ in range(3):
            results.append(tick(store, plan).result)
            run_all(store)

        assert results == [TickResult.MATERIALIZED, TickResult.IDLE, TickResult.IDLE]

    def test_n2_all_nudges_and_fires_during_a_run_give_one_follow_up(
        self, store: JobStore, plan: Plan
    ) -> None:
        nudge(store)
        tick(store, plan)
        node = new_node()
        [running] = claim(store, node)
        for at in (T0, T0 + seconds(1), DUE):
            nudge(store, at)
            assert {tick(store, plan, at).result for _ in range(5)} == {TickResult.HELD}
        store.jobs.finish(node, [outcome(running)], now=DUE)

        made = []
        for _ in range(10):
            made += tick(store, plan, DUE).jobs
            run_all(store, at=DUE)

        assert len(made) == 1

    def test_n2_a_nudge_after_the_follow_up_began_gives_one_more(
        self, store: JobStore, plan: Plan
    ) -> None:
        nudge(store)
        tick(store, plan)
        claim(store, node := new_node())
        nudge(store)
        nudge(store)
        assert tick(store, plan).result is TickResult.HELD
        [job] = instances(store)
        assert job.owner_node_id == node

    def test_n2_due_and_nudged_at_once_is_one_scheduled_run(
        self, store: JobStore, plan: Plan
    ) -> None:
        nudge(store, DUE)

        done = tick(store, plan, DUE)

        assert (len(done.jobs), done.origin) == (1, CronOrigin.SCHEDULE)
        assert done.jobs[0].fire_time == DUE
        assert view(store).nudge_revisions == frozenset()

    def test_n2_a_failed_commit_consumes_nothing(self, store: JobStore, plan: Plan) -> None:
        revision = nudge(store)

        def fails(reading: TaskReading) -> TaskPlan:
            raise ZeroDivisionError(reading.task.name)

        with pytest.raises(ZeroDivisionError):
            tick(store, fails)

        assert view(store).nudge_revisions == {revision}
        assert tick(store, plan).result is TickResult.MATERIALIZED

    def test_n2_compaction_leaves_one_acceptance_that_counts(
        self, store: JobStore, plan: Plan
    ) -> None:
        first = nudge(store, T0)
        revisions = {first, *(nudge(store, T0 + seconds(1)) for _ in range(3))}
        earliest = view(store).nudge_requested_at

        tick(store, compacting)

        after = view(store)
        assert len(after.nudge_revisions) == 1
        assert after.nudge_revisions.isdisjoint(revisions)
        assert after.nudge_requested_at == earliest
        assert tick(store, plan).result is TickResult.MATERIALIZED
        assert view(store).nudge_revisions == frozenset()

    def test_n2_compacting_nothing_writes_nothing(self, store: JobStore) -> None:
        before = view(store)

        tick(store, compacting)

        assert view(store) == before

    def test_n3_an_acceptance_is_stored_when_it_is_answered(self, store: JobStore) -> None:
        revision = nudge(store, T0 + seconds(1))

        found = view(store)

        assert found.nudge_revisions == {revision}
        assert found.nudge_requested_at == T0 + seconds(1)
        assert store.recurring.nominate(after=None, limit=9, now=T0) == ["pump"]

    def test_n4_a_nudged_run_leaves_the_schedule_alone(self, store: JobStore, plan: Plan) -> None:
        nudge(store, T0 + seconds(250))

        done = tick(store, plan, T0 + seconds(251))

        assert [job.fire_time for job in done.jobs] == [None]
        assert view(store).next_run_at == DUE
        assert view(store).last_run_at == T0 + seconds(251)
        run_all(store, at=T0 + seconds(252))
        assert tick(store, plan, DUE).origin is CronOrigin.SCHEDULE
        assert view(store).next_run_at == DUE + seconds(600)

    def test_n4_a_nudge_leaves_a_cron_grid_alone(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(trigger=daily(3)), now=T0)
        before = view(store).next_run_at
        nudge(store)

        tick(store, plan)

        assert view(store).next_run_at == before

    def test_n5_an_unknown_task_is_refused(self, store: JobStore) -> None:
        answer = store.recurring.request_cron_nudge("nobody", now=T0)

        assert (answer.verdict, answer.revision) == (NudgeVerdict.UNKNOWN_TASK, None)

    def test_n5_a_paused_task_is_refused(self, store: JobStore) -> None:
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        answer = store.recurring.request_cron_nudge("pump", now=T0)

        assert (answer.verdict, answer.revision) == (NudgeVerdict.DISABLED, None)
        assert view(store).nudge_revisions == frozenset()

    def test_n5_a_nudge_before_a_pause_never_runs_after_it(
        self, store: JobStore, plan: Plan
    ) -> None:
        nudge(store)
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        paused = tick(store, plan)
        store.recurring.set_enabled("pump", enabled=True, now=T0)
        resumed = tick(store, plan)

        assert (paused.result, resumed.result) == (TickResult.DISABLED, TickResult.IDLE)
        assert view(store).nudge_revisions == frozenset()

    def test_n5_a_nudge_after_the_pause_counts(self, store: JobStore, plan: Plan) -> None:
        store.recurring.set_enabled("pump", enabled=False, now=T0)
        store.recurring.set_enabled("pump", enabled=True, now=T0)
        nudge(store)

        assert tick(store, plan).origin is CronOrigin.NUDGE

    def test_n5_a_flip_to_the_same_side_drops_no_nudge(self, store: JobStore) -> None:
        revision = nudge(store)

        store.recurring.set_enabled("pump", enabled=True, now=T0)

        assert view(store).nudge_revisions == {revision}

    def test_n6_a_nudge_of_a_deleted_task_resurrects_nothing(self, store: JobStore) -> None:
        store.recurring.delete("pump")

        answer = store.recurring.request_cron_nudge("pump", now=T0)

        assert answer.verdict is NudgeVerdict.UNKNOWN_TASK
        assert store.recurring.get("pump") is None
        assert store.recurring.list() == []

    def test_n6_a_new_registration_inherits_no_nudge(self, store: JobStore, plan: Plan) -> None:
        nudge(store)
        store.recurring.delete("pump")
        store.recurring.register(new_task(), now=T0)

        assert view(store).nudge_revisions == frozenset()
        assert tick(store, plan).result is TickResult.IDLE

    def test_n6_an_observation_of_a_dead_registration_clears_nothing(
        self, store: JobStore
    ) -> None:
        old = nudge(store)
        store.recurring.delete("pump")
        store.recurring.register(new_task(), now=T0)
        new = nudge(store)

        assert store.recurring.clear_cron_nudge("pump", frozenset({old})) is ClearOutcome.ABSENT
        assert view(store).nudge_revisions == {new}


@pytest.mark.usefixtures("pump")
class NudgeIdentitySuite:
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

    def test_what_a_compaction_made_is_not_what_was_observed(self, store: JobStore) -> None:
        observed = frozenset({nudge(store), nudge(store)})
        tick(store, compacting)

        assert store.recurring.clear_cron_nudge("pump", observed) is ClearOutcome.ABSENT
        assert len(view(store).nudge_revisions) == 1

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
