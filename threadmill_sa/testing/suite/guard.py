"""What a tick looks at, and what holds it back."""

from __future__ import annotations

from datetime import datetime

import pytest

from threadmill_sa.model import limits
from threadmill_sa.model.job import OutcomeKind
from threadmill_sa.model.trigger import TriggerKind
from threadmill_sa.spi.recurring import Plan, TickResult
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    claim,
    insert,
    new_node,
    new_task,
    outcome,
    seconds,
    tick,
    view,
)

DUE = T0 + seconds(600)
HOUR, DAY = 3600.0, 86_400.0


class NominateSuite:
    def _names(self, store: JobStore, at: datetime = DUE, limit: int = 100) -> list[str]:
        return store.recurring.nominate(after=None, limit=limit, now=at)

    def test_a_task_is_nominated_from_its_instant_on(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)

        assert self._names(store, DUE - seconds(1e-6)) == []
        assert self._names(store, DUE) == ["pump"]
        assert self._names(store, DUE + seconds(DAY)) == ["pump"]
        assert self._names(store, T0) == []

    def test_a_nudged_task_is_nominated_at_once(self, store: JobStore) -> None:
        for name in ("a", "b"):
            store.recurring.register(new_task(name), now=T0)
        store.recurring.request_cron_nudge("b", now=T0)

        assert self._names(store, T0) == ["b"]

    def test_a_paused_task_is_not_nominated(self, store: JobStore) -> None:
        store.recurring.register(new_task(), now=T0)
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        assert self._names(store, DUE) == []

    def test_names_come_in_pages_by_code_points(self, store: JobStore) -> None:
        names = ["B", "a", "a b", "_", "\u00e4", "a-", "\U0001f9f5"]
        for name in names:
            store.recurring.register(new_task(name), now=T0)
        store.recurring.request_cron_nudge("a", now=T0)

        pages, after = [], None
        for _ in range(4):
            page = store.recurring.nominate(after=after, limit=3, now=DUE)
            assert after is None or not page or page[0] > after, "a page does not move on"
            pages.append(page)
            after = page[-1] if page else after

        ordered = sorted(names)
        assert pages == [ordered[:3], ordered[3:6], ordered[6:], []]

    def test_a_task_is_not_nominated_after_its_run(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        tick(store, plan, DUE)

        assert self._names(store, DUE) == []

    def test_a_held_task_stays_nominated(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        tick(store, plan, DUE)
        tick(store, plan, DUE + seconds(600))

        assert self._names(store, DUE + seconds(600)) == ["pump"]

    def test_a_broken_task_is_looked_at_again_after_its_pause(
        self, store: JobStore, plan: Plan
    ) -> None:
        bad = new_task(trigger_kind=TriggerKind.CRON, trigger_value="61 * * * *")
        store.recurring.register(bad, now=T0)
        again = T0 + seconds(limits.BROKEN_RETRY_SECONDS)

        assert self._names(store, again - seconds(1)) == []
        assert self._names(store, again) == ["pump"]

        done = tick(store, plan, again)

        assert done.result is TickResult.BROKEN
        assert done.broken_reason == view(store).broken_reason
        assert view(store).broken_at == again
        assert self._names(store, again) == []


class GuardSuite:
    """One unfinished instance holds back the next, whatever it is and wherever it stands."""

    @pytest.mark.parametrize("delay", [None, 9999.0])
    def test_an_instance_that_waits_holds(
        self, store: JobStore, plan: Plan, delay: float | None
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        insert(store, cron_task_name="pump", delay_seconds=delay)

        assert tick(store, plan, DUE).result is TickResult.HELD
        assert view(store).next_run_at == DUE

    def test_an_instance_that_runs_holds(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        insert(store, cron_task_name="pump")
        claim(store, new_node())

        assert tick(store, plan, DUE).result is TickResult.HELD

    def test_an_instance_between_two_attempts_holds(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        insert(store, cron_task_name="pump")
        node = new_node()
        store.jobs.finish(node, [outcome(claim(store, node)[0], OutcomeKind.RETRY)], now=T0)

        assert tick(store, plan, DUE).result is TickResult.HELD

    @pytest.mark.parametrize(
        "kind", [OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.QUARANTINED]
    )
    def test_an_ended_instance_lets_go(
        self, store: JobStore, plan: Plan, kind: OutcomeKind
    ) -> None:
        store.recurring.register(new_task(), now=T0)
        insert(store, cron_task_name="pump")
        node = new_node()
        store.jobs.finish(node, [outcome(claim(store, node)[0], kind)], now=T0)

        assert tick(store, plan, DUE).result is TickResult.MATERIALIZED

    def test_jobs_of_other_tasks_do_not_hold(self, store: JobStore, plan: Plan) -> None:
        store.recurring.register(new_task(), now=T0)
        insert(store, cron_task_name="Pump")
        insert(store)

        assert tick(store, plan, DUE).result is TickResult.MATERIALIZED
