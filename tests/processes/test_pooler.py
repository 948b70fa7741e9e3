"""Everything but the listener works through a pooler in transaction mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.tools import until
from tests.processes.conftest import DepotOpener
from tests.processes.fleet import Feeder, Producer
from tests.processes.pooler import running_pooler
from tests.processes.recovery import Study
from tests.processes.server import OwnServer

# As the docs advise: server-side prepared statements live in one server connection.
UNPREPARED: dict[str, Any] = {"connect_args": {"prepare_threshold": None}}


@pytest.fixture
def pooler_port(server: OwnServer) -> Iterator[int]:
    with running_pooler(server) as port:
        yield port


@pytest.mark.long
def test_workers_and_producers_behind_a_transaction_pooler(
    server: OwnServer, database: str, pooler_port: int, open_at: DepotOpener
) -> None:
    pooled = server.url(database, port=pooler_port)
    depot = open_at(server.url(database), worker_url=pooled, engine_options=UNPREPARED)
    workers = [depot.worker("--no-wakes"), depot.worker("--no-wakes")]

    with (
        Producer(depot, url=pooled, **UNPREPARED) as producer,
        Producer(depot, url=pooled, first=10**6, **UNPREPARED) as another,
    ):
        depot.haul(300)
        until(lambda: min(producer.committed, another.committed) >= 50, "parcels")
        depot.wait_succeeded(300, "work of both kinds")
    depot.wait_done()

    assert producer.errors == another.errors == []
    for worker in workers:
        worker.process.terminate()
        assert worker.exit_code() == 0
        assert "failed" not in worker.err
    depot.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_server_restarts_behind_its_pooler(
    server: OwnServer, database: str, pooler_port: int, open_at: DepotOpener
) -> None:
    pooled = server.url(database, port=pooler_port)
    depot = open_at(server.url(database), worker_url=pooled, engine_options=UNPREPARED)
    for _ in range(2):
        depot.worker("--no-wakes")
    study = Study(depot, "server restarted behind pgbouncer")

    with Feeder(depot), Producer(depot, url=pooled, **UNPREPARED):
        study.baseline()
        server.stop()
        server.start()
        study.fault_ended()
        study.after()
    depot.wait_done()
    study.conclude()

    depot.check()
