"""A process that stands still for longer than the heartbeat timeout, and comes back."""

from __future__ import annotations

import signal

import pytest

from tests.cli.tools import until
from tests.processes.fleet import TIMEOUT, Depot, stop_when_quiet
from threadmill_sa.model.state import JobState


def test_a_stopped_worker_that_comes_back_finds_its_claim_lost_and_changes_nothing(
    depot: Depot,
) -> None:
    job_id = depot.tm.enqueue("hold")
    sleeper = depot.worker()
    depot.wait_for(f"held.{sleeper.pid}")
    other = depot.worker()

    stop_when_quiet(sleeper, depot.engine)
    until(lambda: depot.job(job_id).state is JobState.SUCCEEDED, "the run at the other worker")
    taken_over = depot.job(job_id)
    sleeper.process.send_signal(signal.SIGCONT)
    sleeper.wait_for_words("is lost to another claim: its result will be discarded")
    (depot.here / "may-end").touch()
    depot.wait_for(f"let-go.{sleeper.pid}")
    depot.haul(20)
    depot.wait_done()
    sleeper.process.terminate()

    assert sleeper.exit_code() == 0, sleeper.err  # its late finish was offered before it ended
    assert depot.job(job_id) == taken_over
    assert (taken_over.attempt, taken_over.result) == (2, str(other.pid))
    assert sleeper.err.count("lost to another claim") == 1
    depot.check()


@pytest.mark.long
def test_a_worker_that_is_stopped_again_and_again_loses_and_doubles_nothing(depot: Depot) -> None:
    sleeper, _ = depot.worker(), depot.worker()
    depot.haul(1500)

    for _ in range(4):
        before = depot.succeeded()
        stop_when_quiet(sleeper, depot.engine)
        held = depot.held_by(sleeper.node_id)

        def reclaimed(held: object = held) -> bool:
            return not set(depot.held_by(sleeper.node_id)) & set(held)  # type: ignore[call-overload]

        until(reclaimed, "the reclaim of what it held")
        sleeper.process.send_signal(signal.SIGCONT)
        depot.wait_succeeded(before + 1, "more work")
    depot.wait_done()
    sleeper.process.terminate()

    assert sleeper.exit_code() == 0, sleeper.err
    depot.check()


@pytest.mark.long
def test_a_handler_that_hogs_the_interpreter_loses_its_claim_and_its_late_finish_is_refused(
    own_depot: Depot,
) -> None:
    """Not on SQLite: a thread that stands still with the lock of the file stops the others too."""
    depot = own_depot
    workers = {worker.node_id: worker for worker in (depot.worker(), depot.worker())}
    job_id = depot.tm.enqueue("hog", 2 * TIMEOUT)
    until(depot.starts, "the start of the handler")
    hog = workers.pop(str(depot.job(job_id).owner_node_id))
    (other,) = workers.values()

    until(lambda: depot.job(job_id).state is JobState.SUCCEEDED, "the run at the other worker")
    taken_over = depot.job(job_id)
    hog.wait_for_words("lost")
    depot.haul(20)
    depot.wait_done()
    hog.process.terminate()

    assert hog.exit_code() == 0, hog.err
    assert depot.job(job_id) == taken_over
    assert (taken_over.attempt, taken_over.result) == (2, str(other.pid))
    assert hog.err.count(f"job {job_id} (hog)") == hog.err.count("another claim") == 1
    depot.check()


@pytest.mark.long
def test_a_hog_without_another_worker_is_told_and_the_job_ends_once(depot: Depot) -> None:
    job_id = depot.tm.enqueue("hog", 2 * TIMEOUT)
    worker = depot.worker()

    until(lambda: depot.job(job_id).state is JobState.SUCCEEDED, "an end of the job")
    depot.haul(20)
    depot.wait_done()

    # Its own housekeeping may see the silence before its heartbeat ends it: either is right.
    assert depot.job(job_id).attempt in {1, 2}
    assert (depot.job(job_id).attempt == 2) == ("stopped beating" in worker.err)
    depot.check()
