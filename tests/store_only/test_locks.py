"""Which rows our statements lock, in which order, what they wait for and what they pass by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from tests.promises.shop import WAIT_SECONDS, Stepped, impatient, in_thread
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.model.job import DeleteVerdict, FinishVerdict, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    compacting,
    ids_of,
    insert,
    instances,
    new_node,
    new_task,
    nudge,
    outcome,
    run_all,
    seconds,
    tick,
    view,
)

_STEP_SECONDS = 0.01
_WAITING = text(
    "SELECT count(*) FROM pg_catalog.pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def table_order_engine(pg_engine: Engine) -> Iterator[Engine]:
    """Reads rows as they lie in the table, so that any other order is one that was asked for."""
    settings = "-c enable_indexscan=off -c enable_indexonlyscan=off -c enable_bitmapscan=off"
    engine = create_engine(pg_engine.url, connect_args={"options": settings})
    yield engine
    engine.dispose()


@pytest.fixture
def hurried_store(pg_engine: Engine) -> Iterator[SqlStore]:
    """Gives up at once when it has to wait for a row."""
    engine = impatient(pg_engine, 100)
    yield SqlStore(engine)
    engine.dispose()


def _await_waiting(engine: Engine) -> None:
    """Return once a transaction of this database waits for a lock."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / _STEP_SECONDS)):
        with engine.connect() as connection:
            if connection.scalar(_WAITING):
                return
        pause.wait(_STEP_SECONDS)
    raise AssertionError("nobody waits for a lock")


def _hold(connection: Connection, table: str, condition: str) -> None:
    found = connection.execute(
        text(f"SELECT 1 FROM threadmill_{table} WHERE {condition} FOR UPDATE")
    )
    assert found.all(), f"no row of {table} where {condition}"


def _free(engine: Engine, table: str, column: str) -> set[str]:
    with engine.begin() as connection:
        locking = text(f"SELECT {column} FROM threadmill_{table} FOR UPDATE SKIP LOCKED")
        return set(connection.execute(locking).scalars())


def test_a_tick_locks_many_tasks_in_the_order_of_their_names(
    pg_engine: Engine, table_order_engine: Engine
) -> None:
    store = SqlStore(table_order_engine)
    for name in ("c", "b", "a"):
        store.recurring.register(new_task(name), now=T0)

    with pg_engine.begin() as holder:
        _hold(holder, "cron_task_state", "task_name = 'b'")
        tick = in_thread(
            lambda: store.recurring.materialize(["c", "b", "a"], compacting, wait=True, now=T0)
        )
        _await_waiting(pg_engine)
        free = _free(pg_engine, "cron_task_state", "task_name")

    assert free == {"c"}
    assert [done.name for done in tick()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("table", "column", "first", "last"),
    [("queue_counts", "queue", "a", "b"), ("job_counts", "state", "ENQUEUED", "SCHEDULED")],
)
def test_a_folding_locks_the_counts_in_the_order_of_their_names(
    pg_engine: Engine, table: str, column: str, first: str, last: str
) -> None:
    store = SqlStore(pg_engine)
    fields: list[dict[str, Any]] = [
        {"queue": "b", "delay_seconds": 60.0},
        {"queue": "b"},
        {"queue": "a"},
    ]
    for each in fields:
        insert(store, **each)
    store.jobs.fold_counts(limit=100)
    for each in fields:
        insert(store, **each)

    with pg_engine.begin() as holder:
        _hold(holder, table, f"{column} = '{last}'")
        folding = in_thread(lambda: store.jobs.fold_counts(limit=100))
        _await_waiting(pg_engine)
        free = _free(pg_engine, table, column)

    assert first not in free
    assert folding() == 3


