"""The ends of attempts: finishing, giving back, taking over."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    FinishVerdict,
    HistoryEntry,
    JobId,
    NewJob,
    OrphanedJob,
    OutcomeKind,
)
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import Plan
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    HANDLER,
    T0,
    claim,
    claim_one,
    ids_of,
    insert,
    new_id,
    new_node,
    new_task,
    nudge,
    outcome,
    read,
    seconds,
    tick,
    together,
)

RECORDED, LOST = FinishVerdict.RECORDED, FinishVerdict.LOST
END = T0 + seconds(5)
HOLDER = "only the holder of the current token ends an attempt, and once"
RETRIED = "a retry is one write: the job is unfinished throughout"
ROUNDS, TICKS = 10, 100  # ticks beside one retry at most; they stop when it has ended


class FinishSuite:
    def test_a_success_keeps_its_result_and_frees_the_job(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)

        verdicts = store.jobs.finish(node, [outcome(held, result='{"n":1}')], now=END)

        job = read(store, held.id)
        assert verdicts == [RECORDED]
        assert (job.state, job.state_at, job.result) == (JobState.SUCCEEDED, END, '{"n":1}')
        assert (job.owner_node_id, job.heartbeat_at, job.started_at) == (None, None, T0)
        assert job.attempt == 1

    def test_a_success_writes_no_history(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)

        store.jobs.finish(node, [outcome(held)], now=END)

        assert (read(store, held.id).history, read(store, held.id).result) == ((), None)

    def test_a_dropped_result_leaves_its_note(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)

        store.jobs.finish(node, [outcome(held, result_note="too large")], now=END)

        job = read(store, held.id)
        assert job.result is None
        assert dict(job.metadata) == {"threadmill.truncated.result": "too large"}

    def test_a_retry_is_a_failure_and_a_new_wait_in_one_write(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)
        retry = outcome(held, OutcomeKind.RETRY, retry_seconds=2.5, message="boom")

        assert store.jobs.finish(node, [retry], now=END) == [RECORDED]

        job = read(store, held.id)
        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, END + seconds(2.5)), RETRIED
        assert (job.attempt, job.owner_node_id) == (1, None)
        assert job.history == (
            HistoryEntry(JobState.FAILED, END, 1, failure.EXCEPTION, "boom"),
            HistoryEntry(JobState.SCHEDULED, END, 1, failure.RETRY, None),
        )

    def test_a_tick_beside_a_retry_never_sees_the_instance_as_ended(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        insert(store, cron_task_name="pump")
        node = new_node()
        for _ in range(ROUNDS):
            held = claim_one(store, node)
            nudge(store)
            ended = threading.Event()

            def retry(held: ClaimedJob = held, ended: threading.Event = ended) -> None:
                try:
                    end = outcome(held, OutcomeKind.RETRY, retry_seconds=0.0)
                    assert store.jobs.finish(node, [end], now=T0) == [RECORDED], HOLDER
                finally:
                    ended.set()

            def ticks(ended: threading.Event = ended) -> list[NewJob]:
                made: list[NewJob] = []
                for _ in range(TICKS):
                    made += tick(store, plan).jobs
                    if ended.is_set():
                        break
                return made

            made, _ = together(ticks, retry)

            assert made == [], RETRIED
            store.jobs.promote(limit=10, now=T0)

    def test_a_retry_without_a_pause_is_promoted_at_once(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        first = claim_one(store, node)
        retry = outcome(first, OutcomeKind.RETRY, retry_seconds=0.0)
        store.jobs.finish(node, [retry], now=END)

        assert read(store, first.id).scheduled_at == END
        assert store.jobs.promote(limit=10, now=END) == 1
        second = claim_one(store, node, at=END)

        assert (second.id, second.attempt) == (first.id, 2)
        assert second.attempt_token > first.attempt_token

    def test_a_retried_job_keeps_its_place(self, store: JobStore) -> None:
        jobs = insert(store, 3)
        node = new_node()
        [first] = claim(store, node, 1)
        retry = outcome(first, OutcomeKind.RETRY, retry_seconds=0.0)
        store.jobs.finish(node, [retry], now=END)
        store.jobs.promote(limit=10, now=END)

        assert ids_of(claim(store, node, at=END)) == ids_of(jobs)

    def test_every_attempt_leaves_its_failure(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        for turn in range(3):
            store.jobs.promote(limit=10, now=T0)
            held = claim_one(store, node)
            kind = OutcomeKind.FAILED if turn == 2 else OutcomeKind.RETRY
            pause = None if turn == 2 else 0.0
            end = outcome(held, kind, retry_seconds=pause, message=str(turn))
            store.jobs.finish(node, [end], now=T0)

        job = read(store, held.id)
        failures = [entry for entry in job.history if entry.state is JobState.FAILED]
        assert [(entry.attempt, entry.message) for entry in failures] == [
            (1, "0"),
            (2, "1"),
            (3, "2"),
        ]
        assert (job.state, len(job.history)) == (JobState.FAILED, 5)

    @pytest.mark.parametrize(
        ("kind", "state", "reason"),
        [
            (OutcomeKind.FAILED, JobState.FAILED, failure.EXCEPTION),
            (OutcomeKind.QUARANTINED, JobState.QUARANTINED, failure.QUARANTINE),
        ],
    )
    def test_a_final_failure_leaves_one_entry(
        self, store: JobStore, kind: OutcomeKind, state: JobState, reason: str
    ) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)

        store.jobs.finish(node, [outcome(held, kind, message="why")], now=END)

        job = read(store, held.id)
        assert (job.state, job.attempt) == (state, 1)
        assert job.history == (HistoryEntry(state, END, 1, reason, "why"),)

    def test_a_release_gives_the_attempt_back(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        first = claim_one(store, node)
        release = outcome(first, OutcomeKind.RELEASED, message="node stops")

        assert store.jobs.finish(node, [release], now=END) == [RECORDED]

        job = read(store, first.id)
        assert (job.state, job.attempt, job.owner_node_id) == (JobState.ENQUEUED, 0, None)
        assert job.history == (
            HistoryEntry(JobState.FAILED, END, 1, failure.SHUTDOWN, "node stops"),
            HistoryEntry(JobState.ENQUEUED, END, 1, failure.SHUTDOWN, None),
        )
        second = claim_one(store, new_node(), at=END)
        assert second.attempt == 1
        assert second.attempt_token > first.attempt_token

    @pytest.mark.parametrize("kind", list(OutcomeKind))
    def test_a_wrong_token_is_lost_and_writes_nothing(
        self, store: JobStore, kind: OutcomeKind
    ) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)
        before = read(store, held.id)
        late = AttemptOutcome(held.id, held.attempt_token + 1, kind, "engine.test")

        assert store.jobs.finish(node, [late], now=END) == [LOST], HOLDER

        assert read(store, held.id) == before

    def test_another_node_cannot_finish(self, store: JobStore) -> None:
        insert(store)
        held = claim_one(store, new_node())
        before = read(store, held.id)

        assert store.jobs.finish(new_node(), [outcome(held)], now=END) == [LOST], HOLDER

        assert read(store, held.id) == before

    def test_an_unknown_job_is_lost(self, store: JobStore) -> None:
        ghost = AttemptOutcome(JobId(new_id()), 1, OutcomeKind.SUCCEEDED, failure.SUCCESS)

        assert store.jobs.finish(new_node(), [ghost], now=END) == [LOST], HOLDER

    def test_a_job_that_nobody_claimed_is_lost(self, store: JobStore) -> None:
        [new] = insert(store)
        early = AttemptOutcome(new.id, 0, OutcomeKind.SUCCEEDED, failure.SUCCESS)

        assert store.jobs.finish(new_node(), [early], now=END) == [LOST], HOLDER
        assert read(store, new.id).state is JobState.ENQUEUED

    def test_the_same_end_again_is_lost(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)
        end = outcome(held, OutcomeKind.FAILED)
        store.jobs.finish(node, [end], now=END)

        assert store.jobs.finish(node, [end], now=END) == [LOST], HOLDER
        assert len(read(store, held.id).history) == 1

    def test_each_outcome_of_a_batch_has_its_own_verdict(self, store: JobStore) -> None:
        insert(store, 3)
        node = new_node()
        first, second, third = claim(store, node)
        stale = AttemptOutcome(second.id, 0, OutcomeKind.SUCCEEDED, failure.SUCCESS)
        batch = [outcome(third), stale, outcome(first, OutcomeKind.FAILED)]

        assert store.jobs.finish(node, batch, now=END) == [RECORDED, LOST, RECORDED]

        states = [read(store, job.id).state for job in (first, second, third)]
        assert states == [JobState.FAILED, JobState.PROCESSING, JobState.SUCCEEDED]

    def test_a_late_end_beside_the_newest_of_the_same_job_is_lost(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        lost = claim_one(store, node)
        store.jobs.finish(node, [outcome(lost, OutcomeKind.RELEASED)], now=END)
        held = claim_one(store, node)
        batch = [outcome(lost, OutcomeKind.RETRY), outcome(held)]

        assert store.jobs.finish(node, batch, now=END) == [LOST, RECORDED], HOLDER

        job = read(store, held.id)
        assert (job.state, len(job.history)) == (JobState.SUCCEEDED, 2)

    def test_the_first_of_two_ends_of_one_attempt_counts(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)
        batch = [outcome(held, OutcomeKind.FAILED), outcome(held), outcome(held)]

        assert store.jobs.finish(node, batch, now=END) == [RECORDED, LOST, LOST], HOLDER

        job = read(store, held.id)
        assert (job.state, len(job.history)) == (JobState.FAILED, 1)

    def test_no_outcomes_have_no_verdicts(self, store: JobStore) -> None:
        assert store.jobs.finish(new_node(), [], now=END) == []

    def test_a_full_batch_is_finished_at_once(self, store: JobStore) -> None:
        insert(store, limits.COMPLETE_BATCH_MAX)
        node = new_node()
        batch = [outcome(job) for job in claim(store, node)]

        assert store.jobs.finish(node, batch, now=END) == [RECORDED] * limits.COMPLETE_BATCH_MAX
        assert store.jobs.counts()[JobState.SUCCEEDED] == limits.COMPLETE_BATCH_MAX

    def test_the_longest_failure_and_result_are_kept(self, store: JobStore) -> None:
        insert(store, 2)
        node = new_node()
        first, second = claim(store, node)
        message = "\U0001f9f5" * (limits.FAILURE_MESSAGE_MAX_BYTES // 4)
        result = '"' + "\u00e4" * (limits.RESULT_MAX_BYTES // 2 - 1) + '"'
        failed = outcome(first, OutcomeKind.FAILED, message=message)

        store.jobs.finish(node, [failed, outcome(second, result=result)], now=END)

        assert read(store, first.id).history[0].message == message
        assert read(store, second.id).result == result

    def test_an_attempt_that_was_claimed_again_cannot_finish(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        old = claim_one(store, node)
        store.jobs.finish(node, [outcome(old, OutcomeKind.RELEASED)], now=T0)
        young = claim_one(store, node)

        assert store.jobs.finish(node, [outcome(old)], now=END) == [LOST], HOLDER
        assert store.jobs.finish(node, [outcome(young)], now=END) == [RECORDED]

    def test_two_ends_of_one_attempt_record_one(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)
        ends = [outcome(held), outcome(held, OutcomeKind.FAILED)]

        first, second = together(
            lambda: store.jobs.finish(node, ends[:1], now=END),
            lambda: store.jobs.finish(node, ends[1:], now=END),
        )

        assert sorted(first + second) == [LOST, RECORDED], HOLDER


class ReclaimSuite:
    """Silence is judged by the store's own clock; a timeout of zero finds every held job."""

    def test_a_silent_job_gets_the_decided_end(self, store: JobStore) -> None:
        [new] = insert(store, max_attempts=4, cron_task_name="pump")
        node = new_node()
        held = claim_one(store, node)
        end = AttemptOutcome(
            held.id,
            held.attempt_token,
            OutcomeKind.RETRY,
            failure.ORPHAN,
            message="no heartbeat",
            retry_seconds=3.0,
        )

        ended = store.jobs.reclaim(lambda _: end, silent_since=AFTER_ALL, limit=10, now=END)

        orphan = OrphanedJob(new.id, HANDLER, 1, 4, held.attempt_token, node, "pump")
        assert ended == [(orphan, end)]
        job = read(store, new.id)
        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, END + seconds(3))
        assert (job.owner_node_id, job.heartbeat_at, job.attempt) == (None, None, 1)
        assert [(entry.state, entry.reason) for entry in job.history] == [
            (JobState.FAILED, failure.ORPHAN),
            (JobState.SCHEDULED, failure.RETRY),
        ]

    def test_only_an_owner_that_has_not_beaten_since_loses_its_job(self, store: JobStore) -> None:
        [job] = insert(store)
        claim(store, new_node())
        beaten_at = read(store, job.id).heartbeat_at
        assert beaten_at is not None

        earlier = beaten_at - timedelta(microseconds=1)
        assert store.jobs.reclaim(_fail, silent_since=earlier, limit=10, now=END) == []
        [(orphan, _)] = store.jobs.reclaim(_fail, silent_since=beaten_at, limit=10, now=END)

        assert orphan.id == job.id

    def test_only_held_jobs_are_taken(self, store: JobStore) -> None:
        insert(store, 2)
        insert(store, delay_seconds=5.0)
        node = new_node()
        [held] = claim(store, node, 1)
        store.jobs.finish(node, [outcome(held)], now=T0)

        assert store.jobs.reclaim(_fail, silent_since=AFTER_ALL, limit=10, now=END) == []

    def test_no_more_than_the_limit_is_taken(self, store: JobStore) -> None:
        insert(store, 5)
        claim(store, new_node())

        turns = [
            len(store.jobs.reclaim(_fail, silent_since=AFTER_ALL, limit=2, now=END))
            for _ in range(4)
        ]

        assert turns == [2, 2, 1, 0]

    def test_a_decision_that_raises_leaves_everything_as_it_was(self, store: JobStore) -> None:
        insert(store, 2)
        first, second = claim(store, new_node())

        def decide(orphan: OrphanedJob) -> AttemptOutcome:
            if orphan.id == second.id:
                raise ZeroDivisionError
            return _fail(orphan)

        with pytest.raises(ZeroDivisionError):
            store.jobs.reclaim(decide, silent_since=AFTER_ALL, limit=10, now=END)

        assert store.jobs.counts()[JobState.PROCESSING] == 2
        assert read(store, first.id).history == ()

    def test_the_silent_owner_cannot_finish_afterwards(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        held = claim_one(store, node)
        store.jobs.reclaim(_fail, silent_since=AFTER_ALL, limit=10, now=END)

        assert store.jobs.finish(node, [outcome(held)], now=END) == [LOST], HOLDER
        assert read(store, held.id).state is JobState.FAILED

    def test_a_reclaim_and_a_finish_end_the_attempt_once(self, store: JobStore) -> None:
        insert(store, 20)
        node = new_node()
        batch = [outcome(job) for job in claim(store, node)]

        verdicts, ended = together(
            lambda: [store.jobs.finish(node, [end], now=END)[0] for end in batch],
            lambda: store.jobs.reclaim(_fail, silent_since=AFTER_ALL, limit=20, now=END),
        )

        counts = store.jobs.counts()
        assert counts[JobState.SUCCEEDED] == verdicts.count(RECORDED)
        assert counts[JobState.FAILED] == len(ended)
        assert counts[JobState.SUCCEEDED] + counts[JobState.FAILED] == 20, HOLDER

    def test_two_reclaims_share_no_job(self, store: JobStore) -> None:
        insert(store, 30)
        claim(store, new_node())

        def take() -> list[JobId]:
            return [
                orphan.id
                for _ in range(4)
                for orphan, _ in store.jobs.reclaim(
                    _fail, silent_since=AFTER_ALL, limit=10, now=END
                )
            ]

        first, second = together(take, take)

        assert len(first + second) == len(set(first + second)) == 30, "each job is taken once"


def _fail(orphan: OrphanedJob) -> AttemptOutcome:
    return AttemptOutcome(orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.ORPHAN)
