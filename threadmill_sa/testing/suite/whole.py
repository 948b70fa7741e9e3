"""The store as a whole: what it says of itself, and that a refused call does it no harm."""

from __future__ import annotations

import pytest

from threadmill_sa.errors import JoinError, StoreInvariantError
from threadmill_sa.model.job import AttemptOutcome, OrphanedJob
from threadmill_sa.spi.recurring import Plan, TaskPlan, TaskReading, TickResult
from threadmill_sa.spi.store import CannotJoin, JobStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    insert,
    new_node,
    new_task,
    nudge,
    run_all,
    tick,
    view,
)


class StoreSuite:
    def test_a_store_describes_itself_in_one_line(self, store: JobStore) -> None:
        text = store.describe()

        assert text.strip()
        assert "\n" not in text

    def test_a_store_that_is_set_up_is_ready(self, store: JobStore) -> None:
        store.check_ready()

    def test_a_store_tells_the_same_capabilities_each_time(self, store: JobStore) -> None:
        assert store.capabilities == store.capabilities

    def test_a_handle_that_is_no_transaction_is_not_joined(self, store: JobStore) -> None:
        if store.capabilities.joins:
            with pytest.raises(JoinError):
                store.joined(object())
        else:
            answer = store.joined(object())
            assert isinstance(answer, CannotJoin)
            assert answer.reason

    def test_a_wake_channel_exists_only_where_others_share_the_store(
        self, store: JobStore
    ) -> None:
        assert store.capabilities.shared or store.wakes is None

    def test_calls_that_fail_leave_a_store_that_works(self, store: JobStore, plan: Plan) -> None:
        def fails_to_decide(orphan: OrphanedJob) -> AttemptOutcome:
            raise ZeroDivisionError(orphan)

        def fails_to_plan(reading: TaskReading) -> TaskPlan:
            raise ZeroDivisionError(reading)

        store.recurring.register(new_task(), now=T0)
        nudge(store)
        insert(store)
        [held] = claim(store, new_node())
        for _ in range(20):  # more often than any pool of connections is large
            with pytest.raises(StoreInvariantError):
                insert(store, id=held.id)
            with pytest.raises(ZeroDivisionError):
                tick(store, fails_to_plan)
            with pytest.raises(ZeroDivisionError):
                store.jobs.reclaim(fails_to_decide, silent_since=AFTER_ALL, limit=1, now=T0)

        assert tick(store, plan).result is TickResult.MATERIALIZED
        assert len(run_all(store)) == 1
        assert view(store).nudge_revisions == frozenset()