def test_a_tick_that_waits_for_another_one_reads_what_that_has_left(pg_engine: Engine) -> None:
    first_engine = create_engine(pg_engine.url)
    first, second = SqlStore(first_engine), SqlStore(pg_engine)
    plan = Planner(Uuid7Source())
    second.recurring.register(new_task(), now=T0)
    nudge(second)
    actor = Stepped(
        first_engine, lambda: first.recurring.materialize(["pump"], plan, wait=True, now=T0)
    )
    while not any("FOR UPDATE" in statement for statement in actor.statements):
        assert actor.step()

    waiting = in_thread(lambda: second.recurring.materialize(["pump"], plan, wait=True, now=T0))
    _await_waiting(pg_engine)
    [done] = actor.end()
    [late] = waiting()

    assert (done.result, late.result) == (TickResult.MATERIALIZED, TickResult.IDLE)
    assert len(instances(second)) == 1
    first_engine.dispose()


def _under_lock(statements: list[str]) -> Iterator[str]:
    return dropwhile(lambda statement: "FOR UPDATE" not in statement, statements)


def test_a_tick_that_compacts_keeps_others_out_until_it_has_committed(pg_engine: Engine) -> None:
    first_engine = create_engine(pg_engine.url)
    first, second = SqlStore(first_engine), SqlStore(pg_engine)
    plan = Planner(Uuid7Source())
    second.recurring.register(new_task(), now=T0)
    nudge(second)
    tick(second, plan)
    node = new_node()
    [running] = claim(second, node)
    for _ in range(2):
        nudge(second)
    actor = Stepped(first_engine, lambda: first.recurring.materialize(["pump"], plan, now=T0))
    while not any("threadmill_jobs" in statement for statement in _under_lock(actor.statements)):
        assert actor.step()  # up to the statement that reads under the lock that an instance runs

    second.jobs.finish(node, [outcome(running)], now=T0)
    beside = tick(second, plan)
    [held] = actor.end()

    assert (held.result, beside.result) == (TickResult.HELD, TickResult.BUSY)
    assert tick(second, plan).result is TickResult.MATERIALIZED
    assert view(second).nudge_revisions == frozenset()
    first_engine.dispose()


def test_a_claim_takes_what_an_open_claim_has_left(
    pg_engine: Engine, hurried_store: SqlStore
) -> None:
    first, second = insert(hurried_store, 2)

    with pg_engine.begin() as holder:
        _hold(holder, "jobs", f"id = '{first.id}'")
        claimed = claim(hurried_store, new_node())

    assert ids_of(claimed) == [second.id]


def test_a_promotion_takes_what_another_one_has_left(
    pg_engine: Engine, hurried_store: SqlStore
) -> None:
    first, _ = insert(hurried_store, 2, delay_seconds=1.0)

    with pg_engine.begin() as holder:
        _hold(holder, "jobs", f"id = '{first.id}'")
        promoted = hurried_store.jobs.promote(limit=10, now=T0 + seconds(1))

    assert promoted == 1


def test_a_reclaim_passes_by_what_a_finish_holds(
    pg_engine: Engine, hurried_store: SqlStore
) -> None:
    insert(hurried_store, 2)
    held = {job.id: job for job in claim(hurried_store, new_node())}
    first, second = held

    with pg_engine.begin() as holder:
        _hold(holder, "jobs", f"id = '{first}'")
        ended = hurried_store.jobs.reclaim(
            lambda orphan: outcome(held[orphan.id], OutcomeKind.FAILED),
            silent_since=AFTER_ALL,
            limit=10,
            now=T0,
        )

    assert [orphan.id for orphan, _ in ended] == [second]


