"""Deleting jobs: what no node holds is taken away, and nothing else changes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    DeleteVerdict,
    FinishVerdict,
    HistoryEntry,
    JobId,
    OrphanedJob,
    OutcomeKind,
)
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import Plan, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    WithPump,
    bring,
    claim,
    ids_of,
    insert,
    instances,
    new_id,
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
ROUNDS = 15  # of each race


class DeleteJobSuite:
    @pytest.mark.parametrize(
        "state",
        [
            JobState.SCHEDULED,
            JobState.ENQUEUED,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.QUARANTINED,
        ],
    )
    def test_a_job_that_no_node_holds_is_deleted(self, store: JobStore, state: JobState) -> None:
        job = bring(store, state)
        before = read(store, job.id)

        verdict = store.jobs.delete(job.id, now=LATER)

        after = read(store, job.id)
        assert verdict is DeleteVerdict.DELETED
        assert (after.state, after.state_at) == (JobState.DELETED, LATER)
        told = HistoryEntry(JobState.DELETED, LATER, before.attempt, failure.DELETE, None)
        assert after.history == (*before.history, told)
        assert (after.attempt, after.attempt_token) == (before.attempt, before.attempt_token)

    def test_a_deleted_job_keeps_what_it_was_and_what_it_gave(self, store: JobStore) -> None:
        [job] = insert(store, payload="[1]", queue="mail", priority=3)
        node = new_node()
        store.jobs.finish(node, [outcome(claim(store, node)[0], result="7")], now=T0)

        store.jobs.delete(job.id, now=LATER)

        after = read(store, job.id)
        assert (after.payload, after.result) == ("[1]", "7")
        assert (after.queue, after.priority) == ("mail", 3)

    def test_a_running_job_is_not_deleted(self, store: JobStore) -> None:
        job = bring(store, JobState.PROCESSING)
        before = read(store, job.id)

        assert store.jobs.delete(job.id, now=LATER) is DeleteVerdict.RUNNING

        assert read(store, job.id) == before

    def test_an_unknown_job_is_told_so(self, store: JobStore) -> None:
        assert store.jobs.delete(new_id(), now=T0) is DeleteVerdict.UNKNOWN
        assert store.jobs.counts() == dict.fromkeys(JobState, 0)

    def test_a_second_delete_writes_nothing(self, store: JobStore) -> None:
        job = bring(store, JobState.DELETED)
        before = read(store, job.id)

        assert store.jobs.delete(job.id, now=LATER) is DeleteVerdict.ALREADY

        assert read(store, job.id) == before

    def test_a_deleted_job_is_neither_claimed_nor_promoted(self, store: JobStore) -> None:
        ready, delayed = bring(store, JobState.ENQUEUED), bring(store, JobState.SCHEDULED)
        for job in (ready, delayed):
            store.jobs.delete(job.id, now=T0)

        assert store.jobs.promote(limit=10, now=T0 + timedelta(days=1)) == 0
        assert claim(store, new_node()) == []

    def test_a_job_between_two_attempts_can_be_deleted(self, store: JobStore) -> None:
        [job] = insert(store)
        node = new_node()
        [held] = claim(store, node)
        store.jobs.finish(node, [outcome(held, OutcomeKind.RETRY)], now=T0)

        assert store.jobs.delete(job.id, now=LATER) is DeleteVerdict.DELETED

        assert store.jobs.promote(limit=10, now=T0 + timedelta(days=1)) == 0
        assert store.jobs.finish(node, [outcome(held)], now=LATER) == [FinishVerdict.LOST]
        told = [entry.state for entry in read(store, job.id).history]
        assert told == [JobState.FAILED, JobState.SCHEDULED, JobState.DELETED]

    def test_a_deleted_job_is_no_orphan_and_its_beats_are_lost(self, store: JobStore) -> None:
        [job] = insert(store)
        node = new_node()
        [held] = claim(store, node)
        store.jobs.finish(node, [outcome(held, OutcomeKind.RELEASED)], now=T0)
        store.jobs.delete(job.id, now=T0)

        def unexpected(orphan: OrphanedJob) -> AttemptOutcome:
            raise AssertionError(orphan)

        beaten = [HeldJob(held.id, held.attempt_token)]
        assert store.nodes.beat(NodeInfo(node, "host", 1, None, 1), beaten) == {job.id}
        assert store.jobs.reclaim(unexpected, silent_since=AFTER_ALL, limit=9, now=T0) == []

    def test_the_others_keep_their_order(self, store: JobStore) -> None:
        jobs = [new_job(priority=priority) for priority in (9, 1, 8, 0, -1, 7, 6, 8)]
        store.jobs.insert(jobs, now=T0)

        for number in (0, 5):
            store.jobs.delete(jobs[number].id, now=T0)

        assert ids_of(claim(store, new_node())) == ids_of(jobs[i] for i in (2, 7, 6, 1, 3, 4))

    def test_delayed_jobs_keep_their_order(self, store: JobStore) -> None:
        jobs = [new_job(run_at=T0 + seconds(wait)) for wait in (1, 7, 2, 8, 9, 3, 4)]
        store.jobs.insert(jobs, now=T0)

        for number in (0, 5):
            store.jobs.delete(jobs[number].id, now=T0)

        for expected in (2, 6, 1, 3, 4):
            assert store.jobs.promote(limit=1, now=T0 + seconds(9)) == 1
            assert ids_of(claim(store, new_node())) == [jobs[expected].id]

    def test_counts_and_depths_follow(self, store: JobStore) -> None:
        mail = insert(store, 2, queue="mail")
        delayed = insert(store, 1, delay_seconds=5.0)

        store.jobs.delete(mail[0].id, now=T0)
        store.jobs.delete(delayed[0].id, now=T0)

        expected = {JobState.ENQUEUED: 1, JobState.DELETED: 2}
        assert store.jobs.counts() == {**dict.fromkeys(JobState, 0), **expected}
        assert store.jobs.queue_depths() == {"mail": 1}
        store.jobs.delete(mail[1].id, now=T0)
        assert store.jobs.queue_depths() == {}

    def test_listings_find_it_by_its_new_state(self, store: JobStore) -> None:
        job = bring(store, JobState.ENQUEUED, cron_task_name="pump")

        store.jobs.delete(job.id, now=T0)

        assert store.jobs.list(state=JobState.ENQUEUED) == []
        assert ids_of(store.jobs.list(state=JobState.DELETED)) == [job.id]
        assert ids_of(store.jobs.list(task="pump")) == [job.id]

    def test_without_an_instant_the_stores_clock_stamps(self, store: JobStore) -> None:
        [first, second] = insert(store, 2)
        store.jobs.delete(first.id)
        store.jobs.delete(second.id)

        assert T0 < read(store, first.id).state_at <= read(store, second.id).state_at

    def test_claims_beside_deletes_share_no_job(self, store: JobStore) -> None:
        jobs = insert(store, 40)

        def take() -> list[ClaimedJob]:
            node, taken = new_node(), []
            while batch := claim(store, node, 3):
                taken += batch
            return taken

        def delete() -> list[JobId]:
            verdicts = {job.id: store.jobs.delete(job.id, now=T0) for job in reversed(jobs)}
            assert set(verdicts.values()) <= {DeleteVerdict.DELETED, DeleteVerdict.RUNNING}
            return [job_id for job_id, word in verdicts.items() if word is DeleteVerdict.DELETED]

        first, second, deleted = together(take, take, delete)

        assert sorted([*ids_of(first), *ids_of(second), *deleted]) == ids_of(jobs)
        assert store.jobs.counts()[JobState.DELETED] == len(deleted)
        assert store.jobs.counts()[JobState.PROCESSING] == len(first) + len(second)
        assert store.jobs.queue_depths() == {}

    @pytest.mark.parametrize("kind", [OutcomeKind.SUCCEEDED, OutcomeKind.RELEASED])
    def test_a_finish_beside_a_delete_is_never_lost(
        self, store: JobStore, kind: OutcomeKind
    ) -> None:
        for _ in range(ROUNDS):
            [job] = insert(store)
            node = new_node()
            [held] = claim(store, node)

            verdicts, word = together(
                partial(store.jobs.finish, node, [outcome(held, kind)], now=T0),
                partial(store.jobs.delete, job.id, now=T0),
            )

            assert verdicts == [FinishVerdict.RECORDED]
            told = [entry.state for entry in read(store, job.id).history]
            deleted = word is DeleteVerdict.DELETED
            assert deleted or word is DeleteVerdict.RUNNING
            assert (JobState.DELETED in told) == deleted
            assert (read(store, job.id).state is JobState.DELETED) == deleted
            store.jobs.delete(job.id, now=T0)

    def test_of_two_deletes_one_does_it(self, store: JobStore) -> None:
        for _ in range(ROUNDS):
            [job] = insert(store)

            words = together(*[partial(store.jobs.delete, job.id, now=T0)] * 3)

            assert sorted(words) == ["already", "already", "deleted"]
            assert len(read(store, job.id).history) == 1


class DeleteInstanceSuite(WithPump):
    """Instances of a recurring task."""

    @pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.ENQUEUED])
    def test_a_deleted_instance_lets_go(
        self, store: JobStore, plan: Plan, state: JobState
    ) -> None:
        job = bring(store, state, cron_task_name="pump")
        assert tick(store, plan, DUE).result is TickResult.HELD

        store.jobs.delete(job.id, now=DUE)

        assert tick(store, plan, DUE).result is TickResult.MATERIALIZED

    def test_an_instance_that_had_ended_frees_nothing_twice(
        self, store: JobStore, plan: Plan
    ) -> None:
        ended = bring(store, JobState.SUCCEEDED, cron_task_name="pump")
        bring(store, JobState.SCHEDULED, cron_task_name="pump")

        store.jobs.delete(ended.id, now=DUE)

        assert tick(store, plan, DUE).result is TickResult.HELD

    def test_n4_a_delete_leaves_the_schedule(self, store: JobStore, plan: Plan) -> None:
        [job] = tick(store, plan, DUE).jobs
        before = view(store)

        store.jobs.delete(job.id, now=DUE)

        assert view(store) == before

    def test_n1_a_nudge_that_the_instance_held_back_is_served(
        self, store: JobStore, plan: Plan
    ) -> None:
        nudge(store)
        [first] = tick(store, plan).jobs
        revision = nudge(store, LATER)
        assert tick(store, plan, LATER).result is TickResult.HELD

        store.jobs.delete(first.id, now=LATER)

        assert view(store).nudge_revisions == {revision}
        [second] = tick(store, plan, LATER).jobs
        assert second.id != first.id
        assert view(store).nudge_revisions == frozenset()

    def test_a_nudge_that_an_instance_has_consumed_goes_with_it(
        self, store: JobStore, plan: Plan
    ) -> None:
        nudge(store)
        [job] = tick(store, plan).jobs

        store.jobs.delete(job.id, now=LATER)

        assert view(store).nudge_revisions == frozenset()
        assert tick(store, plan, LATER).jobs == ()
        assert ids_of(instances(store)) == [job.id]

    def test_n2_a_tick_beside_a_delete_makes_one_follow_up(
        self, store: JobStore, plan: Plan
    ) -> None:
        for _ in range(ROUNDS):
            nudge(store)
            [running] = ids_of(tick(store, plan).jobs)
            nudge(store)

            word, done = together(
                partial(store.jobs.delete, running, now=T0),
                lambda: store.recurring.materialize(["pump"], plan, wait=True, now=T0)[0],
            )

            assert word is DeleteVerdict.DELETED
            made = [*done.jobs, *tick(store, plan).jobs]
            assert len(made) == 1
            run_all(store)
