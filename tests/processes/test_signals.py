"""SIGTERM at every moment: nothing is lost, and no attempt is spent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from tests.processes.fleet import Depot, wait_until
from threadmill_sa.clock import SystemClock
from threadmill_sa.model.state import JobState

MOMENTS = 40
ROOTLESS = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
AS_FIRST = ("unshare", *ROOTLESS, "--pid", "--fork", "--kill-child")
KILLED_BY_THE_SIGNAL = -signal.SIGTERM  # before the program could listen


def test_a_second_sigterm_hands_the_job_over_at_once_and_unspent(own_depot: Depot) -> None:
    depot = own_depot
    job_id = depot.tm.enqueue("hold")
    leaver = depot.worker("--grace", "600")
    depot.wait_for(f"held.{leaver.pid}")
    leaver.process.terminate()
    leaver.wait_for_words("draining")
    leaver.process.terminate()

    assert leaver.exit_code() == 128 + signal.SIGTERM, leaver.err
    assert (depot.job(job_id).state, depot.job(job_id).attempt) == (JobState.ENQUEUED, 0)
    assert depot.tm.store.nodes.list() == []
    (depot.here / "may-end").touch()
    other = depot.worker()
    depot.wait_done()

    job = depot.job(job_id)
    assert (job.attempt, job.result) == (1, str(other.pid))
    assert other.process.poll() is None
    depot.check()


@pytest.mark.long
def test_a_worker_that_is_the_first_process_of_its_container_drains_on_sigterm(
    depot: Depot,
) -> None:
    if shutil.which("unshare") is None or subprocess.call([*AS_FIRST, "true"]) != 0:
        pytest.skip("no process namespaces here")
    job_id = depot.tm.enqueue("hold")
    outside = depot.launch(prefix=AS_FIRST)
    depot.wait_for("held.1")
    [inside] = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()

    os.kill(int(inside), signal.SIGTERM)
    outside.wait_for_words("draining")
    (depot.here / "may-end").touch()

    assert outside.exit_code() == 0, outside.err
    job = depot.job(job_id)
    assert (job.state, job.attempt, job.result) == (JobState.SUCCEEDED, 1, "1")
    assert depot.tm.store.nodes.list() == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_sigterm_at_any_moment_of_the_start_ends_it_and_spends_no_attempt(depot: Depot) -> None:
    clock = SystemClock()
    job_ids = [depot.tm.enqueue("hold") for _ in range(4)]

    def code_when_told_after(span: timedelta) -> int:
        started = clock.now()
        worker = depot.launch("--grace", "0")
        wait_until(started + span)
        worker.process.terminate()
        code = worker.exit_code()
        assert "Traceback" not in worker.err
        assert code in {0, KILLED_BY_THE_SIGNAL}, worker.err
        assert depot.tm.store.nodes.list() == []
        for job_id in job_ids:
            job = depot.job(job_id)
            assert (job.state, job.attempt) == (JobState.ENQUEUED, 0), worker.err
        return code

    before = clock.now()
    depot.worker("--grace", "0").process.terminate()
    span = clock.now() - before
    assert depot.workers[0].exit_code() == 0

    codes = [
        code_when_told_after(span * 1.1 * moment / MOMENTS) for moment in range(1, MOMENTS + 1)
    ]
    while 0 not in codes:  # the machine has become slower
        span *= 1.5
        codes.append(code_when_told_after(span))

    assert span > timedelta(0)
    assert depot.doubled_starts() == []