@pytest.mark.parametrize("write", ["finish", "beat"])
def test_a_batch_locks_the_jobs_of_a_node_in_the_order_of_their_ids(
    pg_engine: Engine, write: str
) -> None:
    """A finish and a heartbeat of one node meet in many rows, sent in either order."""
    store = SqlStore(pg_engine)
    insert(store, 500)
    with pg_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE threadmill_jobs"))
    node = NodeInfo(new_node(), "host", 1, None, 1)
    held = sorted(claim(store, node.id, 20), key=lambda job: job.id, reverse=True)
    last, first = held[0].id, held[-1].id

    def work() -> object:
        if write == "finish":
            return store.jobs.finish(node.id, [outcome(job) for job in held], now=T0)
        return store.nodes.beat(node, [HeldJob(job.id, job.attempt_token) for job in held])

    with pg_engine.begin() as holder:
        _hold(holder, "jobs", f"id = '{last}'")
        writing = in_thread(work)
        _await_waiting(pg_engine)
        free = _free(pg_engine, "jobs", "id")

    assert first not in free
    assert writing() in ([FinishVerdict.RECORDED] * len(held), frozenset())


def test_a_folding_leaves_the_deltas_that_another_one_holds(
    pg_engine: Engine, hurried_store: SqlStore
) -> None:
    insert(hurried_store, queue="a")
    insert(hurried_store, queue="b")

    with pg_engine.begin() as holder:
        _hold(holder, "count_deltas", "queue = 'a'")
        folded = hurried_store.jobs.fold_counts(limit=10)

    assert folded == 1
    assert hurried_store.jobs.counts()[JobState.ENQUEUED] == 2


def test_a_claim_passes_by_a_job_that_is_being_deleted(
    pg_engine: Engine, hurried_store: SqlStore
) -> None:
    first_engine = create_engine(pg_engine.url)
    deleting = SqlStore(first_engine)
    first, second = insert(hurried_store, 2)
    actor = Stepped(first_engine, lambda: deleting.jobs.delete(first.id, now=T0))
    while not any("FOR UPDATE" in statement for statement in actor.statements):
        assert actor.step()

    claimed = claim(hurried_store, new_node())

    assert ids_of(claimed) == [second.id]
    assert actor.end() is DeleteVerdict.DELETED
    first_engine.dispose()


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ("UPDATE threadmill_jobs SET state = 'PROCESSING'", DeleteVerdict.RUNNING),
        ("UPDATE threadmill_jobs SET state = 'SUCCEEDED'", DeleteVerdict.DELETED),
        ("DELETE FROM threadmill_jobs", DeleteVerdict.UNKNOWN),
    ],
)
def test_a_delete_meets_what_the_write_that_it_waits_for_has_left(
    pg_engine: Engine, change: str, verdict: DeleteVerdict
) -> None:
    store = SqlStore(pg_engine)
    [job] = insert(store)

    with pg_engine.begin() as holder:
        holder.execute(text(change))
        deleting = in_thread(lambda: store.jobs.delete(job.id, now=T0))
        _await_waiting(pg_engine)

    assert deleting() is verdict


def test_a_removal_passes_by_what_another_one_holds(
    pg_engine: Engine, hurried_store: SqlStore
) -> None:
    first, second = insert(hurried_store, 2)
    run_all(hurried_store)

    with pg_engine.begin() as holder:
        _hold(holder, "jobs", f"id = '{first.id}'")
        removed = hurried_store.jobs.remove_old(
            JobState.SUCCEEDED, older_than_seconds=1.0, limit=10, now=T0 + seconds(1)
        )

    assert removed == 1
    assert hurried_store.jobs.get(first.id) is not None
    assert hurried_store.jobs.get(second.id) is None


def test_a_removal_holds_up_no_claim(pg_engine: Engine, hurried_store: SqlStore) -> None:
    first_engine = create_engine(pg_engine.url)
    removing = SqlStore(first_engine)
    insert(hurried_store, 3)
    run_all(hurried_store)
    [ready] = insert(hurried_store)
    actor = Stepped(
        first_engine,
        lambda: removing.jobs.remove_old(
            JobState.SUCCEEDED, older_than_seconds=1.0, limit=10, now=T0 + seconds(1)
        ),
    )
    while not any("job_history" in statement for statement in actor.statements):
        assert actor.step()  # everything is written, and nothing is committed

    claimed = claim(hurried_store, new_node())

    assert ids_of(claimed) == [ready.id]
    assert actor.end() == 3
    first_engine.dispose()
