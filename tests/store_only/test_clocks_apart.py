"""Programs on one PostgreSQL whose own clocks are wrong: the server's decides what is due."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, timedelta

from sqlalchemy import create_engine

from tests.cli.tools import until
from threadmill_sa import Every, JobId, JobState, Threadmill
from threadmill_sa.clock import SystemClock

FIRES = 20
PERIOD = timedelta(seconds=0.05)
DELAY = timedelta(seconds=0.2)


class SkewedClock(SystemClock):
    """A process's clock that is wrong by `skew`, which may change while the program runs."""

    def __init__(self, skew: timedelta) -> None:
        self.skew = skew

    def now(self) -> datetime:
        return super().now() + self.skew


def test_programs_whose_clocks_differ_fire_every_slot_once_and_nothing_early(pg_url: str) -> None:
    clocks = [SkewedClock(timedelta(minutes=skew)) for skew in (-5, 5, 0)]
    with ExitStack() as stack:
        programs = [_program(pg_url, clock, stack) for clock in clocks]
        first = programs[0]
        for tm in programs:
            # Without wakes there is no lease by which one would tick for all.
            stack.enter_context(tm.node(tick=0.01, poll=0.01, heartbeat=0.05, wakes=False))
        until(lambda: len(first.list_jobs(task="rota")) >= FIRES, "the first fires")

        clocks[2].skew = timedelta(hours=-1)  # while that program ticks and runs jobs
        fired = len(first.list_jobs(task="rota", limit=500))
        delayed = [tm.enqueue("work", delay=DELAY) for tm in programs]

        until(
            lambda: len(first.list_jobs(task="rota", limit=500)) >= fired + FIRES,
            "fires after the jump",
        )
        until(lambda: all(_succeeded(first, job_id) for job_id in delayed), "the delayed jobs")
        waited = [first.get_job(job_id) for job_id in delayed]
        fires = first.list_jobs(task="rota", limit=500)
        anchor = first.get_recurring("rota").anchor_at

    assert anchor is not None
    slots = sorted(job.fire_time for job in fires if job.fire_time)
    assert slots == [anchor + number * PERIOD for number in range(1, len(fires) + 1)]
    assert all(job.fire_time and job.fire_time <= job.created_at for job in fires)
    assert all(
        job and job.started_at and job.started_at >= job.created_at + DELAY for job in waited
    )


def _program(url: str, clock: SkewedClock, stack: ExitStack) -> Threadmill:
    engine = create_engine(url)
    stack.callback(engine.dispose)
    tm = Threadmill(engine, clock=clock)
    stack.callback(tm.close)
    tm.job("work")(lambda: None)
    tm.recurring("rota", "work", Every(PERIOD), missed="catch_up")
    return tm


def _succeeded(tm: Threadmill, job_id: JobId) -> bool:
    job = tm.get_job(job_id)
    return job is not None and job.state is JobState.SUCCEEDED
