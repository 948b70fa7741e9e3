"""Claiming jobs: what is taken, in which order, by whom."""

from __future__ import annotations

from dataclasses import fields

import pytest

from threadmill_sa.model.job import ClaimedJob, OutcomeKind
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    HANDLER,
    T0,
    claim,
    ids_of,
    insert,
    new_job,
    new_node,
    outcome,
    read,
    run_all,
    seconds,
    together,
)


class ClaimSuite:
    def test_a_claimed_job_is_held_by_its_node(self, store: JobStore) -> None:
        [new] = insert(store)
        node = new_node()

        [claimed] = claim(store, node, at=T0 + seconds(1))

        job = read(store, new.id)
        assert claimed.id == new.id
        assert (job.state, job.owner_node_id) == (JobState.PROCESSING, node)
        assert (job.started_at, job.state_at) == (T0 + seconds(1), T0 + seconds(1))
        assert (job.attempt, claimed.attempt) == (1, 1)
        assert job.attempt_token == claimed.attempt_token
        assert job.heartbeat_at is not None
        assert job.history == ()

    def test_a_claim_carries_what_the_runner_needs(self, store: JobStore) -> None:
        insert(
            store,
            payload='{"a":1}',
            priority=3,
            max_attempts=9,
            timeout_seconds=2.5,
            cron_task_name="pump",
            cron_origin=CronOrigin.NUDGE,
            fire_time=T0,
        )

        [claimed] = claim(store, new_node())

        job = read(store, claimed.id)
        for each in fields(ClaimedJob):
            assert getattr(claimed, each.name) == getattr(job, each.name), each.name

    def test_higher_priority_goes_first_and_then_the_older_id(self, store: JobStore) -> None:
        jobs = [new_job(priority=priority) for priority in (0, 5, -1, 5, 0)]
        store.jobs.insert(jobs[::-1], now=T0)

        claimed = claim(store, new_node())

        assert ids_of(claimed) == ids_of(jobs[i] for i in (1, 3, 0, 4, 2))

    def test_no_more_than_the_limit_is_taken(self, store: JobStore) -> None:
        jobs = insert(store, 5)
        node = new_node()

        assert ids_of(claim(store, node, 2)) == ids_of(jobs[:2])
        assert ids_of(claim(store, node, 2)) == ids_of(jobs[2:4])
        assert ids_of(claim(store, node, 2)) == ids_of(jobs[4:])
        assert claim(store, node, 2) == []

    def test_a_limit_of_zero_takes_nothing(self, store: JobStore) -> None:
        insert(store)

        assert claim(store, new_node(), 0) == []

    def test_an_empty_store_gives_nothing(self, store: JobStore) -> None:
        assert claim(store, new_node()) == []

    def test_only_jobs_of_the_named_handlers_are_taken(self, store: JobStore) -> None:
        [mine] = insert(store, handler="mine")
        insert(store, handler="foreign")
        [other] = insert(store, handler="other")

        claimed = store.jobs.claim(
            new_node(), queues=None, handlers=["mine", "other"], limit=10, now=T0
        )

        assert ids_of(claimed) == [mine.id, other.id]

    def test_jobs_of_several_handlers_are_one_line(self, store: JobStore) -> None:
        jobs = [
            new_job(handler=handler, priority=priority)
            for handler, priority in (("b", 0), ("a", 0), ("b", 5), ("a", 5), ("b", 0))
        ]
        store.jobs.insert(jobs, now=T0)

        for queues in (None, ["default"]):
            node = new_node()
            claimed = store.jobs.claim(node, queues=queues, handlers=["a", "b"], limit=9, now=T0)

            assert ids_of(claimed) == ids_of(jobs[i] for i in (2, 3, 0, 1, 4))
            released = [outcome(job, OutcomeKind.RELEASED) for job in claimed]
            store.jobs.finish(node, released, now=T0)

    def test_a_node_without_handlers_gets_nothing(self, store: JobStore) -> None:
        insert(store)

        assert store.jobs.claim(new_node(), queues=None, handlers=[], limit=9, now=T0) == []

    def test_foreign_jobs_in_front_hide_nothing(self, store: JobStore) -> None:
        insert(store, 120, handler="foreign", priority=9)
        [mine] = insert(store)

        assert ids_of(claim(store, new_node(), 1)) == [mine.id]

    def test_only_the_named_queues_are_emptied_in_their_order(self, store: JobStore) -> None:
        [low] = insert(store, queue="a")
        [high] = insert(store, queue="b", priority=9)
        insert(store, queue="c", priority=99)
        node = new_node()

        claimed = store.jobs.claim(node, queues=["a", "b"], handlers=[HANDLER], limit=9, now=T0)

        assert ids_of(claimed) == [low.id, high.id]

    def test_the_limit_spans_the_queues(self, store: JobStore) -> None:
        first = insert(store, 2, queue="a")
        second = insert(store, 2, queue="b")
        node = new_node()

        claimed = store.jobs.claim(node, queues=["b", "a"], handlers=[HANDLER], limit=3, now=T0)

        assert ids_of(claimed) == ids_of([*second, first[0]])

    @pytest.mark.parametrize("queues", [[], ["nowhere"]])
    def test_other_queues_give_nothing(self, store: JobStore, queues: list[str]) -> None:
        insert(store)

        claimed = store.jobs.claim(new_node(), queues=queues, handlers=[HANDLER], limit=9, now=T0)

        assert claimed == []

    def test_without_queues_all_are_one(self, store: JobStore) -> None:
        [first] = insert(store, queue="z")
        [urgent] = insert(store, queue="m", priority=1)
        [last] = insert(store, queue="a")

        assert ids_of(claim(store, new_node())) == [urgent.id, first.id, last.id]

    def test_a_delayed_job_is_not_claimed_before_its_promotion(self, store: JobStore) -> None:
        insert(store, delay_seconds=1.0)

        assert claim(store, new_node(), at=T0 + seconds(9)) == []

    def test_a_held_job_is_not_claimed_again(self, store: JobStore) -> None:
        insert(store)
        node = new_node()
        claim(store, node)

        assert claim(store, node) == []
        assert claim(store, new_node()) == []

    @pytest.mark.parametrize(
        "kind", [OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.QUARANTINED]
    )
    def test_an_ended_job_is_not_claimed(self, store: JobStore, kind: OutcomeKind) -> None:
        insert(store)
        node = new_node()
        store.jobs.finish(node, [outcome(job, kind) for job in claim(store, node)], now=T0)

        assert claim(store, node) == []

    def test_eight_claimers_never_share_one_of_a_hundred_jobs(self, store: JobStore) -> None:
        jobs = insert(store, 100)

        def take() -> list[ClaimedJob]:
            node, taken = new_node(), []
            while batch := claim(store, node, 5):
                taken += batch
            return taken

        taken = [job for each in together(*[take] * 8) for job in each]

        assert sorted(ids_of(taken)) == ids_of(jobs)
        assert {job.attempt for job in taken} == {1}

    def test_claims_race_with_inserts_without_losing_a_job(self, store: JobStore) -> None:
        def produce() -> None:
            for _ in range(20):
                insert(store)

        together(produce, produce, lambda: run_all(store), lambda: run_all(store))
        run_all(store)

        assert store.jobs.counts()[JobState.SUCCEEDED] == 40


