"""What happens between the reading and the writing of a tick, which are two scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import check_books
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.limits import STORE_TRIES
from threadmill_sa.model.nudge import ClearOutcome
from threadmill_sa.spi.recurring import TaskPlan, TaskReading, TickResult
from threadmill_sa.stores.redis.materializing import COMMIT_TRIES
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import (
    T0,
    insert,
    instances,
    new_task,
    nudge,
    run_all,
    seconds,
    tick,
    view,
)

DUE = T0 + seconds(600)
plan = Planner(Uuid7Source())


class Between:
    """Plans as the engine does, after something has happened since the reading."""

    def __init__(self, *happens: Callable[[], object], for_ever: bool = False) -> None:
        self._happens = list(happens)
        self._for_ever = for_ever
        self.readings: list[TaskReading] = []

    def __call__(self, reading: TaskReading) -> TaskPlan:
        self.readings.append(reading)
        if self._happens:
            act = self._happens[0] if self._for_ever else self._happens.pop(0)
            act()
        return plan(reading)


@pytest.fixture(autouse=True)
def _pump(redis_store: RedisStore) -> None:
    redis_store.recurring.register(new_task(), now=T0)


def test_a_whole_run_by_another_tick_is_seen(
    redis_store: RedisStore, redis_space: RedisSpace
) -> None:
    def other_tick() -> None:
        tick(redis_store, plan, DUE)
        run_all(redis_store, at=DUE)

    done = tick(redis_store, Between(other_tick), DUE)

    assert done.result is TickResult.IDLE
    assert len(instances(redis_store)) == 1
    assert view(redis_store).next_run_at == DUE + seconds(600)
    check_books(redis_space)


def test_an_instance_that_appears_holds(redis_store: RedisStore) -> None:
    done = tick(redis_store, Between(lambda: insert(redis_store, cron_task_name="pump")), DUE)

    assert done.result is TickResult.HELD
    assert len(instances(redis_store)) == 1
    assert view(redis_store).next_run_at == DUE


def test_a_nudge_that_comes_is_served_by_the_run_of_the_fire(redis_store: RedisStore) -> None:
    between = Between(lambda: nudge(redis_store, DUE))

    done = tick(redis_store, between, DUE)

    assert [reading.pending is None for reading in between.readings] == [True, False]
    assert done.result is TickResult.MATERIALIZED
    assert view(redis_store).nudge_revisions == frozenset()
    assert len(instances(redis_store)) == 1


def test_a_newer_nudge_is_served_by_the_run_of_the_older(redis_store: RedisStore) -> None:
    nudge(redis_store)
    between = Between(lambda: nudge(redis_store))

    done = tick(redis_store, between)

    assert len(between.readings) == 1  # a burst of nudges keeps no tick from its commit
    assert done.result is TickResult.MATERIALIZED
    assert view(redis_store).nudge_revisions == frozenset()


def test_a_nudge_that_is_cleared_gives_no_run(redis_store: RedisStore) -> None:
    observed = frozenset({nudge(redis_store)})

    def clear() -> None:
        cleared = redis_store.recurring.clear_cron_nudge("pump", observed)
        assert cleared is ClearOutcome.CLEARED

    done = tick(redis_store, Between(clear))

    assert done.result is TickResult.IDLE
    assert instances(redis_store) == []


def test_a_pause_wins_over_what_was_planned(redis_store: RedisStore) -> None:
    nudge(redis_store, DUE)

    done = tick(
        redis_store,
        Between(lambda: redis_store.recurring.set_enabled("pump", enabled=False, now=DUE)),
        DUE,
    )

    assert done.result is TickResult.DISABLED
    assert instances(redis_store) == []


def test_a_new_registration_is_planned_anew(redis_store: RedisStore) -> None:
    def renew() -> None:
        redis_store.recurring.delete("pump")
        redis_store.recurring.register(new_task(), now=T0)

    between = Between(renew)
    before = view(redis_store).epoch

    done = tick(redis_store, between, DUE)

    assert [reading.task.epoch > before for reading in between.readings] == [False, True]
    assert done.result is TickResult.MATERIALIZED


def test_a_task_that_never_stands_still_is_busy_and_the_others_go_on(
    redis_store: RedisStore,
) -> None:
    redis_store.recurring.register(new_task("other"), now=T0)
    edits = iter(range(100))

    def edit() -> None:
        redis_store.recurring.register(new_task(payload=str(next(edits))), now=T0)

    def restless(reading: TaskReading) -> TaskPlan:
        if reading.task.name == "pump":
            edit()
        return plan(reading)

    done = redis_store.recurring.materialize(["other", "pump"], restless, now=DUE)

    assert [each.result for each in done] == [TickResult.MATERIALIZED, TickResult.BUSY]
    assert next(edits) == COMMIT_TRIES - 1
    assert instances(redis_store) == []


def test_who_waits_for_a_task_that_never_stands_still_is_told(redis_store: RedisStore) -> None:
    edits = iter(range(100))
    restless = Between(
        lambda: redis_store.recurring.register(new_task(payload=str(next(edits))), now=T0),
        for_ever=True,
    )

    with pytest.raises(StoreUnavailableError, match="pump"):
        redis_store.recurring.materialize(["pump"], restless, wait=True, now=DUE)

    assert len(restless.readings) == STORE_TRIES
    assert instances(redis_store) == []
