"""Stores that are emptied under a running node get the declared tasks back, SQL ones as well."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from sqlalchemy import Engine, text

from tests.fixtures.valkey import ValkeyProcess, connect, valkey_process
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import UnknownTaskError

WAIT_SECONDS = 30.0
BEATS = {"heartbeat": 0.05, "heartbeat_timeout": 5.0, "tick": 0.05, "poll": 0.05}
SQL_TABLES = (
    "cron_nudges", "cron_tasks", "cron_task_state", "job_history", "jobs", "nodes",
)  # fmt: skip


class Ear(logging.Handler):
    """Tells that a line with these words was logged."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.heard.set()


@contextmanager
def listening(words: str) -> Iterator[threading.Event]:
    ear = Ear(words)
    logger = logging.getLogger("threadmill_sa")
    logger.addHandler(ear)
    try:
        yield ear.heard
    finally:
        logger.removeHandler(ear)


class Host:
    """A process with two tasks; `ran` is released by each run."""

    def __init__(self, tm: Threadmill) -> None:
        self.tm = tm
        self.ran = threading.Semaphore(0)
        tm.job("work")(self.ran.release)
        for name in ("kept", "dropped"):
            tm.recurring(name, "work", Every(hours=1))

    def runs_after_a_nudge(self, name: str) -> bool:
        self.tm.nudge(name)
        return self.ran.acquire(timeout=WAIT_SECONDS)


@pytest.fixture
def server() -> Iterator[ValkeyProcess]:
    with valkey_process() as server:
        yield server


@pytest.fixture
def client(server: ValkeyProcess) -> Iterator[Redis]:
    with connect(server.url) as client:
        yield client


def test_tasks_are_back_within_a_heartbeat_of_a_flush(client: Redis) -> None:
    host = Host(Threadmill.redis(client, "shop"))
    with host.tm.node(**BEATS), listening("registered again: 'dropped', 'kept'") as heard:
        assert host.runs_after_a_nudge("kept")

        client.flushdb()

        assert heard.wait(WAIT_SECONDS)
        assert host.runs_after_a_nudge("kept")
    host.tm.close()


def test_tasks_are_back_after_a_failover_to_an_empty_server(
    server: ValkeyProcess, client: Redis
) -> None:
    host = Host(Threadmill.redis(client, "shop"))
    with host.tm.node(**BEATS), listening("registered again: 'dropped', 'kept'") as heard:
        server.kill()
        server.start()  # nothing was kept

        assert heard.wait(WAIT_SECONDS)
        assert host.runs_after_a_nudge("kept")
    host.tm.close()


def test_a_task_that_an_operator_deleted_stays_away(client: Redis) -> None:
    host = Host(Threadmill.redis(client, "shop"))
    with host.tm.node(**BEATS):
        host.tm.delete_recurring("dropped")
        _let_it_beat(host.tm)
        with pytest.raises(UnknownTaskError):
            host.tm.nudge("dropped")
        assert host.runs_after_a_nudge("kept")
    host.tm.close()


def _let_it_beat(tm: Threadmill) -> None:
    [before] = tm.store.nodes.list()
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        [node] = tm.store.nodes.list()
        if (node.heartbeat_at - before.heartbeat_at).total_seconds() > 4 * BEATS["heartbeat"]:
            return
        pause.wait(0.01)
    raise AssertionError("the node does not beat")


def test_sql_tables_that_are_emptied_get_their_tasks_back_as_well(sql_engine: Engine) -> None:
    host = Host(Threadmill(sql_engine))
    with host.tm.node(**BEATS), listening("registered again: 'dropped', 'kept'") as heard:
        with sql_engine.begin() as connection:
            for table in SQL_TABLES:
                connection.execute(text(f"DELETE FROM threadmill_{table}"))

        assert heard.wait(WAIT_SECONDS)
        assert host.runs_after_a_nudge("kept")
    host.tm.close()
