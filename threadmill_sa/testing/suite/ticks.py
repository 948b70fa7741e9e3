"""Turning fires into jobs: what is planned and written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import limits
from threadmill_sa.model.recurring import CronOrigin, MissedRunPolicy
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import Every
from threadmill_sa.spi.recurring import Plan, TaskOutcome, TaskPlan, TaskReading, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    EDITED,
    T0,
    claim,
    daily,
    ids_of,
    insert,
    instances,
    new_id,
    new_job,
    new_node,
    new_task,
    nudge,
    one_instance,
    only,
    outcome,
    read,
    run_all,
    seconds,
    tick,
    together,
    view,
)

DUE = T0 + seconds(600)
WHOLE = "the batch of a tick is written whole or not at all"
HOUR, DAY = 3600.0, 86_400.0


class FireSuite:
    def test_a_due_task_gets_one_instance_of_its_definition(
        self, store: JobStore, plan: Plan
    ) -> None:
        task = new_task(
            payload="[1]", queue="slow", priority=4, timeout_seconds=2.5, max_attempts=7
        )
        store.recurring.register(task, now=T0)

        done = tick(store, plan, DUE + seconds(1))

        job = only(instances(store), "a due task gets one instance")
        assert ids_of(done.jobs) == [job.id]
        assert (job.handler, job.payload, job.queue) == (task.handler, "[1]", "slow")
        assert (job.priority, job.timeout_seconds, job.max_attempts) == (4, 2.5, 7)
        assert (job.cron_origin, job.fire_time) == (CronOrigin.SCHEDULE, DUE)
        assert (job.state, job.created_at) == (JobState.ENQUEUED, DUE + seconds(1))
        state = view(store)
        assert (state.last_run_at, state.last_run_job_id) == (DUE + seconds(1), job.id)
        assert state.in_flight_job_id == job.id

    def test_a_late_tick_keeps_the_phase(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(trigger=Every(hours=6)), now=T0)

        tick(store, plan, T0 + seconds(7 * HOUR))

        assert view(store).next_run_at == T0 + seconds(12 * HOUR)

    def test_drop_runs_once_for_the_latest_missed_fire(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)

        done = tick(store, plan, T0 + seconds(6001))

        job = only(done.jobs, "DROP runs once, however many fires were missed")
        assert job.fire_time == T0 + seconds(6000)
        assert view(store).next_run_at == T0 + seconds(6600)

    @pytest.mark.parametrize("policy", list(MissedRunPolicy))
    def test_an_outage_of_years_at_a_millisecond_costs_no_more(
        self, store: JobStore, plan: Plan, policy: MissedRunPolicy
    ) -> None:
        task = new_task(trigger=Every(seconds=0.001), missed_run_policy=policy)
        store.recurring.register(task, now=T0)

        done = tick(store, plan, T0 + seconds(10 * 365 * DAY))

        expected = 1 if policy is MissedRunPolicy.DROP else limits.CATCH_UP_MAX
        assert len(done.jobs) == expected

    def test_catch_up_runs_once_per_missed_fire(self, store: JobStore, plan: Plan) -> None:
        task = new_task(trigger=daily(0), missed_run_policy=MissedRunPolicy.CATCH_UP)
        store.recurring.register(task, now=T0)
        midnight = T0.replace(hour=0, minute=0, second=0, microsecond=0)

        tick(store, plan, T0 + seconds(3 * DAY))

        fires = [midnight + seconds(day * DAY) for day in (1, 2, 3)]
        assert [job.fire_time for job in instances(store)] == fires
        assert view(store).next_run_at == midnight + seconds(4 * DAY)

    def test_catch_up_goes_on_when_all_of_a_batch_have_ended(
        self, store: JobStore, plan: Plan
    ) -> None:
        task = new_task(missed_run_policy=MissedRunPolicy.CATCH_UP)
        store.recurring.register(task, now=T0)
        backlog = limits.CATCH_UP_MAX + 3
        at = T0 + seconds(600 * backlog)
        node = new_node()

        first = tick(store, plan, at)
        *most, last = claim(store, node)
        store.jobs.finish(node, [outcome(job) for job in most], now=at)
        waits = tick(store, plan, at)
        store.jobs.finish(node, [outcome(last)], now=at)
        rest = tick(store, plan, at)

        assert [len(each.jobs) for each in (first, waits, rest)] == [limits.CATCH_UP_MAX, 0, 3]
        assert waits.result is TickResult.HELD
        fires = [job.fire_time for job in (*first.jobs, *rest.jobs)]
        assert fires == [T0 + seconds(600 * turn) for turn in range(1, backlog + 1)]
        assert view(store).next_run_at == at + seconds(600)

    def test_a_clock_that_steps_back_fires_no_instant_twice(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)

        early = tick(store, plan, DUE - seconds(0.01))
        done = tick(store, plan, DUE)
        run_all(store)
        back = tick(store, plan, DUE - seconds(0.2))
        again = tick(store, plan, DUE)

        results = [each.result for each in (early, done, back, again)]
        assert results.count(TickResult.MATERIALIZED) == 1, "no instant fires twice"
        assert done.result is TickResult.MATERIALIZED

    def test_a_disabled_task_gets_no_instance(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        assert tick(store, plan, DUE).result is TickResult.DISABLED
        assert instances(store) == [], "a paused task makes no instance"

    def test_an_edit_after_the_nomination_counts(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        assert store.recurring.nominate(after=None, limit=9, now=DUE) == ["pump"]
        store.recurring.register(new_task(handler="newer", payload="2"), now=DUE)

        tick(store, plan, DUE)

        job = only(instances(store), "a due task gets one instance")
        assert (job.handler, job.payload) == ("newer", "2"), EDITED

    def test_an_edit_after_a_run_counts_for_the_next(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(payload="1"), now=T0)
        tick(store, plan, DUE)
        run_all(store, at=DUE)
        store.recurring.register(new_task(handler="newer", payload="2"), now=DUE)
        nudge(store, DUE)

        done = tick(store, plan, DUE)

        job = read(store, only(done.jobs, "a nudge is followed by one run").id)
        assert (job.handler, job.payload) == ("newer", "2"), EDITED

    def test_two_ticks_at_once_never_fire_twice(self, store: JobStore, plan: Plan) -> None:
        names = [f"task-{number}" for number in range(5)]
        for name in names:
            store.recurring.register(new_task(name), now=T0)

        for turn in range(1, 11):
            at = T0 + seconds(600 * turn)

            def both(at: datetime = at) -> list[TaskOutcome]:
                return store.recurring.materialize(names, plan, now=at)

            first, second = together(both, both)

            made = [job for each in (*first, *second) for job in each.jobs]
            fired = sorted(job.cron_task_name or "" for job in made)
            assert fired == names, "two ticks at once fire each task once"
            run_all(store, at=at)


class CommitSuite:
    """The batch of a tick is written whole or not at all."""

    def test_there_is_one_outcome_per_name_by_name(self, store: JobStore) -> None:
        for name in ("b", "a"):
            store.recurring.register(new_task(name), now=T0)

        done = store.recurring.materialize(["b", "nobody", "a"], _idle, now=T0)

        assert [(each.name, each.result) for each in done] == [
            ("a", TickResult.IDLE),
            ("b", TickResult.IDLE),
            ("nobody", TickResult.UNKNOWN_TASK),
        ]

    def test_the_plan_reads_what_is_stored(self, store: JobStore) -> None:
        store.recurring.register(new_task(payload="1"), now=T0)
        store.recurring.request_cron_nudge("pump", now=T0 + seconds(1))
        seen: list[TaskReading] = []

        def look(reading: TaskReading) -> TaskPlan:
            seen.append(reading)
            return TaskPlan(TickResult.IDLE)

        store.recurring.materialize(["pump"], look, now=T0 + seconds(2))

        reading = seen[-1]
        found = view(store)
        assert (reading.task.name, reading.task.payload) == ("pump", "1")
        assert (reading.task.epoch, reading.task.anchor_at) == (found.epoch, T0)
        assert (reading.state.next_run_at, reading.unfinished) == (DUE, False)
        assert reading.state.timing_fingerprint == new_task().timing_fingerprint
        assert reading.pending is not None
        assert (reading.pending.count, reading.pending.requested_at) == (1, T0 + seconds(1))
        assert reading.now == T0 + seconds(2)

    def test_a_plan_without_a_state_leaves_it(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        before = view(store)

        store.recurring.materialize(["pump"], _idle, now=DUE)

        assert view(store) == before

    def test_every_field_of_the_state_is_written(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        last, current = new_id(), new_id()

        def all_fields(reading: TaskReading) -> TaskPlan:
            state = replace(
                reading.state,
                next_run_at=None,
                last_run_at=T0 + seconds(1),
                last_run_job_id=last,
                in_flight_job_id=current,
                broken_reason="\u00e4" * 300,
                broken_at=T0 + seconds(2),
            )
            return TaskPlan(TickResult.BROKEN, state=state)

        done = tick(store, all_fields)

        found = view(store)
        assert (found.next_run_at, found.last_run_at) == (None, T0 + seconds(1))
        assert (found.last_run_job_id, found.in_flight_job_id) == (last, current)
        assert (found.broken_reason, found.broken_at) == ("\u00e4" * 300, T0 + seconds(2))
        assert done.broken_reason == found.broken_reason

    def test_a_plan_that_raises_leaves_the_whole_batch_unwritten(self, store: JobStore) -> None:
        for name in ("a", "b", "c"):
            store.recurring.register(new_task(name), now=T0)
            store.recurring.request_cron_nudge(name, now=T0)
        before = store.recurring.list()

        def fails_late(reading: TaskReading) -> TaskPlan:
            if reading.task.name == "c":
                raise ZeroDivisionError
            return one_instance(reading)

        with pytest.raises(ZeroDivisionError):
            store.recurring.materialize(["a", "b", "c"], fails_late, now=DUE)

        assert store.recurring.list() == before, WHOLE
        assert store.jobs.list() == [], WHOLE

    def test_a_stored_job_id_leaves_the_whole_batch_unwritten(self, store: JobStore) -> None:
        [stored] = insert(store)
        for name in ("a", "b"):
            store.recurring.register(new_task(name), now=T0)
            store.recurring.request_cron_nudge(name, now=T0)
        before = store.recurring.list()

        def collides(reading: TaskReading) -> TaskPlan:
            plan = one_instance(reading)
            job = new_job(id=stored.id) if reading.task.name == "b" else plan.jobs[0]
            return replace(plan, jobs=(job,))

        with pytest.raises(StoreInvariantError):
            store.recurring.materialize(["a", "b"], collides, now=DUE)

        assert store.recurring.list() == before, WHOLE
        assert ids_of(store.jobs.list()) == [stored.id], WHOLE
        assert read(store, stored.id).cron_task_name is None

    def test_a_full_batch_is_one_commit(self, store: JobStore, plan: Plan) -> None:
        names = [f"task-{number:03}" for number in range(limits.MATERIALIZE_BATCH)]
        for name in names:
            store.recurring.register(new_task(name), now=T0)

        done = store.recurring.materialize(names, plan, wait=True, now=DUE)

        assert [each.name for each in done if each.jobs] == names
        assert store.jobs.counts()[JobState.ENQUEUED] == len(names)


def _idle(reading: TaskReading) -> TaskPlan:
    del reading
    return TaskPlan(TickResult.IDLE)
