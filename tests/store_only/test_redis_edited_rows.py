"""Rows that a newer release wrote, with words that this one does not know."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace
from threadmill_sa import Cron, JobContext, Threadmill
from threadmill_sa.model.job import JobId
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.testing import ManualClock

T0 = datetime(2027, 1, 4, 9, 30, tzinfo=UTC)
TASK, REST = 12, 13  # positions of a packed row


class Host:
    """A process with two hourly tasks; `ran` names those whose handler was called."""

    def __init__(self, client: Redis, space: RedisSpace) -> None:
        self._client: Any = client
        self._name = KeySpace(space.prefix).name
        self.clock = ManualClock(T0)
        self.tm = Threadmill.redis(client, space.prefix, clock=self.clock)
        self.ran: list[str | None] = []
        self.tm.job("work")(self._work)
        for name in ("edited", "other"):
            self.tm.recurring(name, self._work, Cron("0 * * * *"))

    def _work(self, ctx: JobContext) -> None:
        self.ran.append(ctx.cron_task_name)

    def edit_definition(self, field: str) -> None:
        tasks, definition = self._name("tasks"), "d:edited"
        stored = self._client.hget(tasks, definition)
        self._client.hset(tasks, definition, _with_word(stored, field, "weekly"))

    def spoil_payload(self, job: JobId) -> None:
        self._client.hset(self._name("payloads"), job.hex, b"\xff")

    def edit_origin(self) -> None:
        for identity, packed in self._client.hgetall(self._name("rows")).items():
            row = msgspec.msgpack.decode(packed)
            if row[TASK] == "edited":
                row[REST] = _with_word(row[REST].encode(), "origin", "webhook").decode()
                self._client.hset(self._name("rows"), identity, msgspec.msgpack.encode(row))


def _with_word(text: bytes, field: str, word: str) -> bytes:
    kept = msgspec.json.decode(text)
    assert field in kept
    return msgspec.json.encode(kept | {field: word})


@pytest.fixture
def host(redis_client: Redis, redis_space: RedisSpace) -> Iterator[Host]:
    host = Host(redis_client, redis_space)
    host.tm.run_until_idle()
    yield host
    host.tm.close()


def test_a_job_of_an_unknown_origin_runs_and_holds_up_no_other(host: Host) -> None:
    for name in ("edited", "other"):
        host.tm.trigger(name)
    host.edit_origin()

    host.tm.run_until_idle()

    assert sorted(filter(None, host.ran)) == ["edited", "other"]
    [job] = host.tm.list_jobs(task="edited")
    assert job.cron_origin == "webhook"


def test_a_payload_that_is_no_text_ends_its_own_job_alone(host: Host) -> None:
    jobs = [host.tm.enqueue("work") for _ in range(3)]
    host.spoil_payload(jobs[1])

    host.tm.run_until_idle()

    found = [host.tm.get_job(job) for job in jobs]
    assert [job.state for job in found if job is not None] == [
        JobState.SUCCEEDED,
        JobState.QUARANTINED,
        JobState.SUCCEEDED,
    ]


@pytest.mark.parametrize("field", ["trigger_kind", "missed_run_policy"])
def test_an_unknown_word_breaks_its_own_task_and_can_be_looked_at(host: Host, field: str) -> None:
    host.edit_definition(field)
    host.clock.advance(timedelta(hours=1))

    outcomes = {each.name: each.result for each in host.tm.tick()}

    assert outcomes == {"edited": TickResult.BROKEN, "other": TickResult.MATERIALIZED}
    edited, other = host.tm.list_recurring()
    assert getattr(edited, field) == "weekly"
    assert "'weekly' is unknown" in (edited.broken_reason or "")
    assert other.broken_reason is None
