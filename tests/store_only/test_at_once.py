"""A nudged task that is run without its lock, whatever happens meanwhile.

Between the read and the write, and inside the write, between its snapshot and its row lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.promises.shop import WAIT_SECONDS, Stepped, in_thread
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

_GATE = 4711
_GATED = (
    """CREATE FUNCTION passed() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_lock_shared({gate});
        PERFORM pg_advisory_unlock_shared({gate});
        RETURN true;
    END $$""",
    "ALTER TABLE threadmill_cron_task_state ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY gated ON threadmill_cron_task_state TO {role} USING (passed())",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
    "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
)
_OPEN = (
    "DROP OWNED BY {role}",
    "ALTER TABLE threadmill_cron_task_state DISABLE ROW LEVEL SECURITY",
    "DROP FUNCTION passed",
    "DROP ROLE {role}",
)
_AT_THE_GATE = text(
    "SELECT count(*) FROM pg_catalog.pg_stat_activity"
    " WHERE datname = current_database() AND wait_event = 'advisory'"
)


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
    assert view(store).nudge_revisions == frozenset()
    assert tick(store, PLAN).result is TickResult.IDLE


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


@pytest.fixture
def engines(pg_engine: Engine) -> Iterator[tuple[Engine, Engine]]:
    """The usual engine, and one whose role reads a state row only while nobody holds the gate.

    The condition of the policy is judged after the snapshot of a statement is taken and before
    it locks the row: nothing else stops a statement just there.
    """
    role = f"tm_gated_{uuid4().hex[:10]}"
    with pg_engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'"))
        for statement in _GATED:
            connection.execute(text(statement.format(role=role, gate=_GATE)))
    engine = create_engine(pg_engine.url.set(username=role, password="secret"))
    yield pg_engine, engine
    engine.dispose()
    with pg_engine.begin() as connection:
        for statement in _OPEN:
            connection.execute(text(statement.format(role=role)))


def _await_the_gate(engine: Engine) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        with engine.connect() as connection:
            if connection.scalar(_AT_THE_GATE):
                return
        pause.wait(0.01)
    raise AssertionError("nobody stands at the gate")


def _flip(store: SqlStore) -> None:
    for enabled in (False, True):
        store.recurring.set_enabled("pump", enabled=enabled, now=T0)


def _renew(store: SqlStore) -> None:
    store.recurring.delete("pump")
    store.recurring.register(new_task(), now=T0)


def _trigger(store: SqlStore) -> None:
    store.recurring.trigger("pump", lambda task: manual_instance(task, new_id()), now=T0)


def _clear(store: SqlStore) -> None:
    store.recurring.clear_cron_nudge("pump", view(store).nudge_revisions)


@pytest.mark.parametrize(
    ("meanwhile", "runs", "left"),
    [
        (lambda store: store.recurring.register(new_task(payload="2"), now=T0), 1, False),
        (lambda store: store.recurring.set_enabled("pump", enabled=False, now=T0), 0, False),
        (_flip, 0, False),
        (_renew, 0, False),
        (_trigger, 0, True),
        (_clear, 0, False),
        (lambda store: tick(store, PLAN), 0, False),
        (nudge, 1, True),
    ],
    ids=["edit", "pause", "pause and resume", "renew", "trigger", "clear", "tick", "nudge"],
)
def test_what_commits_after_the_snapshot_and_before_the_lock_is_not_overlooked(
    engines: tuple[Engine, Engine],
    store: SqlStore,
    meanwhile: Callable[[SqlStore], Any],
    runs: int,
    left: bool,
) -> None:
    done = _within(engines, lambda: meanwhile(store))

    assert len(done.jobs) == runs
    assert bool(view(store).nudge_revisions) is left
    for job in done.jobs:
        assert job.payload == view(store).payload


def test_n2_a_compaction_inside_the_statement_leaves_one_follow_up(
    engines: tuple[Engine, Engine], store: SqlStore
) -> None:
    tick(store, PLAN)
    node = new_node()
    [running] = claim(store, node)
    for _ in range(2):
        nudge(store)
    other_engine = create_engine(engines[0].url)
    other = SqlStore(other_engine)
    compaction = Stepped(other_engine, lambda: other.recurring.materialize(["pump"], PLAN, now=T0))
    while not any("INSERT INTO" in statement for statement in compaction.statements):
        assert compaction.step()  # it holds the lock, and has read that an instance runs
    nudge(store)  # the compaction leaves it alone, and the write below takes it
    store.jobs.finish(node, [outcome(running)], now=T0)

    done = _within(engines, compaction.end)

    assert (done.result, len(done.jobs)) == (TickResult.MATERIALIZED, 1)
    assert view(store).nudge_revisions == frozenset()
    other_engine.dispose()


def _within(engines: tuple[Engine, Engine], meanwhile: Callable[[], Any]) -> TaskOutcome:
    """Tick; do `meanwhile` when the write has its snapshot and not yet the row lock."""
    engine, gated = engines
    own = SqlStore(gated)
    actor = Stepped(gated, lambda: own.recurring.materialize(["pump"], PLAN, now=T0))
    while not any("xmin" in statement for statement in actor.statements):
        assert actor.step()
    with engine.connect() as keeper:
        keeper.execute(text(f"SELECT pg_advisory_xact_lock({_GATE})"))
        ending = in_thread(actor.end)
        _await_the_gate(engine)
        meanwhile()
    (done,) = ending()
    assert isinstance(done, TaskOutcome)
    return done