class PromoteSuite:
    def test_a_job_is_ready_at_its_instant_and_not_before(self, store: JobStore) -> None:
        [new] = insert(store, delay_seconds=10.0)

        assert store.jobs.promote(limit=10, now=T0 + seconds(9.999999)) == 0
        assert store.jobs.promote(limit=10, now=T0 + seconds(10)) == 1

        job = read(store, new.id)
        assert (job.state, job.state_at) == (JobState.ENQUEUED, T0 + seconds(10))
        assert (job.attempt, job.history) == (0, ())

    def test_a_job_is_promoted_once(self, store: JobStore) -> None:
        insert(store, run_at=T0)

        assert store.jobs.promote(limit=10, now=T0) == 1
        assert store.jobs.promote(limit=10, now=T0) == 0

    def test_the_earliest_are_promoted_first(self, store: JobStore) -> None:
        waits = (3, 1, 2, 1)
        jobs = [new_job(run_at=T0 + seconds(wait)) for wait in waits]
        store.jobs.insert(jobs, now=T0)
        at = T0 + seconds(9)

        for expected in (1, 3, 2, 0):
            assert store.jobs.promote(limit=1, now=at) == 1
            assert ids_of(claim(store, new_node(), at=at)) == [jobs[expected].id]

    def test_an_instant_in_the_past_is_due_at_once(self, store: JobStore) -> None:
        insert(store, run_at=T0 - seconds(3600))

        assert store.jobs.promote(limit=10, now=T0) == 1

    def test_a_promoted_job_keeps_its_place_by_priority_and_id(self, store: JobStore) -> None:
        [old] = insert(store, delay_seconds=5.0)
        [young] = insert(store)
        store.jobs.promote(limit=10, now=T0 + seconds(5))

        assert ids_of(claim(store, new_node(), at=T0 + seconds(5))) == [old.id, young.id]

    def test_concurrent_promotions_count_each_job_once(self, store: JobStore) -> None:
        insert(store, 60, run_at=T0)

        def promote() -> int:
            total = 0
            while count := store.jobs.promote(limit=7, now=T0):
                total += count
            return total

        assert sum(together(*[promote] * 4)) == 60
        assert store.jobs.counts()[JobState.ENQUEUED] == 60
