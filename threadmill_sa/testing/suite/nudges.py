"""The promises of a nudge, N1 to N6, one interleaving at a time."""

from __future__ import annotations

import pytest

from threadmill_sa.model.job import NewJob
from threadmill_sa.model.nudge import ClearOutcome, NudgeVerdict
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.spi.recurring import Plan, TaskPlan, TaskReading, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    WithPump,
    claim,
    compacting,
    daily,
    instances,
    new_node,
    new_task,
    nudge,
    outcome,
    run_all,
    seconds,
    tick,
    view,
)

ACCEPTED = NudgeVerdict.ACCEPTED
DUE = T0 + seconds(600)


class NudgeSuite(WithPump):
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

        made: list[NewJob] = []
        for _ in range(10):
            made += tick(store, plan, DUE).jobs
            run_all(store, at=DUE)

        assert len(made) == 1

    def test_n2_a_nudge_after_the_follow_up_began_gives_one_more(
        self, store: JobStore, plan: Plan
    ) -> None:
        node = new_node()
        made: list[int] = []
        for _ in range(3):  # The run, its follow-up, and the one for the nudge during that.
            nudge(store)
            made.append(len(tick(store, plan).jobs))
            [running] = claim(store, node)
            if len(made) < 3:
                nudge(store)
            store.jobs.finish(node, [outcome(running)], now=T0)

        assert made == [1, 1, 1]
        assert tick(store, plan).result is TickResult.IDLE

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
        for at in (T0, T0 + seconds(1), T0 + seconds(2)):
            nudge(store, at)
        before = view(store)

        tick(store, compacting)

        after = view(store)
        assert len(after.nudge_revisions) == 1
        assert after.nudge_requested_at == before.nudge_requested_at
        if len(before.nudge_revisions) > 1:  # A single one may stay as it is.
            assert after.nudge_revisions.isdisjoint(before.nudge_revisions)
        assert tick(store, plan).result is TickResult.MATERIALIZED
        assert view(store).nudge_revisions == frozenset()

    def test_of_several_requests_the_earliest_is_shown(self, store: JobStore) -> None:
        for at in (T0 + seconds(1), T0 + seconds(0.5), T0 + seconds(2)):
            nudge(store, at)

        assert view(store).nudge_requested_at == T0 + seconds(0.5)

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

    @pytest.mark.parametrize("resumed", [False, True])
    def test_n5_a_nudged_task_that_was_paused_is_not_nominated(
        self, store: JobStore, *, resumed: bool
    ) -> None:
        nudge(store)
        store.recurring.set_enabled("pump", enabled=False, now=T0)
        if resumed:
            store.recurring.set_enabled("pump", enabled=True, now=T0)

        assert store.recurring.nominate(after=None, limit=9, now=T0) == []

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

    @pytest.mark.parametrize("again", [False, True])
    def test_n6_a_deleted_task_with_a_nudge_is_not_nominated(
        self, store: JobStore, *, again: bool
    ) -> None:
        nudge(store)
        store.recurring.delete("pump")
        if again:
            store.recurring.register(new_task(), now=T0)

        assert store.recurring.nominate(after=None, limit=9, now=T0) == []

    def test_n6_an_observation_of_a_dead_registration_clears_nothing(
        self, store: JobStore
    ) -> None:
        old = nudge(store)
        store.recurring.delete("pump")
        store.recurring.register(new_task(), now=T0)
        new = nudge(store)

        assert store.recurring.clear_cron_nudge("pump", frozenset({old})) is ClearOutcome.ABSENT
        assert view(store).nudge_revisions == {new}
