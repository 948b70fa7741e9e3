"""SQLite serves the engine's statements from the partial indexes and the keys."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from tests.store_only.crowd import fill_sqlite, open_store
from tests.store_only.plans import sqlite_plans_of
from threadmill_sa import Threadmill
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, JobId, NodeId, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import FINISHED, JobState
from threadmill_sa.testing.suite.tools import AFTER_ALL

NODE = NodeId(JobId(UUID(int=7)))
BIG_TABLES = ("threadmill_jobs", "threadmill_cron_tasks", "threadmill_cron_task_state")


@pytest.fixture(params=["never analyzed", "analyzed"])
def tm(request: pytest.FixtureRequest, sqlite_engine: Engine) -> Threadmill:
    tm = open_store(sqlite_engine)
    fill_sqlite(sqlite_engine, jobs=5_000, tasks=2_000)
    if request.param == "analyzed":
        with sqlite_engine.begin() as connection:
            connection.execute(text("ANALYZE"))
    return tm


def _lines(found: list[tuple[str, list[str]]]) -> list[str]:
    return [line for _, lines in found for line in lines]


def _assert_no_scan(found: list[tuple[str, list[str]]]) -> None:
    for statement, lines in found:
        for line in lines:
            whole = line.startswith("SCAN") and "USING" not in line
            assert not (whole and line.split()[1] in BIG_TABLES), f"{statement}\n{lines}"


@pytest.mark.parametrize("queues", [None, ["queue-1"]], ids=["any queue", "one queue"])
def test_claim_finish_heartbeat_and_promote_use_their_indexes(
    tm: Threadmill, sqlite_engine: Engine, queues: list[str] | None
):
    with sqlite_plans_of(sqlite_engine) as found:
        claimed = tm.store.jobs.claim(NODE, queues=queues, handlers=["relay"], limit=50)
        held = [HeldJob(job.id, job.attempt_token) for job in claimed]
        tm.store.nodes.beat(NodeInfo(NODE, "here", 1, None, 1), held)
        ends = [
            AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)
            for job in claimed
        ]
        assert {"recorded"} == set(tm.store.jobs.finish(NODE, ends))
        assert tm.store.jobs.promote(limit=50) == 50

    assert len(claimed) == 50
    _assert_no_scan(found)
    used = "\n".join(_lines(found))
    assert "ix_threadmill_jobs_ready" in used
    assert "ix_threadmill_jobs_scheduled" in used
    assert "TEMP B-TREE" not in used


def test_a_tick_uses_the_indexes_of_the_schedule_and_of_the_guard(
    tm: Threadmill, sqlite_engine: Engine
):
    names = [f"idle-{7 * number}" for number in range(1, 101)]
    with sqlite_plans_of(sqlite_engine) as found:
        tm.nudge("pump")
        assert tm.store.recurring.nominate(after=None, limit=1000) == ["pump"]
        tm.store.recurring.materialize(names, tm._materializer._plan)
        tm.store.recurring.sweep_nudges(limit=100)

    _assert_no_scan(found)
    used = "\n".join(_lines(found))
    assert "ix_threadmill_cron_task_state_next_run_at" in used
    assert "ix_threadmill_jobs_task_unfinished" in used, used


def test_reclaim_and_counts_read_only_what_they_need(tm: Threadmill, sqlite_engine: Engine):
    tm.store.jobs.claim(NODE, queues=None, handlers=["relay"], limit=3)
    with sqlite_plans_of(sqlite_engine) as found:
        reclaimed = tm.store.jobs.reclaim(
            lambda orphan: AttemptOutcome(
                orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.EXCEPTION
            ),
            silent_since=AFTER_ALL,
            limit=10,
        )
        assert sum(tm.store.jobs.counts().values()) == 5_000
        tm.store.jobs.queue_depths()

    assert len(reclaimed) == 3
    _assert_no_scan(found)
    assert "ix_threadmill_jobs_processing" in "\n".join(_lines(found))


@pytest.mark.parametrize("state", FINISHED)
def test_removing_finished_jobs_uses_their_index_and_that_of_the_history(
    tm: Threadmill, sqlite_engine: Engine, state: JobState
):
    for job in tm.list_jobs(limit=3, state=JobState.ENQUEUED):
        tm.delete_job(job.id)
    with sqlite_engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE threadmill_jobs SET state = :state, state_at = 1 WHERE id IN"
                " (SELECT id FROM threadmill_jobs WHERE state = 'SUCCEEDED' LIMIT 60)"
            ),
            {"state": state.value},
        )
    with sqlite_plans_of(sqlite_engine) as found:
        removed = tm.store.jobs.remove_old(state, older_than_seconds=86_400.0, limit=50)

    assert removed == 50
    used = _lines(found)
    assert not any(line.startswith("SCAN threadmill_job") for line in used), used
    assert any("ix_threadmill_jobs_finished (state=? AND state_at<?)" in line for line in used)
    assert any("ix_threadmill_job_history_job (job_id=?)" in line for line in used), used
    assert "TEMP B-TREE" not in "\n".join(used)
