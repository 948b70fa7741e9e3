"""Connections that are lost without a word, and wakes between processes."""

from __future__ import annotations

import os
import subprocess

import pytest
from sqlalchemy import text

from tests.cli.tools import until
from tests.fixtures.proxy import TcpProxy
from tests.processes.conftest import DepotOpener
from tests.processes.fleet import (
    PYTHON,
    ROOT,
    TIMEOUT,
    Depot,
    Feeder,
    Producer,
    pass_seconds,
)
from tests.processes.recovery import Study
from tests.processes.server import HOST, OwnServer
from tests.processes.silence import silence, skip_unless_possible
from threadmill_sa.clock import SystemClock

NOTICED_SECONDS = 45.0  # 30 s of probes and a busy machine
SELDOM = ("--tick", "300", "--poll", "300")  # so that only a wake can be the reason

_PRODUCE = """
from tests.processes.depot import make
tm = make()
for number in range(3):
    tm.enqueue("haul", number)
tm.close()
"""


def listening_backends(depot: Depot) -> dict[int, int]:
    """Process ids of the backends that listen, with the port of their client."""
    query = (
        "SELECT pid, client_port FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    with depot.engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(text(query))}


def test_a_listener_that_was_killed_is_back_and_hears(own_depot: Depot) -> None:
    worker = own_depot.worker(*SELDOM)
    until(lambda: listening_backends(own_depot), "the listener")

    (pid,) = listening_backends(own_depot)
    with own_depot.engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    worker.wait_for_words("wake listener lost, polling goes on")
    worker.wait_for_words("wake listener is back")
    own_depot.haul(1)

    own_depot.wait_succeeded(1, "the job that only a wake can start")
    assert worker.err.count("wake listener lost") == 1
    own_depot.check()


def test_a_wake_that_is_pending_when_its_producer_stops_is_sent(own_depot: Depot) -> None:
    own_depot.worker(*SELDOM)
    until(lambda: listening_backends(own_depot), "the listener")

    environment = {**os.environ, **own_depot.environment}
    subprocess.run([PYTHON, "-c", _PRODUCE], cwd=ROOT, env=environment, check=True)

    own_depot.wait_succeeded(3, "what was woken for")
    own_depot.check()


@pytest.mark.long
def test_a_silent_listener_is_ended_within_the_promised_time_while_polling_goes_on(
    server: OwnServer, own_depot: Depot
) -> None:
    skip_unless_possible()
    worker = own_depot.worker()
    until(lambda: listening_backends(own_depot), "the listener")
    clock = SystemClock()
    (port,) = listening_backends(own_depot).values()

    assert silence(worker.pid, server.port, own_port=port) == 1
    began = clock.monotonic()
    while "wake listener lost" not in worker.err:
        before = own_depot.succeeded()
        own_depot.haul(1)
        own_depot.wait_succeeded(before + 1, "a polled job")
        assert clock.monotonic() < began + NOTICED_SECONDS
    worker.wait_for_words("wake listener is back")

    assert own_depot.succeeded() > 10
    own_depot.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_worker_whose_connections_all_fall_silent_is_back_by_itself(
    server: OwnServer, own_depot: Depot
) -> None:
    skip_unless_possible()
    worker = own_depot.worker()
    own_depot.haul(400)
    own_depot.wait_succeeded(20, "work")
    clock = SystemClock()

    assert silence(worker.pid, server.port) >= 2  # the listener, and what the pool has opened
    began = clock.monotonic()
    worker.wait_for_words("works again after", seconds=2 * NOTICED_SECONDS)
    seconds = clock.monotonic() - began
    own_depot.wait_done()

    assert seconds < NOTICED_SECONDS
    own_depot.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_half_open_connections(server: OwnServer, database: str, open_at: DepotOpener) -> None:
    """Swallowed for longer than the heartbeat timeout; the lost connections never come back."""
    with TcpProxy(HOST, server.port) as proxy:
        depot = open_at(server.url(database), worker_url=proxy.url(server.url(database)))
        workers = [depot.worker(), depot.worker()]
        study = Study(depot, f"half-open for {2 * TIMEOUT:g} s, then reset")
        with Feeder(depot), Producer(depot) as producer:
            study.baseline()
            proxy.blackhole()
            pass_seconds(2 * TIMEOUT)
            proxy.heal()
            proxy.cut()
            study.fault_ended()
            study.after()
            assert producer.errors == []
        depot.wait_done()
        study.conclude()

        assert [worker.process.poll() for worker in workers] == [None, None]
        depot.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_worker_behind_a_dead_route_loses_its_jobs_to_the_other(
    server: OwnServer, database: str, open_at: DepotOpener
) -> None:
    with TcpProxy(HOST, server.port) as proxy:
        depot = open_at(server.url(database), worker_url=proxy.url(server.url(database)))
        lonely = depot.worker()
        depot.environment["DEPOT_URL"] = depot.url
        job_ids = [depot.tm.enqueue("hold") for _ in range(4)]
        until(lambda: set(depot.held_by(lonely.node_id)) == set(job_ids), "the claims")
        other = depot.worker()

        proxy.blackhole()
        depot.haul(20)
        depot.wait_done()
        assert {depot.job(job_id).attempt for job_id in job_ids} == {2}
        taken_over = [depot.job(job_id) for job_id in job_ids]
        (depot.here / "may-end").touch()
        depot.wait_for(f"let-go.{lonely.pid}")
        proxy.heal()
        proxy.cut()
        lonely.wait_for_words("heartbeat works again")
        lonely.process.terminate()

        assert lonely.exit_code() == 0, lonely.err
        assert other.process.poll() is None
        assert [depot.job(job_id) for job_id in job_ids] == taken_over
        assert lonely.err.count("another claim") >= len(job_ids)
        depot.check()
