"""Registering and deleting recurring tasks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from threadmill_sa.model import limits
from threadmill_sa.model.recurring import (
    MissedRunPolicy,
    RegisterOutcome,
)
from threadmill_sa.model.trigger import Cron, Every, TriggerKind
from threadmill_sa.spi.recurring import Plan, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    daily,
    new_task,
    run_all,
    seconds,
    tick,
    view,
)

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class RegisterSuite:
    def test_a_new_task_is_stored_with_all_it_was_given(self, store: JobStore) -> None:
        anchor = T0 - seconds(HOUR)
        task = new_task(
            "r\u00e4port",
            Every(seconds=90.5, anchor=anchor),
            handler="report",
            payload='{"a":"\u00e4"}',
            queue="slow",
            priority=-3,
            missed_run_policy=MissedRunPolicy.CATCH_UP,
            timeout_seconds=2.5,
            max_attempts=9,
        )

        assert store.recurring.register(task, now=T0) is RegisterOutcome.CREATED

        found = view(store, "r\u00e4port")
        assert (found.trigger_kind, found.trigger_value) == (TriggerKind.INTERVAL, "90.5")
        assert (found.zone, found.handler, found.payload) == ("UTC", "report", task.payload)
        assert (found.queue, found.priority) == ("slow", -3)
        assert found.missed_run_policy is MissedRunPolicy.CATCH_UP
        assert (found.timeout_seconds, found.max_attempts, found.enabled) == (2.5, 9, True)
        assert (found.anchor_at, found.created_at, found.updated_at) == (anchor, T0, T0)
        assert (found.last_run_at, found.last_run_job_id, found.in_flight_job_id) == (None,) * 3
        assert (found.broken_reason, found.broken_at) == (None, None)
        assert (found.nudge_requested_at, found.nudge_revisions) == (None, frozenset())

    def test_the_first_run_is_the_next_fire_and_never_the_registration(
        self, store: JobStore, plan: Plan
    ) -> None:
        midnight = T0.replace(hour=0, minute=0, second=0, microsecond=0) + seconds(DAY)
        store.recurring.register(new_task(trigger=daily(0)), now=midnight - seconds(300))

        [early] = store.recurring.materialize(["pump"], plan, now=midnight - seconds(1))
        [due] = store.recurring.materialize(["pump"], plan, now=midnight)

        assert (early.result, due.result) == (TickResult.IDLE, TickResult.MATERIALIZED)

    def test_an_interval_without_an_anchor_starts_at_its_registration(
        self, store: JobStore
    ) -> None:
        store.recurring.register(new_task(), now=T0)

        assert (view(store).anchor_at, view(store).next_run_at) == (T0, T0 + seconds(600))

    def test_a_fire_on_a_far_leap_day_is_kept_and_runs_on_it(
        self, store: JobStore, plan: Plan
    ) -> None:
        just_after = datetime(2096, 2, 29, 0, 0, 1, tzinfo=UTC)
        leap_day = datetime(2104, 2, 29, tzinfo=UTC)  # 2100 has none
        store.recurring.register(new_task(trigger=Cron("0 0 29 2 *")), now=just_after)
        assert view(store).next_run_at == leap_day

        early = tick(store, plan, leap_day - timedelta(microseconds=1))
        due = tick(store, plan, leap_day)

        assert (early.result, due.result) == (TickResult.IDLE, TickResult.MATERIALIZED)
        assert [job.fire_time for job in due.jobs] == [leap_day]
        assert view(store).next_run_at == datetime(2108, 2, 29, tzinfo=UTC)

    def test_a_task_created_in_pause_has_no_next_run(self, store: JobStore) -> None:
        store.recurring.register(new_task(enabled=False), now=T0)

        assert (view(store).enabled, view(store).next_run_at) == (False, None)

    def test_the_same_registration_again_writes_nothing(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        before = view(store)

        again = store.recurring.register(new_task(), now=T0 + seconds(300))

        assert again is RegisterOutcome.UNCHANGED
        assert view(store) == before

    def test_a_restart_keeps_an_overdue_fire(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)

        store.recurring.register(new_task(), now=T0 + seconds(HOUR))

        assert view(store).next_run_at == T0 + seconds(600)

    def test_a_restart_after_the_clock_stepped_back_repeats_no_fire(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        tick(store, plan, T0 + seconds(600))

        store.recurring.register(new_task(), now=T0 + seconds(1))

        assert view(store).next_run_at == T0 + seconds(1200)

    def test_weekly_work_survives_a_deploy_every_six_hours(
        self, store: JobStore, plan: Plan
    ) -> None:
        ran = []
        for hours in range(0, 8 * 24 + 1, 6):
            at = T0 + seconds(hours * HOUR)
            store.recurring.register(new_task(trigger=Every(days=7)), now=at)
            for done in store.recurring.materialize(["pump"], plan, now=at):
                ran += [hours] * len(done.jobs)
            run_all(store, at=at)

        assert ran == [7 * 24]

    def test_an_edit_keeps_schedule_epoch_and_history_of_runs(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))
        before = view(store)
        edited = new_task(payload="1", queue="other", priority=2, handler="new")

        done = store.recurring.register(edited, now=T0 + seconds(700))

        assert done is RegisterOutcome.UPDATED
        expected = replace(
            before,
            payload="1",
            queue="other",
            priority=2,
            handler="new",
            updated_at=T0 + seconds(700),
        )
        assert view(store) == expected

    def test_an_edit_that_leaves_out_an_option_takes_it_away(self, store: JobStore) -> None:
        store.recurring.register(new_task(timeout_seconds=5.0, max_attempts=2), now=T0)

        store.recurring.register(new_task(), now=T0)

        assert (view(store).timeout_seconds, view(store).max_attempts) == (None, None)

    def test_another_timing_moves_a_future_fire(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)

        store.recurring.register(new_task(trigger=Every(minutes=4)), now=T0 + seconds(300))

        assert view(store).next_run_at == T0 + seconds(480)  # on the grid of the old anchor

    def test_another_timing_keeps_an_overdue_fire(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        late = T0 + seconds(601)

        store.recurring.register(new_task(trigger=Every(hours=2)), now=late)

        assert view(store).next_run_at == T0 + seconds(600)
        [done] = store.recurring.materialize(["pump"], plan, now=late)
        assert done.result is TickResult.MATERIALIZED
        assert view(store).next_run_at == T0 + seconds(2 * HOUR)

    def test_two_releases_that_alternate_do_not_starve_the_task(
        self, store: JobStore, plan: Plan
    ) -> None:
        triggers = Every(minutes=30), Every(minutes=20)
        runs = 0
        for turn in range(6 * 12):
            at = T0 + seconds(turn * 5 * MINUTE)
            store.recurring.register(new_task(trigger=triggers[turn % 2]), now=at)
            [done] = store.recurring.materialize(["pump"], plan, now=at)
            runs += len(done.jobs)
            run_all(store, at=at)

        assert 12 <= runs <= 18  # what each of the two alone would give

    def test_a_pause_outlives_every_registration(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        store.recurring.register(new_task(payload="1"), now=T0 + seconds(60))
        store.recurring.register(new_task(trigger=Every(minutes=1)), now=T0 + seconds(120))

        assert (view(store).enabled, view(store).next_run_at) == (False, None)

    def test_an_explicit_anchor_takes_the_place_of_the_stored_one(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        anchor = T0 + seconds(7)

        store.recurring.register(new_task(trigger=Every(minutes=10, anchor=anchor)), now=T0)
        assert view(store).next_run_at == T0 + seconds(607)

        store.recurring.register(new_task(), now=T0)
        assert view(store).anchor_at == anchor

    def test_a_pending_nudge_survives_registrations(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        revision = store.recurring.request_cron_nudge("pump", now=T0).revision

        store.recurring.register(new_task(), now=T0)
        store.recurring.register(new_task(trigger=Every(minutes=1), payload="1"), now=T0)

        assert view(store).nudge_revisions == {revision}

    def test_a_stored_trigger_that_nobody_can_read_is_marked_broken(self, store: JobStore) -> None:
        bad = new_task(trigger_kind=TriggerKind.CRON, trigger_value="61 * * * *")

        store.recurring.register(bad, now=T0)

        found = view(store)
        assert (found.next_run_at, found.broken_at) == (None, T0)
        assert found.broken_reason
        assert found.trigger_value == "61 * * * *"

    def test_another_timing_mends_a_broken_task(self, store: JobStore) -> None:
        bad = new_task(
            trigger_kind=TriggerKind.CRON, trigger_value="61 * * * *", timing_fingerprint="bad"
        )
        store.recurring.register(bad, now=T0)

        store.recurring.register(new_task(trigger=Cron("30 12 * * *")), now=T0)

        found = view(store)
        assert (found.broken_reason, found.broken_at) == (None, None)
        assert found.next_run_at == T0.replace(minute=30, second=0, microsecond=0)

    def test_tasks_are_listed_by_the_code_points_of_their_names(self, store: JobStore) -> None:
        names = ["a b", "B", "a", "\u00e4", "a-b", "_a", "\U0001f9f5", "b" * limits.NAME_MAX_CHARS]
        for name in names:
            store.recurring.register(new_task(name), now=T0)

        assert [task.name for task in store.recurring.list()] == sorted(names)
        assert store.recurring.list()[1] == view(store, sorted(names)[1])

    def test_an_unknown_task_is_none(self, store: JobStore) -> None:
        assert store.recurring.get("pump") is None
        assert store.recurring.list() == []


class DeleteSuite:
    def test_a_deleted_task_is_gone(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)

        assert store.recurring.delete("pump") is True

        assert store.recurring.get("pump") is None
        later = T0 + seconds(HOUR)
        assert store.recurring.nominate(after=None, limit=10, now=later) == []
        [done] = store.recurring.materialize(["pump"], plan, now=later)
        assert done.result is TickResult.UNKNOWN_TASK

    def test_deleting_an_unknown_task_says_so(self, store: JobStore) -> None:
        assert store.recurring.delete("pump") is False

    def test_other_tasks_stay(self, store: JobStore) -> None:
        for name in ("a", "b"):
            store.recurring.register(new_task(name), now=T0)
            store.recurring.request_cron_nudge(name, now=T0)
        before = view(store, "b")

        store.recurring.delete("a")

        assert store.recurring.list() == [before]

    def test_jobs_of_a_deleted_task_still_run(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))

        store.recurring.delete("pump")

        assert [job.cron_task_name for job in run_all(store)] == ["pump"]

    def test_a_new_registration_is_a_new_epoch_with_a_new_schedule(self, store: JobStore) -> None:
        epochs = set()
        for turn in range(3):
            at = T0 + seconds(turn)
            store.recurring.register(new_task(), now=at)
            found = view(store)
            epochs.add(found.epoch)
            assert (found.created_at, found.next_run_at) == (at, at + seconds(600))
            store.recurring.delete("pump")

        assert len(epochs) == 3

    def test_an_instance_of_an_earlier_registration_holds_the_guard(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))
        store.recurring.delete("pump")
        store.recurring.register(new_task(), now=T0)

        [held] = store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))
        run_all(store)
        [done] = store.recurring.materialize(["pump"], plan, now=T0 + seconds(600))

        assert (held.result, done.result) == (TickResult.HELD, TickResult.MATERIALIZED)
