"""Removing finished jobs when their time has passed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from threadmill_sa.model.job import DeleteVerdict, FinishVerdict, JobId, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import FINISHED, UNFINISHED, JobState
from threadmill_sa.spi.recurring import Plan
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    WithPump,
    bring,
    claim,
    ids_of,
    insert,
    new_job,
    new_node,
    nudge,
    outcome,
    read,
    run_all,
    seconds,
    tick,
    together,
    view,
)

LATER = T0 + seconds(5)
DUE = T0 + seconds(600)
DAY = 86_400.0


def remove(
    store: JobStore,
    state: JobState = JobState.SUCCEEDED,
    *,
    older_than: float = DAY,
    limit: int = 100,
    at: datetime = T0 + timedelta(days=1),
) -> int:
    return store.jobs.remove_old(state, older_than_seconds=older_than, limit=limit, now=at)


class RetentionSuite(WithPump):
    @pytest.mark.parametrize("state", FINISHED)
    def test_a_finished_job_goes_at_its_age_and_not_before(
        self, store: JobStore, state: JobState
    ) -> None:
        job = bring(store, state)

        assert remove(store, state, at=T0 + seconds(DAY - 1e-6)) == 0
        assert read(store, job.id).state is state
        assert remove(store, state, at=T0 + seconds(DAY)) == 1
        assert store.jobs.get(job.id) is None
        assert remove(store, state) == 0

    @pytest.mark.parametrize("state", [*UNFINISHED, JobState.PROCESSED])
    def test_what_is_not_finished_is_never_removed(self, store: JobStore, state: JobState) -> None:
        [running] = insert(store)
        claim(store, new_node())
        jobs = [running, *insert(store), *insert(store, delay_seconds=1.0)]

        assert remove(store, state, older_than=0.0, at=T0 + timedelta(days=9)) == 0

        assert all(store.jobs.get(job.id) for job in jobs)

    def test_other_states_are_left_alone(self, store: JobStore) -> None:
        jobs = {state: bring(store, state) for state in FINISHED}

        assert remove(store, JobState.FAILED) == 1

        left = {state for state, job in jobs.items() if store.jobs.get(job.id)}
        assert left == {*FINISHED} - {JobState.FAILED}

    def test_the_oldest_go_first_up_to_the_limit(self, store: JobStore) -> None:
        ages = (3, 1, 4, 2, 5)
        jobs = {age: bring(store, JobState.SUCCEEDED, at=T0 - timedelta(days=age)) for age in ages}

        assert remove(store, limit=2, at=T0) == 2

        assert [age for age in sorted(ages) if store.jobs.get(jobs[age].id)] == [1, 2, 3]
        assert remove(store, limit=2, at=T0) == 2
        assert remove(store, limit=2, at=T0) == 1

    def test_the_age_counts_from_the_last_change_of_state(self, store: JobStore) -> None:
        job = bring(store, JobState.SUCCEEDED)

        store.jobs.delete(job.id, now=T0 + seconds(DAY / 2))

        assert remove(store, JobState.SUCCEEDED) == 0
        assert remove(store, JobState.DELETED) == 0
        assert remove(store, JobState.DELETED, at=T0 + seconds(1.5 * DAY)) == 1

    def test_jobs_of_one_instant_go_by_their_ids(self, store: JobStore) -> None:
        jobs = insert(store, 5)
        run_all(store)

        assert remove(store, limit=2) == 2

        assert [job.id for job in jobs if store.jobs.get(job.id)] == ids_of(jobs[2:])

    def test_many_jobs_go_in_batches(self, store: JobStore) -> None:
        insert(store, 250)
        run_all(store)

        assert [remove(store, limit=100) for _ in range(4)] == [100, 100, 50, 0]

        assert store.jobs.list() == []

    def test_a_limit_of_zero_removes_nothing(self, store: JobStore) -> None:
        job = bring(store, JobState.SUCCEEDED)

        assert remove(store, limit=0) == 0
        assert store.jobs.get(job.id) is not None

    def test_everything_that_is_kept_of_a_job_goes_with_it(self, store: JobStore) -> None:
        first = insert(store, payload="1")[0]
        node = new_node()
        for kind in (OutcomeKind.RETRY, OutcomeKind.FAILED):
            store.jobs.promote(limit=9, now=LATER + seconds(10))
            [held] = claim(store, node)
            store.jobs.finish(node, [outcome(held, kind, message="boom")], now=T0)
        assert len(read(store, first.id).history) == 3
        assert remove(store, JobState.FAILED) == 1

        store.jobs.insert([new_job(id=first.id)], now=T0)  # as if it had never been

        again = read(store, first.id)
        assert (again.payload, again.result, again.history) == (None, None, ())
        assert (again.attempt, again.attempt_token) == (0, 0)

    def test_counts_and_listings_follow(self, store: JobStore) -> None:
        insert(store, 3, queue="mail", cron_task_name="pump")
        run_all(store)
        [ready] = insert(store, queue="mail")

        assert remove(store, limit=2) == 2

        expected = {JobState.SUCCEEDED: 1, JobState.ENQUEUED: 1}
        assert store.jobs.counts() == {**dict.fromkeys(JobState, 0), **expected}
        assert store.jobs.queue_depths() == {"mail": 1}
        assert len(store.jobs.list(task="pump")) == 1
        assert len(store.jobs.list(state=JobState.SUCCEEDED)) == 1
        assert ready.id in ids_of(store.jobs.list(queue="mail"))

    def test_a_removed_job_is_unknown_to_every_call(self, store: JobStore) -> None:
        [job] = insert(store)
        node = new_node()
        [held] = claim(store, node)
        store.jobs.finish(node, [outcome(held)], now=T0)
        remove(store)

        assert store.jobs.delete(job.id, now=LATER) is DeleteVerdict.UNKNOWN
        assert store.jobs.finish(node, [outcome(held)], now=LATER) == [FinishVerdict.LOST]
        beaten = [HeldJob(held.id, held.attempt_token)]
        assert store.nodes.beat(NodeInfo(node, "host", 1, None, 1), beaten) == {job.id}
        assert store.jobs.list() == []

    def test_without_an_instant_the_stores_clock_judges(self, store: JobStore) -> None:
        bring(store, JobState.SUCCEEDED)  # in the past of every clock
        fresh = new_job()
        store.jobs.insert([fresh])
        store.jobs.delete(fresh.id)

        assert store.jobs.remove_old(JobState.DELETED, older_than_seconds=60.0, limit=9) == 0
        assert store.jobs.remove_old(JobState.SUCCEEDED, older_than_seconds=60.0, limit=9) == 1
        assert store.jobs.get(fresh.id) is not None

    def test_a_task_goes_on_without_the_jobs_that_it_remembers(
        self, store: JobStore, plan: Plan
    ) -> None:
        [job] = tick(store, plan, DUE).jobs
        run_all(store, at=DUE)
        before = view(store)

        assert remove(store, at=DUE + seconds(DAY)) == 1

        assert view(store) == before
        assert before.last_run_job_id == job.id
        assert tick(store, plan, DUE).jobs == ()  # the fire is not made up for
        [following] = tick(store, plan, DUE + seconds(600)).jobs
        assert following.fire_time == DUE + seconds(600)
        nudge(store, DUE + seconds(601))
        run_all(store, at=DUE + seconds(601))
        assert len(tick(store, plan, DUE + seconds(601)).jobs) == 1

    def test_removals_beside_work_take_what_was_old_and_nothing_else(
        self, store: JobStore
    ) -> None:
        old = insert(store, 60)
        run_all(store)

        def sweep() -> int:
            return sum(iter(lambda: remove(store, limit=7), 0))

        def work() -> list[JobId]:
            made = []
            for _ in range(10):
                store.jobs.insert([new_job()], now=LATER)
                made += ids_of(run_all(store, at=LATER))
            return made

        def delete() -> list[DeleteVerdict]:
            return [store.jobs.delete(job.id, now=LATER) for job in old[::3]]

        first, second, made, words = together(sweep, sweep, work, delete)

        deleted = words.count(DeleteVerdict.DELETED)
        assert first + second + deleted == len(old)
        assert set(words) <= {DeleteVerdict.DELETED, DeleteVerdict.UNKNOWN}
        assert remove(store) == 0
        expected = {JobState.SUCCEEDED: len(made), JobState.DELETED: deleted}
        assert store.jobs.counts() == {**dict.fromkeys(JobState, 0), **expected}
        assert ids_of(store.jobs.list(state=JobState.SUCCEEDED, limit=100)) == sorted(made)[::-1]
