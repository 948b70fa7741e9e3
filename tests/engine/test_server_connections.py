"""What a node leaves open on PostgreSQL while a handler runs, and after a stop: nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import QueuePool

from tests.engine.bench import Bench, arrives, engine_threads, eventually
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.sql.store import SqlStore

_OLDER = text(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend'"
    " AND xact_start < :began"
)
_OTHERS = text(
    "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_NOW = text("SELECT clock_timestamp()")


@pytest.fixture
def onlooker(pg_url: str) -> Iterator[Engine]:
    """A program of its own, in autocommit."""
    engine = create_engine(pg_url, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


def test_no_transaction_stays_open_while_handlers_run(pg_engine: Engine, onlooker: Engine) -> None:
    bench = Bench(SqlStore(pg_engine))
    began, go_on = threading.Semaphore(0), threading.Event()

    def long() -> None:
        began.release()
        assert arrives(go_on)

    bench.declare(long)
    bench.register("pump")
    job_ids = [bench.enqueue() for _ in range(2)]
    with bench.node(heartbeat=0.05), onlooker.connect() as connection:
        bench.nudge("pump")
        for _ in range(3):
            assert began.acquire(timeout=10)
        since = connection.scalar(_NOW)

        eventually(
            lambda: connection.scalar(_OLDER, {"began": since}) == 0, "the end of what was open"
        )
        assert bench.state(job_ids[0]) is JobState.PROCESSING
        go_on.set()
        for job_id in job_ids:
            bench.wait_state(job_id, JobState.SUCCEEDED)
    bench.store.close()


def test_starting_and_stopping_twenty_times_leaves_no_connection_listener_or_thread(
    pg_url: str, onlooker: Engine
) -> None:
    engine = create_engine(pg_url)
    bench = Bench(SqlStore(engine))
    bench.declare(lambda: None)
    bench.register("pump")
    threads = set(threading.enumerate())

    def queries() -> list[str]:
        with onlooker.connect() as connection:
            return list(connection.scalars(_OTHERS))

    node = bench.node(heartbeat=0.05)
    for _ in range(20):
        job_id = bench.enqueue()
        with node:
            bench.nudge("pump")
            bench.wait_state(job_id, JobState.SUCCEEDED)
    bench.store.close()

    pool = engine.pool
    assert isinstance(pool, QueuePool)
    eventually(lambda: len(queries()) == pool.checkedin(), "no connection but those of the pool")
    assert pool.checkedout() == 0
    engine.dispose()
    eventually(lambda: not queries(), "no connection at all")
    assert engine_threads() == []
    assert set(threading.enumerate()) <= threads
