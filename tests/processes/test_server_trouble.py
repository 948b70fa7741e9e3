"""The server restarts, loses its connections, runs out of them or may not write for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.cli.tools import until
from tests.processes.fleet import TIMEOUT, Depot, Feeder, Producer, pass_seconds
from tests.processes.recovery import Study
from tests.processes.server import OwnServer

TROUBLE_SECONDS = 2.5 * TIMEOUT
KILLS = 15


def test_an_outage_longer_than_the_heartbeat_timeout_takes_no_job_from_a_living_worker(
    server: OwnServer, own_depot: Depot
) -> None:
    workers = [own_depot.worker(), own_depot.worker()]
    job_ids = [own_depot.tm.enqueue("hold") for _ in range(6)]
    until(lambda: len(own_depot.held_by()) == len(job_ids), "the claims")

    server.stop()
    pass_seconds(1.5 * TIMEOUT)
    server.start()
    for worker in workers:
        worker.wait_for_words("heartbeat works again")
    own_depot.haul(20)
    (own_depot.here / "may-end").touch()
    own_depot.wait_done()

    assert {own_depot.job(job_id).attempt for job_id in job_ids} == {1}
    own_depot.check()


@pytest.mark.long
def test_a_worker_told_to_stop_during_an_outage_ends_and_its_jobs_run_elsewhere(
    server: OwnServer, own_depot: Depot
) -> None:
    leaver = own_depot.worker("--grace", "1")
    job_ids = [own_depot.tm.enqueue("hold") for _ in range(4)]
    until(lambda: len(own_depot.held_by()) == len(job_ids), "the claims")

    server.stop()
    leaver.process.terminate()
    assert leaver.exit_code() == 0, leaver.err
    server.start()
    own_depot.worker()
    own_depot.wait_done()

    assert "4 outcomes could not be recorded: their jobs will be reclaimed" in leaver.err
    assert "Traceback" not in leaver.err
    assert {own_depot.job(job_id).attempt for job_id in job_ids} == {2}
    own_depot.check()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_restart_under_load(server: OwnServer, own_depot: Depot, mode: str) -> None:
    def restart() -> None:
        server.stop(mode=mode)
        server.start()

    study_of(own_depot, f"server restarted ({mode})", restart)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_all_backends_killed_every_second(
    server: OwnServer, own_depot: Depot, database: str
) -> None:
    def kill() -> None:
        for _ in range(KILLS):
            server.kill_backends(database)
            pass_seconds(1.0)

    study_of(own_depot, f"all backends killed {KILLS} times, 1 s apart", kill)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_connection_left(server: OwnServer, own_depot: Depot, database: str) -> None:
    own_depot.engine.dispose()
    study_of(own_depot, "connection limit exhausted", inside(server.exhausted(database)))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_server_that_may_not_write(server: OwnServer, own_depot: Depot) -> None:
    study_of(own_depot, "server read-only", inside(server.read_only()))


def inside(trouble: AbstractContextManager[None]) -> Callable[[], None]:
    def strike() -> None:
        with trouble:
            pass_seconds(TROUBLE_SECONDS)

    return strike


def study_of(depot: Depot, name: str, strike: Callable[[], None]) -> None:
    """Two workers under load, the fault, and everything done and counted afterwards."""
    workers = [depot.worker(), depot.worker()]
    study = Study(depot, name)
    with Feeder(depot), Producer(depot) as producer:
        study.baseline()
        before = producer.committed
        strike()
        study.fault_ended()
        during = producer.committed
        study.after()
        assert producer.committed > during > 0
    depot.wait_done()
    study.conclude()

    assert before > 0
    assert [worker.process.poll() for worker in workers] == [None, None]
    depot.check()
