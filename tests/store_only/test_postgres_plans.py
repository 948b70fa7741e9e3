"""Every statement of the engine finds its rows by an index, analyzed or not, at any batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.fixtures.servers import Server, postgres_keys
from tests.store_only.crowd import fill_postgres, open_store
from tests.store_only.plans import Plan, generic_plans, pick, plans_of
from threadmill_sa import Threadmill
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import AttemptOutcome, JobId, NodeId, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import JobState
from threadmill_sa.testing.suite.tools import BEFORE_ALL

NODE = NodeId(JobId(UUID(int=7)))
READY, READY_QUEUE = "ix_threadmill_jobs_ready", "ix_threadmill_jobs_ready_queue"
BATCHES = [1, 10, 100, 500]


@pytest.fixture(scope="module", params=postgres_keys())
def crowded(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Threadmill]:
    with ExitStack() as stack:
        url = stack.enter_context(postgres_servers(request.param).fresh_database())
        engine = create_engine(url, pool_size=1, max_overflow=0)
        stack.callback(engine.dispose)
        tm = open_store(engine)
        stack.callback(tm.close)
        fill_postgres(engine)
        yield tm


@pytest.fixture(params=["never analyzed", "analyzed"])
def tm(request: pytest.FixtureRequest, crowded: Threadmill) -> Threadmill:
    """The crowd with statistics and as if nobody had ever gathered any."""
    with engine_of(crowded).begin() as connection:
        if request.param == "analyzed":
            connection.execute(text("ANALYZE"))
        else:
            connection.execute(
                text(
                    "DELETE FROM pg_statistic WHERE starelid IN"
                    " (SELECT oid FROM pg_class WHERE relname LIKE 'threadmill%')"
                )
            )
            connection.execute(
                text("UPDATE pg_class SET reltuples = -1, relpages = 0"
                     " WHERE relname LIKE 'threadmill%' AND relkind = 'r'")
            )  # fmt: skip
    return crowded


def engine_of(tm: Threadmill) -> Engine:
    engine: Engine = tm.store._engine  # type: ignore[attr-defined]
    return engine


def _by_index(plan: Plan, *indexes: str) -> None:
    assert not plan.scans_whole("threadmill_jobs"), str(plan)
    assert set(indexes) <= plan.indexes, str(plan)


def _by_id(plan: Plan) -> None:
    """Whichever index of ids is taken, the wanted ids lead to the rows, nothing else is read."""
    _by_index(plan)
    reads = [node for node in plan.nodes if "Index Name" in node]
    assert {"pk_threadmill_jobs", "ix_threadmill_jobs_processing"} >= plan.indexes, str(plan)
    assert reads, str(plan)
    assert all("id" in node.get("Index Cond", "") for node in reads), str(plan)


@pytest.mark.parametrize("limit", BATCHES)
@pytest.mark.parametrize("queues", [None, ["queue-1"]], ids=["any queue", "one queue"])
def test_claim_uses_its_partial_index_and_updates_by_the_primary_key(
    tm: Threadmill, limit: int, queues: list[str] | None
):
    with plans_of(engine_of(tm)) as plans:
        claimed = tm.store.jobs.claim(NODE, queues=queues, handlers=["relay"], limit=limit)

    assert len(claimed) == limit
    plan = pick(plans, "SKIP LOCKED")
    _by_index(plan, "pk_threadmill_jobs")
    # For a queue with a large share of the jobs either index is a good one.
    serving = {READY} if queues is None else {READY, READY_QUEUE}
    assert serving & plan.indexes, str(plan)


@pytest.mark.parametrize("batch", BATCHES)
def test_finish_and_heartbeat_use_the_primary_key(tm: Threadmill, batch: int):
    claimed = tm.store.jobs.claim(NODE, queues=None, handlers=["relay"], limit=batch)
    held = [HeldJob(job.id, job.attempt_token) for job in claimed]
    ends = [
        AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)
        for job in claimed
    ]
    with plans_of(engine_of(tm)) as plans:
        tm.store.nodes.beat(NodeInfo(NODE, "here", 1, None, 1), held)
        assert {"recorded"} == set(tm.store.jobs.finish(NODE, ends))

    beating, finishing = [plan for plan in plans if plan.statement.startswith("UPDATE")]
    for plan in (beating, finishing):
        _by_id(plan)


@pytest.mark.parametrize("limit", BATCHES)
def test_promote_uses_its_partial_index(tm: Threadmill, limit: int):
    with plans_of(engine_of(tm)) as plans:
        assert tm.store.jobs.promote(limit=limit) == limit

    _by_index(pick(plans, "SKIP LOCKED"), "ix_threadmill_jobs_scheduled", "pk_threadmill_jobs")


def test_reclaim_uses_its_partial_index(tm: Threadmill):
    with plans_of(engine_of(tm)) as plans:
        tm.store.jobs.reclaim(
            lambda orphan: AttemptOutcome(
                orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.EXCEPTION
            ),
            silent_since=BEFORE_ALL,
            limit=10,
        )

    _by_index(pick(plans, "FOR UPDATE"), "ix_threadmill_jobs_processing")


def test_counts_and_depths_never_touch_the_jobs(tm: Threadmill):
    with plans_of(engine_of(tm)) as plans:
        assert sum(tm.store.jobs.counts().values()) >= 100_000
        assert tm.store.jobs.queue_depths()
        tm.store.jobs.fold_counts(limit=100)

    touched = {node.get("Relation Name") for plan in plans for node in plan.nodes}
    assert "threadmill_jobs" not in touched
    assert len(plans) >= 3


def test_nominating_costs_the_same_beside_ten_and_beside_100_000_idle_tasks(tm: Threadmill):
    tm.nudge("pump")
    with plans_of(engine_of(tm), "ANALYZE, BUFFERS, FORMAT JSON") as plans:
        assert tm.store.recurring.nominate(after=None, limit=1000) == ["pump"]

    [plan] = plans
    for table in ("threadmill_cron_tasks", "threadmill_cron_task_state"):
        assert not plan.scans_whole(table), str(plan)
    assert "ix_threadmill_cron_task_state_next_run_at" in plan.indexes, str(plan)
    pages = plan.total("Shared Hit Blocks") + plan.total("Shared Read Blocks")
    assert pages <= 30, str(plan)


@pytest.mark.parametrize("size", [1, 100])
def test_a_tick_reads_tasks_by_key_and_asks_the_guards_partial_index(tm: Threadmill, size: int):
    # Multiples of seven have jobs; the jobs of others are nowhere to be found.
    names = [f"idle-{7 * (number + 1)}" for number in range(size)]
    with plans_of(engine_of(tm)) as plans:
        tm.store.recurring.materialize(names, tm._materializer._plan)

    read = pick(plans, "EXISTS")
    _by_index(read, "ix_threadmill_jobs_task_unfinished")
    for plan in plans:
        for table in ("threadmill_cron_tasks", "threadmill_cron_task_state"):
            assert not plan.scans_whole(table), str(plan)


def test_a_joined_nudge_and_an_enqueue_read_one_task_by_its_key(tm: Threadmill):
    with engine_of(tm).connect() as connection, plans_of(engine_of(tm)) as plans:
        tm.nudge("pump", connection)
        tm.enqueue("relay", session=connection)
        tm.enqueue_many([("relay", None)] * 100, connection)
        connection.rollback()

    accepting = pick(plans, "cron_nudges")
    assert "pk_threadmill_cron_tasks" in accepting.indexes, str(accepting)
    assert not any(plan.scans_whole("threadmill_jobs") for plan in plans)


def test_generic_plans_after_mixed_batch_sizes_on_one_connection_keep_the_indexes(tm: Threadmill):
    for limit in (1, 500, 10, 100, 1, 500, 10, 100, 2, 3, 250, 400):
        claimed = tm.store.jobs.claim(NODE, queues=None, handlers=["relay"], limit=limit)
        tm.store.jobs.claim(NODE, queues=["queue-0"], handlers=["relay"], limit=min(limit, 10))
        ends = [
            AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)
            for job in claimed
        ]
        tm.store.jobs.finish(NODE, ends)
        tm.store.jobs.promote(limit=min(limit, 50))
        tm.store.jobs.remove_old(JobState.SUCCEEDED, older_than_seconds=0.0, limit=min(limit, 50))
        tm.store.recurring.nominate(after=None, limit=1000)
        names = [f"idle-{7 * number}" for number in range(1, 2 + limit % 99)]
        tm.store.recurring.materialize(names, tm._materializer._plan)

    with engine_of(tm).connect() as connection:
        driver = connection.connection.dbapi_connection
        skipping = generic_plans(driver, "SKIP LOCKED")
        finishes = generic_plans(driver, "given_back")
        nominations = generic_plans(driver, "broken_at IS NOT NULL")
        readings = generic_plans(driver, "EXISTS")
        sides = generic_plans(driver, "DELETE FROM public.threadmill_job_history")
    claims = [plan for plan in skipping if "owner_node_id" in plan.statement]
    promotions = [plan for plan in skipping if "'SCHEDULED'" in plan.statement]
    removals = [plan for plan in skipping if "'SUCCEEDED'" in plan.statement]
    found = (claims, finishes, nominations, readings, promotions, removals, sides)
    assert min(map(len, found)) >= 1
    for plan in claims:
        assert {READY, READY_QUEUE} & plan.indexes, str(plan)
        assert "pk_threadmill_jobs" in plan.indexes, str(plan)
    for plan in finishes:
        _by_id(plan)
    for plan in promotions:
        _by_index(plan, "ix_threadmill_jobs_scheduled", "pk_threadmill_jobs")
    for plan in removals:
        _by_index(plan, "ix_threadmill_jobs_finished", "pk_threadmill_jobs")
    for plan in sides:
        assert not plan.scans_whole("threadmill_job_history"), str(plan)
    for plan in readings:
        _by_index(plan, "ix_threadmill_jobs_task_unfinished")
    for plan in nominations:
        assert not plan.scans_whole("threadmill_cron_task_state"), str(plan)
        assert not plan.scans_whole("threadmill_cron_tasks"), str(plan)


FINISHED = [JobState.SUCCEEDED, JobState.FAILED]


@pytest.mark.parametrize("limit", [1, 10, limits.RETENTION_BATCH])
@pytest.mark.parametrize("state", FINISHED)
def test_removing_finished_jobs_reads_the_oldest_by_their_index_and_no_other_row(
    tm: Threadmill, state: JobState, limit: int, request: pytest.FixtureRequest
):
    known = "never" not in request.node.callspec.params["tm"]
    with plans_of(engine_of(tm)) as plans:
        removed = tm.store.jobs.remove_old(state, older_than_seconds=86_400.0, limit=limit)

    assert removed == limit
    removing = pick(plans, "SKIP LOCKED")
    _by_index(removing, "ix_threadmill_jobs_finished", "pk_threadmill_jobs")
    [seek] = [n for n in removing.nodes if "finished" in n.get("Index Name", "")]
    assert "state_at" in seek["Index Cond"], str(removing)
    if known:  # else it expects so few jobs of that age that it may sort them all
        assert seek["Node Type"] == "Index Scan", str(removing)
        assert not any(node["Node Type"] == "Sort" for node in removing.nodes), str(removing)
    sides = pick(plans, "job_history")
    assert not sides.scans_whole("threadmill_job_history"), str(sides)
    assert "ix_threadmill_job_history_job" in sides.indexes, str(sides)
