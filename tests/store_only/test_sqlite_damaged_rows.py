"""Columns of SQLite that hold what their type does not: each row stops only itself.

PostgreSQL refuses such values, so nobody can write them there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from tests.fixtures.sql import engine_for
from threadmill_sa import Cron, JobContext, Threadmill
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import failure
from threadmill_sa.model.job import JobId
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.testing import ManualClock
from threadmill_sa.testing.suite.tools import AFTER_ALL, claim, insert, new_node, outcome
from threadmill_sa.testing.suite.tools import T0 as AT

T0 = datetime(2027, 1, 4, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Host:
    """A process with two hourly tasks; `ran` names the tasks and jobs whose handler was called."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clock = ManualClock(T0)
        self.ran: list[str | JobId] = []
        self.tm = Threadmill(engine, clock=self.clock)
        self.tm.job("work")(self._work)
        for name in ("bad", "good"):
            self.tm.recurring(name, self._work, Cron("0 * * * *"))

    def _work(self, ctx: JobContext) -> None:
        self.ran.append(ctx.cron_task_name or ctx.id)

    def edit(self, table: str, column: str, value: object, **where: str) -> None:
        [(key, found)] = where.items()
        statement = f"UPDATE threadmill_{table} SET {column} = :value WHERE {key} = :found"
        with self.engine.begin() as connection:
            done = connection.execute(text(statement), {"value": value, "found": found})
            assert done.rowcount == 1

    def counted(self, state: JobState) -> int:
        return self.tm.store.jobs.counts()[state]


@pytest.fixture
def host(sqlite_url: str) -> Iterator[Host]:
    with engine_for(sqlite_url) as engine:
        host = Host(engine)
        host.tm.run_until_idle()
        yield host
        host.tm.close()


@pytest.mark.parametrize(
    "column", ["created_at", "priority", "timeout_seconds", "fire_time", "max_attempts"]
)
def test_a_ready_job_with_a_damaged_column_is_quarantined_and_the_others_run(
    host: Host, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    jobs = [host.tm.enqueue("work") for _ in range(3)]
    host.edit("jobs", column, "junk", id=jobs[0].hex)

    assert host.tm.run_until_idle() == 2

    assert host.ran == jobs[1:]
    assert host.counted(JobState.QUARANTINED) == 1
    assert host.counted(JobState.PROCESSING) == 0
    [line] = [line for line in caplog.messages if "is quarantined" in line]
    assert str(jobs[0]) in line
    assert repr(column) in line
    with pytest.raises(StoreInvariantError, match=rf"{jobs[0]} .*'{column}' holds 'junk'"):
        host.tm.get_job(jobs[0])
    host.edit("jobs", column, 0, id=jobs[0].hex)
    mended = host.tm.get_job(jobs[0])
    assert mended is not None
    assert [entry.reason for entry in mended.history] == [failure.QUARANTINE]


@pytest.mark.parametrize("queues", [["default"], ["other", "default"]])
def test_a_claim_that_found_damage_alone_looks_again(host: Host, queues: list[str]) -> None:
    store = host.tm.store
    damaged, sound = insert(store, 2)
    host.edit("jobs", "created_at", "junk", id=damaged.id.hex)

    claimed = store.jobs.claim(new_node(), queues=queues, handlers=["work"], limit=1, now=AT)

    assert [job.id for job in claimed] == [sound.id]


def test_an_id_that_is_none_stops_nobody(host: Host) -> None:
    jobs = [host.tm.enqueue("work") for _ in range(3)]
    host.edit("jobs", "id", "junk", id=jobs[0].hex)

    assert host.tm.run_until_idle() == 2

    assert {job.id for job in host.tm.list_jobs()} == set(jobs[1:])
    assert host.counted(JobState.QUARANTINED) == 1


def test_a_damaged_job_is_left_out_of_a_listing_and_told(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [host.tm.enqueue("work") for _ in range(2)]
    host.tm.run_until_idle()
    host.edit("jobs", "state_at", "junk", id=jobs[0].hex)

    assert [job.id for job in host.tm.list_jobs()] == [jobs[1]]

    assert f"job {jobs[0]} is damaged: column 'state_at'" in caplog.text
    host.edit("jobs", "metadata", "{", id=jobs[1].hex)
    with pytest.raises(StoreInvariantError, match="'metadata'"):
        host.tm.get_job(jobs[1])


@pytest.mark.parametrize("column", ["max_attempts", "owner_node_id", "attempt_token"])
def test_a_damaged_held_job_holds_up_no_reclaim(host: Host, column: str) -> None:
    store = host.tm.store
    insert(store, 3)
    held = claim(store, new_node(), 3)
    host.edit("jobs", column, "junk", id=held[1].id.hex)

    ended = store.jobs.reclaim(
        lambda orphan: outcome(next(job for job in held if job.id == orphan.id)),
        silent_since=AFTER_ALL,
        limit=10,
        now=AT,
    )

    assert [orphan.id for orphan, _ in ended] == [held[0].id, held[2].id]
    assert host.counted(JobState.QUARANTINED) == 1
    assert host.counted(JobState.PROCESSING) == 0


TASKS = [
    ("cron_tasks", "priority"),
    ("cron_tasks", "anchor_at"),
    ("cron_tasks", "created_at"),
    ("cron_tasks", "epoch"),
    ("cron_tasks", "timeout_seconds"),
    ("cron_tasks", "max_attempts"),
    ("cron_task_state", "last_run_at"),
    ("cron_task_state", "last_run_job_id"),
]


@pytest.mark.parametrize(("table", "column"), TASKS)
def test_a_damaged_task_is_broken_alone_told_once_and_mended_by_a_registration(
    host: Host, caplog: pytest.LogCaptureFixture, table: str, column: str
) -> None:
    key = "name" if table == "cron_tasks" else "task_name"
    host.edit(table, column, "junk", **{key: "bad"})
    host.clock.advance(HOUR)

    with caplog.at_level(logging.WARNING):
        outcomes = {each.name: each.result for each in host.tm.tick()}
        host.tm.tick()

    assert outcomes == {"bad": TickResult.BROKEN, "good": TickResult.MATERIALIZED}
    assert ["'bad'" in line or "task bad" in line for line in caplog.messages] == [True]
    assert [task.name for task in host.tm.list_recurring()] == ["good"]
    with pytest.raises(StoreInvariantError, match=repr(column)):
        host.tm.get_recurring("bad")

    assert host.tm.register() == {"bad": "updated", "good": "unchanged"}
    host.clock.advance(HOUR)
    host.tm.run_until_idle()
    assert "bad" in host.ran


def test_a_damaged_task_that_was_paused_stays_paused_when_it_is_mended(host: Host) -> None:
    host.tm.set_enabled("bad", False)
    host.edit("cron_tasks", "created_at", "junk", name="bad")

    host.tm.register()

    assert not host.tm.get_recurring("bad").enabled
