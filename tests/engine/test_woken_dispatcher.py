"""A wake reaches the dispatcher through the tick: jobs start although the next poll is far."""

from __future__ import annotations

import threading

from threadmill_sa import Every, Threadmill

FAR_SECONDS = 3600.0
WAIT_SECONDS = 10.0


def test_a_job_and_a_nudge_start_by_the_wake_alone() -> None:
    tm = Threadmill.in_memory()
    ran = {"mail": threading.Event(), "pump": threading.Event()}

    @tm.job("mail")
    def mail() -> None:
        ran["mail"].set()

    @tm.job("pump")
    def pump() -> None:
        ran["pump"].set()

    tm.recurring("pump", pump, Every(hours=1))
    with tm.node(workers=2, tick=FAR_SECONDS, poll=FAR_SECONDS):
        tm.nudge("pump")
        assert ran["pump"].wait(WAIT_SECONDS)
        tm.enqueue(mail)
        assert ran["mail"].wait(WAIT_SECONDS)
    tm.close()
