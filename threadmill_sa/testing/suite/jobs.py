"""Inserting, reading, listing and counting jobs."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import limits
from threadmill_sa.model.job import JobSummary, NewJob, OutcomeKind
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    ids_of,
    insert,
    new_id,
    new_job,
    new_node,
    new_task,
    one_instance,
    outcome,
    read,
    run_all,
    seconds,
    together,
)

LEAP_DAY = datetime(2104, 2, 29, 0, 0, 0, 1, tzinfo=UTC)  # eight years after the one before
LAST_INSTANT = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


class InsertSuite:
    def test_a_job_comes_back_as_it_was_inserted(self, store: JobStore) -> None:
        new = NewJob(
            id=new_id(),
            handler="mail",
            payload='{"to": "a@b"}',
            queue="out",
            priority=7,
            max_attempts=3,
            timeout_seconds=1.5,
            cron_task_name="pump",
            cron_origin=CronOrigin.SCHEDULE,
            fire_time=T0 - seconds(1),
        )

        store.jobs.insert([new], now=T0)

        job = read(store, new.id)
        carried = [each.name for each in fields(NewJob) if each.name not in _NOT_KEPT]
        assert {name: getattr(new, name) for name in carried} == {
            name: getattr(job, name) for name in carried
        }
        assert (job.state, job.created_at, job.state_at) == (JobState.ENQUEUED, T0, T0)
        assert (job.attempt, job.attempt_token, job.owner_node_id) == (0, 0, None)
        assert (job.scheduled_at, job.started_at, job.heartbeat_at) == (None, None, None)
        assert (job.result, dict(job.metadata), job.history) == (None, {}, ())

    def test_a_job_needs_nothing_but_id_and_handler(self, store: JobStore) -> None:
        [new] = insert(store)

        job = read(store, new.id)

        assert (job.payload, job.queue, job.priority, job.timeout_seconds) == (
            None,
            "default",
            0,
            None,
        )
        assert (job.cron_task_name, job.cron_origin, job.fire_time) == (None, None, None)

    def test_an_unknown_job_is_none(self, store: JobStore) -> None:
        assert store.jobs.get(new_id()) is None

    def test_a_stored_id_is_refused_with_its_whole_batch(self, store: JobStore) -> None:
        [stored] = insert(store, payload="1")
        other = new_job()

        with pytest.raises(StoreInvariantError):
            store.jobs.insert([other, new_job(id=stored.id, payload="2")], now=T0)

        assert store.jobs.get(other.id) is None
        assert read(store, stored.id).payload == "1"

    def test_an_id_given_twice_in_one_batch_is_refused(self, store: JobStore) -> None:
        job = new_job()

        with pytest.raises(StoreInvariantError):
            store.jobs.insert([job, job], now=T0)

        assert store.jobs.get(job.id) is None

    def test_the_rest_of_a_refused_batch_can_be_stored_afterwards(self, store: JobStore) -> None:
        [stored] = insert(store)
        rest = [new_job(), new_job()]
        with pytest.raises(StoreInvariantError):
            store.jobs.insert([*rest, stored], now=T0)

        store.jobs.insert(rest, now=T0)

        assert [read(store, job.id).attempt_token for job in rest] == [0, 0]

    def test_an_empty_batch_writes_nothing(self, store: JobStore) -> None:
        store.jobs.insert([], now=T0)

        assert store.jobs.list() == []

    def test_more_jobs_than_one_statement_takes_are_stored_together(self, store: JobStore) -> None:
        jobs = insert(store, limits.INSERT_BATCH_MAX + 1)

        assert store.jobs.counts()[JobState.ENQUEUED] == len(jobs)
        assert read(store, jobs[0].id).created_at == read(store, jobs[-1].id).created_at

    @pytest.mark.parametrize(
        "text",
        [
            '"\U0001f9f5 \u00e4\u0301 \u202e"',
            '"quote \' percent %s %(a)s colon :a backslash \\\\ ?"',
            '{"b":1,"a":[null,true,1e400]}',
            "null",
            '""',
        ],
    )
    def test_payload_text_is_kept_exactly(self, store: JobStore, text: str) -> None:
        [new] = insert(store, payload=text)

        assert read(store, new.id).payload == text

    def test_the_largest_payload_is_kept(self, store: JobStore) -> None:
        text = '"' + "\u00e4" * (limits.PAYLOAD_MAX_BYTES // 2 - 1) + '"'
        [new] = insert(store, payload=text)

        assert read(store, new.id).payload == text

    def test_the_longest_names_are_kept(self, store: JobStore) -> None:
        name = "\U0001f9f5" * limits.NAME_MAX_CHARS
        [new] = insert(store, handler=name, queue=name, cron_task_name=name)

        job = read(store, new.id)

        assert (job.handler, job.queue, job.cron_task_name) == (name, name, name)

    def test_names_are_equal_by_code_points_only(self, store: JobStore) -> None:
        for queue in ("Mail", "mail", "ma\u00efl", "mai\u0308l"):
            insert(store, queue=queue)

        assert store.jobs.queue_depths() == {"Mail": 1, "mail": 1, "ma\u00efl": 1, "mai\u0308l": 1}

    @pytest.mark.parametrize("priority", [limits.PRIORITY_MIN, limits.PRIORITY_MAX])
    def test_extreme_priorities_are_kept(self, store: JobStore, priority: int) -> None:
        [new] = insert(store, priority=priority)

        assert read(store, new.id).priority == priority

    @pytest.mark.parametrize("timeout", [0.1, 1e-3, limits.JOB_TIMEOUT_MAX_SECONDS])
    def test_a_timeout_is_kept_exactly(self, store: JobStore, timeout: float) -> None:
        [new] = insert(store, timeout_seconds=timeout)

        assert read(store, new.id).timeout_seconds == timeout

    def test_batches_over_the_same_queues_in_either_order_all_arrive(
        self, store: JobStore
    ) -> None:
        def produce(*queues: str) -> None:
            for _ in range(10):
                store.jobs.insert([new_job(queue=queue) for queue in queues], now=T0)

        one, other = partial(produce, "a", "b"), partial(produce, "b", "a")
        together(one, other, one, other)

        assert store.jobs.queue_depths() == {"a": 40, "b": 40}

    def test_run_at_makes_a_job_wait_for_its_instant(self, store: JobStore) -> None:
        [new] = insert(store, run_at=T0 + seconds(60))

        job = read(store, new.id)

        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, T0 + seconds(60))

    def test_an_instant_of_another_zone_is_the_same_instant(self, store: JobStore) -> None:
        zone = timezone(timedelta(hours=5, minutes=30))
        [new] = insert(store, run_at=(T0 + seconds(60)).astimezone(zone))

        scheduled_at = read(store, new.id).scheduled_at

        assert scheduled_at is not None
        assert scheduled_at == T0 + seconds(60)
        assert scheduled_at.utcoffset() == timedelta(0)

    @pytest.mark.parametrize("run_at", [LEAP_DAY, LAST_INSTANT])
    def test_a_far_instant_is_kept_and_nothing_runs_before_it(
        self, store: JobStore, run_at: datetime
    ) -> None:
        [new] = insert(store, run_at=run_at)

        promoted = store.jobs.promote(limit=10, now=LEAP_DAY - timedelta(microseconds=1))

        assert promoted == 0
        assert read(store, new.id).scheduled_at == run_at
        [listed] = store.jobs.list(state=JobState.SCHEDULED)
        assert listed.scheduled_at == run_at
        assert store.jobs.promote(limit=10, now=LEAP_DAY) == (1 if run_at == LEAP_DAY else 0)

    def test_a_delay_counts_from_the_insert(self, store: JobStore) -> None:
        [new] = insert(store, delay_seconds=1.25)

        job = read(store, new.id)

        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, T0 + seconds(1.25))

    def test_without_an_instant_the_stores_clock_stamps(self, store: JobStore) -> None:
        first, second = new_job(), new_job()

        store.jobs.insert([first], now=None)
        store.jobs.insert([second], now=None)

        assert T0 < read(store, first.id).created_at <= read(store, second.id).created_at


_NOT_KEPT = {"run_at", "delay_seconds"}  # they become `scheduled_at`


class ListSuite:
    def test_the_newest_come_first_up_to_the_limit(self, store: JobStore) -> None:
        jobs = insert(store, 5)

        listed = store.jobs.list(limit=3)

        assert ids_of(listed) == ids_of(jobs)[:1:-1]

    def test_the_order_is_that_of_ids_and_not_of_inserts(self, store: JobStore) -> None:
        first, second = new_job(), new_job()
        store.jobs.insert([second], now=T0)
        store.jobs.insert([first], now=T0)

        assert ids_of(store.jobs.list()) == [second.id, first.id]

    def test_each_filter_keeps_what_matches(self, store: JobStore) -> None:
        [plain] = insert(store)
        [queued] = insert(store, queue="mail")
        [instance] = insert(store, cron_task_name="pump")
        [later] = insert(store, delay_seconds=5.0)

        assert ids_of(store.jobs.list(queue="mail")) == [queued.id]
        assert ids_of(store.jobs.list(task="pump")) == [instance.id]
        assert ids_of(store.jobs.list(state=JobState.SCHEDULED)) == [later.id]
        assert plain.id in ids_of(store.jobs.list(queue="default"))

    def test_filters_hold_together(self, store: JobStore) -> None:
        [match] = insert(store, queue="mail", cron_task_name="pump")
        insert(store, queue="mail")
        insert(store, cron_task_name="pump")
        insert(store, queue="mail", cron_task_name="pump", delay_seconds=5.0)

        listed = store.jobs.list(state=JobState.ENQUEUED, queue="mail", task="pump")

        assert ids_of(listed) == [match.id]

    def test_nothing_matches_nothing(self, store: JobStore) -> None:
        insert(store)

        assert store.jobs.list(queue="nowhere") == []

    def test_a_summary_tells_what_the_job_tells(self, store: JobStore) -> None:
        [new] = insert(store, cron_task_name="pump", cron_origin=CronOrigin.MANUAL, fire_time=T0)
        claim(store, new_node(), at=T0 + seconds(1))

        [summary] = store.jobs.list()

        job = read(store, new.id)
        for each in fields(JobSummary):
            assert getattr(summary, each.name) == getattr(job, each.name), each.name


class CountSuite:
    """Counts are exact after every operation, folded or not."""

    def test_an_empty_store_counts_every_state(self, store: JobStore) -> None:
        assert store.jobs.counts() == dict.fromkeys(JobState, 0)
        assert store.jobs.queue_depths() == {}

    def test_inserted_jobs_are_counted_by_state_and_queue(self, store: JobStore) -> None:
        insert(store, 2, queue="a")
        insert(store, 3, queue="b")
        insert(store, 4, queue="b", delay_seconds=5.0)

        self._expect(store, {JobState.ENQUEUED: 5, JobState.SCHEDULED: 4}, {"a": 2, "b": 3})

    def test_a_refused_insert_counts_nothing(self, store: JobStore) -> None:
        [stored] = insert(store)

        with pytest.raises(StoreInvariantError):
            store.jobs.insert([new_job(), stored], now=T0)

        self._expect(store, {JobState.ENQUEUED: 1}, {"default": 1})

    def test_a_claim_moves_the_count(self, store: JobStore) -> None:
        insert(store, 3)

        claim(store, new_node(), 2)

        self._expect(store, {JobState.PROCESSING: 2, JobState.ENQUEUED: 1}, {"default": 1})

    @pytest.mark.parametrize(
        ("kind", "state"),
        [
            (OutcomeKind.SUCCEEDED, JobState.SUCCEEDED),
            (OutcomeKind.RETRY, JobState.SCHEDULED),
            (OutcomeKind.FAILED, JobState.FAILED),
            (OutcomeKind.QUARANTINED, JobState.QUARANTINED),
            (OutcomeKind.RELEASED, JobState.ENQUEUED),
        ],
    )
    def test_each_end_of_an_attempt_moves_the_count(
        self, store: JobStore, kind: OutcomeKind, state: JobState
    ) -> None:
        insert(store, 2)
        node = new_node()
        claimed = claim(store, node)

        store.jobs.finish(node, [outcome(job, kind) for job in claimed], now=T0)

        depths = {"default": 2} if state is JobState.ENQUEUED else {}
        self._expect(store, {state: 2}, depths)

    def test_a_promotion_moves_the_count(self, store: JobStore) -> None:
        insert(store, 2, delay_seconds=1.0)

        store.jobs.promote(limit=10, now=T0 + seconds(1))

        self._expect(store, {JobState.ENQUEUED: 2}, {"default": 2})

    def test_a_reclaim_moves_the_count(self, store: JobStore) -> None:
        insert(store, 2)
        held = {job.id: job for job in claim(store, new_node())}

        store.jobs.reclaim(
            lambda orphan: outcome(held[orphan.id], OutcomeKind.FAILED),
            silent_since=AFTER_ALL,
            limit=1,
            now=T0,
        )

        self._expect(store, {JobState.FAILED: 1, JobState.PROCESSING: 1}, {})

    def test_instances_of_tasks_are_counted(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)

        store.recurring.materialize(["pump"], one_instance, now=T0)
        store.recurring.trigger("pump", lambda _: new_job(cron_task_name="pump"), now=T0)

        self._expect(store, {JobState.ENQUEUED: 2}, {"default": 2})

    def test_folding_changes_no_reading(self, store: JobStore) -> None:
        insert(store, 3)
        claim(store, new_node(), 1)
        before = store.jobs.counts(), store.jobs.queue_depths()

        for _ in range(3):
            store.jobs.fold_counts(limit=1)

        assert (store.jobs.counts(), store.jobs.queue_depths()) == before

    def test_folding_ends(self, store: JobStore) -> None:
        insert(store, 3)

        store.jobs.fold_counts(limit=limits.FOLD_BATCH)

        assert store.jobs.fold_counts(limit=limits.FOLD_BATCH) == 0
        self._expect(store, {JobState.ENQUEUED: 3}, {"default": 3})

    def test_counts_stay_exact_under_concurrent_writers(self, store: JobStore) -> None:
        def produce() -> None:
            for _ in range(10):
                insert(store, 2)

        def consume() -> int:
            return sum(len(run_all(store)) for _ in range(10))

        def fold() -> None:
            for _ in range(10):
                store.jobs.fold_counts(limit=5)

        _, _, first, second, _ = together(produce, produce, consume, consume, fold)

        ready = 40 - first - second
        depths = {"default": ready} if ready else {}
        self._expect(store, {JobState.SUCCEEDED: first + second, JobState.ENQUEUED: ready}, depths)

    @staticmethod
    def _expect(store: JobStore, states: dict[JobState, int], depths: dict[str, int]) -> None:
        assert store.jobs.counts() == {**dict.fromkeys(JobState, 0), **states}
        assert store.jobs.queue_depths() == depths
