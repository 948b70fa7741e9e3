"""The command line on Redis: URLs, and real worker processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_demo import assert_nothing_lost, demo
from tests.cli.tools import answer, invoke, running_worker, until
from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import check_books
from threadmill_sa import Every, JobState, Threadmill
from threadmill_sa.model import failure

APP = """
import os
from pathlib import Path

from redis import Redis

from threadmill_sa import Every, JobContext, Threadmill

here = Path(os.environ["SHOP_DIRECTORY"])
url, prefix = os.environ["SHOP_URL"].split("|")
tm = Threadmill.redis(Redis.from_url(url), prefix)


@tm.job("patient")
def patient(ctx: JobContext) -> None:
    (here / f"patient.{ctx.attempt}").touch()
    if ctx.attempt == 1:
        ctx.wait_cancelled(120)
        ctx.check_in()


@tm.job("pump")
def pump(ctx: JobContext) -> None:
    (here / f"pump.{ctx.cron_origin}").touch()


tm.recurring("outbox-pump", pump, Every(minutes=10))
"""
QUICK = ("--heartbeat", "0.3", "--heartbeat-timeout", "1", "--tick", "0.2", "--json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@contextmanager
def producer(space: RedisSpace) -> Iterator[Threadmill]:
    with space.client() as client:
        tm = Threadmill.redis(client, space.prefix)
        for name in ("patient", "pump"):
            tm.job(name)(lambda: None)
        yield tm
        tm.close()


def url_of(space: RedisSpace) -> str:
    return f"{space.url}{'&' if '?' in space.url else '?'}prefix={space.prefix}"


def test_a_redis_url_is_a_target(redis_space: RedisSpace) -> None:
    with producer(redis_space) as tm:
        tm.recurring("outbox-pump", "pump", Every(minutes=10))
        tm.register()

        assert invoke("recurring", "nudge", "outbox-pump", "--url", url_of(redis_space)).stdout
        assert len(tm.get_recurring("outbox-pump").nudge_revisions) == 1
    listed = answer("recurring", "list", "--url", url_of(redis_space))
    assert [task["name"] for task in listed] == ["outbox-pump"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "redis://:secret@[bad/0"), "Redis URL cannot be read"),
        (("--url", "redis://localhost:6379/0?nonsense=1"), "Redis URL cannot be read"),
        (("--url", "redis://localhost:6379/abc"), "Redis URL cannot be read"),
        (("--url", "redis://localhost:6379/0/1"), "Redis URL cannot be read"),
        (("--url", "redis://localhost/0", "--schema", "x"), "--schema is for PostgreSQL"),
    ],
)
def test_a_bad_redis_url_is_a_usage_error(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("recurring", "list", *arguments)

    assert result.exit_code == 2
    assert words in result.stderr
    assert "secret" not in result.stderr


def test_there_is_no_schema_to_migrate(redis_space: RedisSpace) -> None:
    result = invoke("db", "upgrade", "--url", url_of(redis_space))

    assert result.exit_code == 1
    assert "has no schema" in result.stderr


def test_a_nudge_wakes_a_worker_of_another_process(
    redis_space: RedisSpace, directory: Path
) -> None:
    url = f"{redis_space.url}|{redis_space.prefix}"
    # Neither ticks nor polls come in time: the wake alone does it.
    slow = ("--tick", "100", "--poll", "100", "--json")
    with producer(redis_space) as tm, running_worker(directory, url, "shop:tm", *slow) as worker:
        worker.wait_for_banner()
        until(lambda: _listeners(redis_space) == 1, "listener of the worker")
        tm.nudge("outbox-pump")
        worker.wait_for_file("pump.nudge")
        worker.process.terminate()
        assert worker.exit_code() == 0, worker.err
        assert tm.store.nodes.list() == []
    check_books(redis_space)


def _listeners(space: RedisSpace) -> int:
    channel = f"{{{space.prefix}}}:wakes"
    with space.client() as client:
        [(_, count)] = client.pubsub_numsub(channel)
        return int(count)


@pytest.mark.long
def test_the_jobs_of_a_killed_worker_are_done_by_the_next(
    redis_space: RedisSpace, directory: Path
) -> None:
    url = f"{redis_space.url}|{redis_space.prefix}"
    with producer(redis_space) as tm:
        job_id = tm.enqueue("patient")
        with running_worker(directory, url, "shop:tm", *QUICK) as worker:
            worker.wait_for_file("patient.1")
            worker.process.send_signal(signal.SIGKILL)
            worker.process.wait()
        with running_worker(directory, url, "shop:tm", *QUICK) as worker:
            worker.wait_for_file("patient.2")
            worker.process.terminate()
            assert worker.exit_code() == 0, worker.err

        job = tm.get_job(job_id)
        assert job is not None
        assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)
        assert [entry.reason for entry in job.history] == [failure.ORPHAN, failure.RETRY]
    check_books(redis_space)


@pytest.mark.long
@pytest.mark.parametrize("kills", ["0", "1"])
def test_a_small_demo_on_redis_loses_nothing(kills: str) -> None:
    report = demo("--orders", "24", "--seed", "11", "--redis", "--kills", kills)

    assert_nothing_lost(report)
    assert report["store"].startswith("redis ")


@pytest.mark.long
def test_a_demo_on_a_given_redis_leaves_nothing(redis_space: RedisSpace) -> None:
    with redis_space.client() as client:
        before = set(client.scan_iter("{threadmill_demo*", count=1000))
        demo("--orders", "4", "--producers", "1", "--url", redis_space.url)

        assert set(client.scan_iter("{threadmill_demo*", count=1000)) == before


def test_places_of_a_demo_exclude_each_other() -> None:
    result = invoke("demo", "--redis", "--postgres")

    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
