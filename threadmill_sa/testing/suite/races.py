"""Nudges, ticks and lifecycle calls at the same time, in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from threadmill_sa.model.job import ClaimedJob, FinishVerdict, JobId, NodeId
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import RegisterOutcome
from threadmill_sa.spi.recurring import Plan, TaskOutcome, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    claim,
    instances,
    new_node,
    new_task,
    outcome,
    run_all,
    seconds,
    together,
    view,
)

ROUNDS = 15  # of each pair; an interleaving that fails shows in few


class RaceSuite:
    def test_n1_accept_between_read_and_write_of_a_tick(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        for _ in range(ROUNDS):
            answer, done = together(*self._nudge_and_tick(store, plan))

            served = done.result is TickResult.MATERIALIZED
            pending = view(store).nudge_revisions
            assert pending == (frozenset() if served else {answer.revision})
            self._drain(store, plan)

    def test_n1_n2_producers_and_ticks_end_with_every_nudge_served(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        accepted: list[int] = []
        made: list[JobId] = []

        def produce() -> None:
            for _ in range(20):
                answer = store.recurring.request_cron_nudge("pump", now=T0)
                assert answer.revision is not None
                accepted.append(answer.revision)

        def consume() -> None:
            for _ in range(20):
                [done] = store.recurring.materialize(["pump"], plan, now=T0)
                made.extend(job.id for job in done.jobs)
                run_all(store)

        together(produce, produce, consume, consume)
        made += self._drain(store, plan)

        assert len(set(accepted)) == 40
        assert view(store).nudge_revisions == frozenset()
        assert sorted(made) == [job.id for job in instances(store)]
        assert 1 <= len(made) <= 40

    def test_n2_two_ticks_over_one_nudge_make_one_job(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        for _ in range(ROUNDS):
            store.recurring.request_cron_nudge("pump", now=T0)

            _, tick = self._nudge_and_tick(store, plan)
            first, second = together(tick, tick)

            assert len(first.jobs) + len(second.jobs) == 1
            run_all(store)

    def test_n2_a_finish_beside_a_tick_lets_one_follow_up_through(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        for _ in range(ROUNDS):
            store.recurring.request_cron_nudge("pump", now=T0)
            store.recurring.materialize(["pump"], plan, wait=True, now=T0)
            node = new_node()
            [running] = claim(store, node)
            answer = store.recurring.request_cron_nudge("pump", now=T0)
            assert answer.verdict is NudgeVerdict.ACCEPTED

            def finish(node: NodeId = node, held: ClaimedJob = running) -> Any:
                return store.jobs.finish(node, [outcome(held)], now=T0)

            verdicts, done = together(finish, self._nudge_and_tick(store, plan)[1])

            assert verdicts == [FinishVerdict.RECORDED]
            assert len(done.jobs) + len(self._drain(store, plan)) == 1

    def test_n5_accept_beside_disable_and_enable(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)

        def flip() -> None:
            store.recurring.set_enabled("pump", enabled=False, now=T0)
            store.recurring.set_enabled("pump", enabled=True, now=T0)

        for _ in range(ROUNDS):
            answer, _ = together(self._nudge_and_tick(store, plan)[0], flip)

            pending = view(store).nudge_revisions
            assert answer.verdict in (NudgeVerdict.ACCEPTED, NudgeVerdict.DISABLED)
            assert pending in (frozenset(), {answer.revision})
            if answer.verdict is NudgeVerdict.DISABLED:
                assert pending == frozenset()
            self._drain(store, plan)

    def test_n5_a_tick_beside_disable_makes_a_job_or_none_but_keeps_no_nudge(
        self, store: JobStore, plan: Plan
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        for _ in range(ROUNDS):
            store.recurring.request_cron_nudge("pump", now=T0)

            done, _ = together(
                self._nudge_and_tick(store, plan)[1],
                lambda: store.recurring.set_enabled("pump", enabled=False, now=T0),
            )

            assert len(done.jobs) == (1 if done.result is TickResult.MATERIALIZED else 0)
            assert view(store).nudge_revisions == frozenset()
            assert view(store).next_run_at is None
            store.recurring.set_enabled("pump", enabled=True, now=T0)
            run_all(store)

    def test_n6_accept_beside_delete(self, store: JobStore) -> None:
        for _ in range(ROUNDS):
            store.recurring.register(new_task(), now=T0)

            answer, deleted = together(
                lambda: store.recurring.request_cron_nudge("pump", now=T0),
                lambda: store.recurring.delete("pump"),
            )

            assert deleted is True
            assert answer.verdict in (NudgeVerdict.ACCEPTED, NudgeVerdict.UNKNOWN_TASK)
            assert store.recurring.list() == []
            assert store.recurring.nominate(after=None, limit=9, now=T0) == []

    def test_n6_accept_beside_delete_and_register(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)

        def renew() -> RegisterOutcome:
            store.recurring.delete("pump")
            return store.recurring.register(new_task(), now=T0 + seconds(1))

        for _ in range(ROUNDS):
            before = view(store).epoch
            answer, created = together(
                lambda: store.recurring.request_cron_nudge("pump", now=T0), renew
            )

            after = view(store)
            assert created is RegisterOutcome.CREATED
            assert after.epoch != before
            assert after.next_run_at == T0 + seconds(601)
            assert after.nudge_revisions in (frozenset(), {answer.revision})
            if answer.verdict is NudgeVerdict.UNKNOWN_TASK:
                assert after.nudge_revisions == frozenset()

    def test_n6_a_tick_beside_delete_and_register_leaves_a_clean_state(
        self, store: JobStore, plan: Plan
    ) -> None:
        def renew() -> None:
            store.recurring.delete("pump")
            store.recurring.register(new_task(), now=T0 + seconds(1))

        for _ in range(ROUNDS):
            store.recurring.delete("pump")
            store.recurring.register(new_task(), now=T0)
            store.recurring.request_cron_nudge("pump", now=T0)

            done, _ = together(self._nudge_and_tick(store, plan)[1], renew)

            found = view(store)
            assert (found.next_run_at, found.created_at) == (
                T0 + seconds(601),
                T0 + seconds(1),
            )
            assert found.nudge_revisions == frozenset()
            assert len(done.jobs) <= 1
            run_all(store)

    def test_two_registrations_at_once_create_one_task(self, store: JobStore) -> None:
        for turn in range(ROUNDS):
            task = new_task(f"task-{turn}")

            def register(task: Any = task) -> RegisterOutcome:
                return store.recurring.register(task, now=T0)

            results = together(register, register, register)

            assert sorted(results) == ["created", "unchanged", "unchanged"]

    def test_lifecycle_calls_of_all_kinds_end_without_an_error(
        self, store: JobStore, plan: Plan
    ) -> None:
        names = ["a", "b", "c"]

        def repeat(call: Callable[[str], object]) -> Callable[[], None]:
            def run() -> None:
                for _ in range(5):
                    for name in names:
                        call(name)

            return run

        together(
            repeat(lambda name: store.recurring.register(new_task(name), now=T0)),
            repeat(store.recurring.delete),
            repeat(lambda name: store.recurring.set_enabled(name, enabled=False, now=T0)),
            repeat(lambda name: store.recurring.set_enabled(name, enabled=True, now=T0)),
            repeat(lambda name: store.recurring.request_cron_nudge(name, now=T0)),
            repeat(lambda _: store.recurring.materialize(names, plan, now=T0)),
        )

        for task in store.recurring.list():
            assert (task.next_run_at is None) == (not task.enabled)

    @staticmethod
    def _nudge_and_tick(
        store: JobStore, plan: Plan
    ) -> tuple[Callable[[], Any], Callable[[], TaskOutcome]]:
        def tick() -> TaskOutcome:
            # Waiting, so that a tick beside a lifecycle call does its work in this round.
            [done] = store.recurring.materialize(["pump"], plan, wait=True, now=T0)
            return done

        return lambda: store.recurring.request_cron_nudge("pump", now=T0), tick

    @staticmethod
    def _drain(store: JobStore, plan: Plan) -> list[JobId]:
        """Run and tick until nothing is left; the jobs that were made."""
        made: list[JobId] = []
        for _ in range(5):
            run_all(store)
            [done] = store.recurring.materialize(["pump"], plan, wait=True, now=T0)
            made += [job.id for job in done.jobs]
        run_all(store)
        return made
