"""A nudged task that is run without its lock: whatever happens between the read and the write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.promises.shop import Stepped
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.client import manual_instance
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.spi.recurring import TaskOutcome, TickResult
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing.suite.tools import (
    T0,
    claim,
    instances,
    new_id,
    new_node,
    new_task,
    nudge,
    outcome,
    tick,
    view,
)

PLAN = Planner(Uuid7Source())


def _disturbed(engine: Engine, store: SqlStore, meanwhile: Callable[[], Any]) -> TaskOutcome:
    """Tick; do `meanwhile` when the task was read and nothing is written yet."""
    own_engine = create_engine(engine.url)
    own = SqlStore(own_engine)
    actor = Stepped(own_engine, lambda: own.recurring.materialize(["pump"], PLAN, now=T0))
    while not any("xmin" in statement for statement in actor.statements):
        assert actor.step()
    assert not any("FOR UPDATE" in statement for statement in actor.statements)
    meanwhile()
    (done,) = actor.end()
    own_engine.dispose()
    assert isinstance(done, TaskOutcome)
    return done


@pytest.fixture
def store(pg_engine: Engine) -> SqlStore:
    made = SqlStore(pg_engine)
    made.recurring.register(new_task(), now=T0)
    nudge(made)
    return made


def test_undisturbed_it_runs_and_takes_the_nudge(pg_engine: Engine, store: SqlStore) -> None:
    done = _disturbed(pg_engine, store, lambda: None)

    assert done.result is TickResult.MATERIALIZED
    assert [job.cron_origin for job in instances(store)] == [CronOrigin.NUDGE]
    assert view(store).nudge_revisions == frozenset()


def test_a_nudge_that_commits_meanwhile_is_taken_with_the_others(
    pg_engine: Engine, store: SqlStore
) -> None:
    done = _disturbed(pg_engine, store, lambda: nudge(store))

    assert done.result is TickResult.MATERIALIZED
    assert len(instances(store)) == 1
    assert view(store).nudge_revisions == frozenset()  # committed before the job's transaction


@pytest.mark.parametrize("field", ["payload", "handler", "queue"])
def test_an_edit_meanwhile_counts_though_the_timing_is_the_same(
    pg_engine: Engine, store: SqlStore, field: str
) -> None:
    fields: dict[str, Any] = {field: '"edited"' if field == "payload" else "edited"}
    edited = new_task(**fields)

    done = _disturbed(pg_engine, store, lambda: store.recurring.register(edited, now=T0))

    assert done.result is TickResult.MATERIALIZED
    [job] = instances(store)
    assert getattr(job, field) == getattr(edited, field)


def test_a_pause_meanwhile_wins(pg_engine: Engine, store: SqlStore) -> None:
    done = _disturbed(
        pg_engine, store, lambda: store.recurring.set_enabled("pump", enabled=False, now=T0)
    )

    assert (done.jobs, instances(store)) == ((), [])


def test_a_pause_that_ends_meanwhile_has_dropped_the_nudge(
    pg_engine: Engine, store: SqlStore
) -> None:
    def flip() -> None:
        for enabled in (False, True):
            store.recurring.set_enabled("pump", enabled=enabled, now=T0)

    done = _disturbed(pg_engine, store, flip)

    assert (done.result, instances(store)) == (TickResult.IDLE, [])


def test_a_new_registration_meanwhile_is_not_reached(pg_engine: Engine, store: SqlStore) -> None:
    def renew() -> None:
        store.recurring.delete("pump")
        store.recurring.register(new_task(), now=T0)

    done = _disturbed(pg_engine, store, renew)

    assert (done.result, instances(store)) == (TickResult.IDLE, [])


def test_a_deletion_meanwhile_leaves_nothing(pg_engine: Engine, store: SqlStore) -> None:
    done = _disturbed(pg_engine, store, lambda: store.recurring.delete("pump"))

    assert (done.result, instances(store)) == (TickResult.UNKNOWN_TASK, [])


def test_a_nudge_that_is_cleared_meanwhile_runs_nothing(
    pg_engine: Engine, store: SqlStore
) -> None:
    observed = view(store).nudge_revisions

    done = _disturbed(pg_engine, store, lambda: store.recurring.clear_cron_nudge("pump", observed))

    assert (done.result, instances(store)) == (TickResult.IDLE, [])


def test_another_tick_meanwhile_is_the_only_one(pg_engine: Engine, store: SqlStore) -> None:
    done = _disturbed(pg_engine, store, lambda: tick(store, PLAN))

    assert done.result is TickResult.IDLE
    assert len(instances(store)) == 1


def test_a_run_that_began_and_ended_meanwhile_leaves_the_later_nudge_one_run(
    pg_engine: Engine, store: SqlStore
) -> None:
    def run_and_nudge() -> None:
        tick(store, PLAN)
        node = new_node()
        [job] = claim(store, node)
        store.jobs.finish(node, [outcome(job)], now=T0)
        nudge(store)

    done = _disturbed(pg_engine, store, run_and_nudge)

    assert done.result is TickResult.MATERIALIZED
    assert len(instances(store)) == 2
    assert tick(store, PLAN).result is TickResult.HELD or not view(store).nudge_revisions


def test_a_manual_instance_meanwhile_holds_the_run_back(
    pg_engine: Engine, store: SqlStore
) -> None:
    done = _disturbed(
        pg_engine,
        store,
        lambda: store.recurring.trigger(
            "pump", lambda task: manual_instance(task, new_id()), now=T0
        ),
    )

    assert done.result is TickResult.HELD
    assert [job.cron_origin for job in instances(store)] == [CronOrigin.MANUAL]
    assert view(store).nudge_revisions


def test_a_task_that_somebody_holds_is_passed_by(pg_engine: Engine, store: SqlStore) -> None:
    holder = pg_engine.connect()
    with holder:
        done = _disturbed(
            pg_engine,
            store,
            lambda: holder.execute(
                text("SELECT 1 FROM threadmill_cron_task_state FOR UPDATE")
            ).all(),
        )

    assert (done.result, instances(store)) == (TickResult.BUSY, [])
    assert tick(store, PLAN).result is TickResult.MATERIALIZED
