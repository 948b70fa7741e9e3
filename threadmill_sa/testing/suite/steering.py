"""What operators do to recurring tasks: pausing and triggering."""

from __future__ import annotations

from dataclasses import replace

import pytest

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import NewJob, OutcomeKind
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import (
    CronOrigin,
    CronTask,
    FlipOutcome,
)
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import Plan, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    EDITED,
    HANDLER,
    T0,
    claim_one,
    insert,
    instances,
    new_job,
    new_node,
    new_task,
    outcome,
    read,
    run_all,
    seconds,
    tick,
    view,
)

HOUR = 3600.0


class FlipSuite:
    def test_a_pause_takes_the_next_run_away(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)

        done = store.recurring.set_enabled("pump", enabled=False, now=T0 + seconds(60))

        assert done is FlipOutcome.CHANGED
        assert (view(store).enabled, view(store).next_run_at) == (False, None)

    def test_the_end_of_a_pause_goes_on_along_the_grid(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        done = store.recurring.set_enabled("pump", enabled=True, now=T0 + seconds(6001))

        assert done is FlipOutcome.CHANGED
        assert view(store).next_run_at == T0 + seconds(6600)  # phase kept, nothing caught up

    def test_a_flip_to_the_same_side_writes_nothing(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        before = view(store)

        done = store.recurring.set_enabled("pump", enabled=True, now=T0 + seconds(HOUR))

        assert done is FlipOutcome.UNCHANGED
        assert view(store) == before

    def test_an_unknown_task_is_not_created_by_a_flip(self, store: JobStore) -> None:
        done = store.recurring.set_enabled("pump", enabled=True, now=T0)

        assert done is FlipOutcome.UNKNOWN_TASK
        assert store.recurring.get("pump") is None

    def test_a_flip_keeps_epoch_anchor_and_runs(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))
        before = view(store)

        store.recurring.set_enabled("pump", enabled=False, now=T0 + seconds(601))
        store.recurring.set_enabled("pump", enabled=True, now=T0 + seconds(602))

        after = view(store)
        assert (after.epoch, after.anchor_at) == (before.epoch, before.anchor_at)
        assert (after.last_run_at, after.last_run_job_id) == (
            before.last_run_at,
            before.last_run_job_id,
        )
        assert after.next_run_at == before.next_run_at

    def test_an_instance_made_before_the_pause_still_runs(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))

        store.recurring.set_enabled("pump", enabled=False, now=T0 + seconds(600))

        assert len(run_all(store)) == 1, "a pause takes back no instance"


class TriggerSuite:
    def test_a_manual_instance_is_an_ordinary_job(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        job = self._manual()

        assert store.recurring.trigger("pump", lambda _: job, now=T0 + seconds(1)) == job

        stored = read(store, job.id)
        assert (stored.state, stored.cron_origin) == (JobState.ENQUEUED, CronOrigin.MANUAL)
        assert (stored.created_at, stored.fire_time) == (T0 + seconds(1), None)
        assert view(store).last_run_at == T0 + seconds(1)
        assert view(store).last_run_job_id == job.id

    def test_an_unknown_task_gets_no_job(self, store: JobStore) -> None:
        job = self._manual()

        assert store.recurring.trigger("pump", lambda _: job, now=T0) is None
        assert store.jobs.get(job.id) is None

    def test_neither_guard_nor_pause_stop_it(self, store: JobStore) -> None:
        store.recurring.register(new_task(enabled=False), now=T0)

        for _ in range(2):
            assert store.recurring.trigger("pump", self._manual_of, now=T0) is not None

        assert len(instances(store)) == 2

    def test_schedule_and_nudges_stay(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.request_cron_nudge("pump", now=T0)
        before = view(store)

        store.recurring.trigger("pump", self._manual_of, now=T0)

        after = view(store)
        assert after.next_run_at == before.next_run_at
        assert after.nudge_revisions == before.nudge_revisions, "a trigger takes no nudge"

    def test_a_stored_id_is_refused(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        [stored] = insert(store)

        with pytest.raises(StoreInvariantError):
            store.recurring.trigger(
                "pump", lambda _: replace(self._manual(), id=stored.id), now=T0
            )

        assert view(store).last_run_at is None

    def test_fire_and_nudge_wait_for_a_manual_instance_and_then_run_once(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.trigger("pump", self._manual_of, now=T0)
        node = new_node()
        held = claim_one(store, node)
        due = T0 + seconds(600)
        assert store.recurring.request_cron_nudge("pump", now=due).verdict is NudgeVerdict.ACCEPTED

        waits = tick(store, plan, due)
        store.jobs.finish(node, [outcome(held, OutcomeKind.FAILED)], now=due)
        runs = tick(store, plan, due)
        run_all(store, at=due)
        idle = tick(store, plan, due)

        assert [each.result for each in (waits, runs, idle)] == [
            TickResult.HELD,
            TickResult.MATERIALIZED,
            TickResult.IDLE,
        ], "a manual instance holds back the next, and fire and nudge then share one run"
        assert runs.origin is CronOrigin.SCHEDULE

    def test_it_is_made_of_the_definition_as_it_is_by_then(self, store: JobStore) -> None:
        store.recurring.register(new_task(payload="1"), now=T0)
        store.recurring.delete("pump")
        store.recurring.register(new_task(payload="2", queue="slow"), now=T0)
        seen: list[CronTask] = []

        def make(task: CronTask) -> NewJob:
            seen.append(task)
            return replace(self._manual(), payload=task.payload, queue=task.queue)

        job = store.recurring.trigger("pump", make, now=T0)

        assert job is not None
        stored = read(store, job.id)
        assert (stored.payload, stored.queue) == ("2", "slow"), EDITED
        assert {(each.name, each.epoch) for each in seen} == {("pump", view(store).epoch)}

    def test_an_edit_counts_for_the_next_manual_instance(self, store: JobStore) -> None:
        store.recurring.register(new_task(payload="1"), now=T0)
        store.recurring.trigger("pump", self._manual_of, now=T0)
        store.recurring.register(new_task(handler="newer", payload="2"), now=T0)
        run_all(store)

        job = store.recurring.trigger("pump", self._manual_of, now=T0)

        assert job is not None, "a known task can be triggered"
        stored = read(store, job.id)
        assert (stored.handler, stored.payload) == ("newer", "2"), EDITED

    def _manual_of(self, task: CronTask) -> NewJob:
        return replace(
            self._manual(), cron_task_name=task.name, handler=task.handler, payload=task.payload
        )

    @staticmethod
    def _manual() -> NewJob:
        return new_job(handler=HANDLER, cron_task_name="pump", cron_origin=CronOrigin.MANUAL)
