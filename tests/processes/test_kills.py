"""kill -9: what the dead process held runs elsewhere, each attempt accounted for."""

from __future__ import annotations

import pytest

from tests.cli.tools import until
from tests.processes.depot import POISON_ATTEMPTS
from tests.processes.fleet import Depot, Feeder, Producer, pass_seconds
from tests.processes.recovery import Study
from threadmill_sa.model.state import JobState

KILLS, KILL_SECONDS = 6, 2.0


def test_what_a_killed_worker_held_runs_elsewhere_as_its_next_attempt(depot: Depot) -> None:
    victim, other = depot.worker("--workers", "1"), depot.launch()
    job_id = depot.tm.enqueue("hold")
    other.wait_for_banner()
    until(lambda: depot.job(job_id).state is JobState.PROCESSING, "the claim")
    if str(depot.job(job_id).owner_node_id) == other.node_id:
        victim, other = other, victim
    depot.wait_for(f"held.{victim.pid}")

    victim.kill()
    depot.haul(20)
    depot.wait_done()

    job = depot.job(job_id)
    assert job.attempt == 2
    assert job.result == str(other.pid)
    assert f"node {victim.node_id} stopped beating" in other.err
    assert [entry.reason for entry in job.history] == ["engine.orphan-reclaim", "engine.retry"]
    depot.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_kill_under_load(depot: Depot) -> None:
    """One of two workers dies, and another is started in its place."""
    victim, other = depot.worker(), depot.worker()
    study = Study(depot, f"one of two killed -9 ({depot.engine.dialect.name})")

    with Feeder(depot), Producer(depot):
        study.baseline()
        victim.kill()
        study.fault_ended()
        depot.worker()
        study.after()
    depot.wait_done()
    study.conclude()

    assert other.process.poll() is None
    depot.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_repeated_kills_under_load(depot: Depot) -> None:
    """Of two workers the older dies every other second, and another takes its place."""
    alive = [depot.worker(), depot.worker()]
    study = Study(depot, f"kill -9 every {KILL_SECONDS:g} s ({depot.engine.dialect.name})")

    with Feeder(depot), Producer(depot):
        study.baseline()
        for _ in range(KILLS):
            alive.append(depot.launch())
            alive[-1].wait_for_banner()
            alive.pop(0).kill()
            pass_seconds(KILL_SECONDS)
        study.fault_ended()
        study.after()
    depot.wait_done()
    study.conclude()

    assert [worker.process.poll() for worker in alive] == [None, None]
    depot.check()


@pytest.mark.long
def test_a_job_that_kills_every_worker_ends_as_failed_and_the_others_run(depot: Depot) -> None:
    poison = depot.tm.enqueue("poison")
    others = depot.haul(200)
    worker = depot.launch()  # it may be dead before it has said a word

    def ended() -> bool:
        nonlocal worker
        if worker.process.poll() is not None:
            worker = depot.launch()  # as a supervisor does
        return depot.job(poison).state is JobState.FAILED

    until(ended, "the end of the poisonous job", seconds=120)
    depot.wait_succeeded(len(others), "the other jobs")

    history = depot.job(poison).history
    assert [entry.reason for entry in history if entry.state is JobState.FAILED] == [
        "engine.orphan-reclaim"
    ] * POISON_ATTEMPTS
    assert (history[-1].message or "").startswith("worker lost")
    assert worker.process.poll() is None
    assert depot.doubled_starts() == []
