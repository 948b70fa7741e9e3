"""The node that keeps house is killed or stands still: what nobody was woken for runs in time."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import text

from tests.cli.tools import until
from tests.processes import depot as application
from tests.processes.conftest import DepotOpener
from tests.processes.fleet import Depot, Worker, stop_when_quiet
from threadmill_sa.clock import SystemClock
from threadmill_sa.model.lease import MAINTENANCE_LEASE
from threadmill_sa.model.limits import RELIEVED_TICK_SECONDS
from threadmill_sa.model.state import JobState

# One turn of a relieved node, its tick and poll, the delay below, and a busy machine.
BOUND_SECONDS = RELIEVED_TICK_SECONDS + 0.2 + 0.1 + 0.5 + 2.0


def holder_pid(depot: Depot) -> int | None:
    views = {view.name: view for view in depot.tm.leases()}
    view = views.get(MAINTENANCE_LEASE)
    return None if view is None or view.holder is None else int(view.holder.split(":")[-2])


def holder_and_relieved(depot: Depot) -> tuple[Worker, Worker]:
    """Two workers, of which the second waits for the lease of the first."""
    holder = depot.worker()
    until(lambda: holder_pid(depot) == holder.pid, "a holder of the lease")
    relieved = depot.worker()
    until(lambda: listeners(depot) == 1, "a node that heard of the holder")
    return holder, relieved


def listeners(depot: Depot) -> int:
    query = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN threadmill_leases%'
    """
    with depot.engine.connect() as connection:
        return connection.scalar(text(query)) or 0


def runs(depot: Depot) -> int:
    return len(depot.tm.list_jobs(task=application.PUMP, state=JobState.SUCCEEDED))


def wait_runs(depot: Depot, count: int) -> None:
    until(lambda: runs(depot) >= count, f"run {count} of the task")


def nudge_without_a_wake(depot: Depot) -> None:
    depot.tm.store.recurring.request_cron_nudge(application.PUMP)


def make_due(depot: Depot) -> None:
    """Let the task fire now, as if its hour had passed."""
    with depot.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE threadmill_cron_task_state SET next_run_at = clock_timestamp()"
                " WHERE task_name = :name"
            ),
            {"name": application.PUMP},
        )


def check_that_nothing_waits_longer(depot: Depot) -> None:
    clock = SystemClock()
    for number, begin in enumerate((nudge_without_a_wake, make_due), start=1):
        since = clock.monotonic()
        begin(depot)
        wait_runs(depot, number)
        assert clock.monotonic() - since < BOUND_SECONDS, begin.__name__
    since = clock.monotonic()
    before = depot.succeeded()
    depot.tm.enqueue("haul", 1, delay=0.5)  # its wake comes too early to help
    until(lambda: depot.succeeded() > before, "the delayed job")
    assert clock.monotonic() - since < BOUND_SECONDS


def test_after_kill_9_of_the_holder_nothing_waits_for_its_lease(
    pg_url: str, open_at: DepotOpener
) -> None:
    depot = open_at(pg_url)
    holder, _ = holder_and_relieved(depot)

    holder.kill()

    check_that_nothing_waits_longer(depot)
    depot.wait_done()
    depot.check()


@pytest.mark.long
def test_while_the_holder_stands_still_nothing_waits_for_it(
    pg_url: str, open_at: DepotOpener
) -> None:
    depot = open_at(pg_url)
    holder, relieved = holder_and_relieved(depot)

    stop_when_quiet(holder, depot.engine)

    check_that_nothing_waits_longer(depot)
    until(lambda: holder_pid(depot) == relieved.pid, "the next holder")
    holder.process.send_signal(signal.SIGCONT)
    depot.haul(20)
    depot.wait_done()
    holder.process.terminate()
    assert holder.exit_code() == 0, holder.err
    assert holder_pid(depot) == relieved.pid
    depot.check()


def test_a_holder_hands_the_lease_over_when_its_drain_begins(
    pg_url: str, open_at: DepotOpener
) -> None:
    depot = open_at(pg_url)
    depot.tm.enqueue("hold")
    holder = depot.worker()
    depot.wait_for(f"held.{holder.pid}")
    until(lambda: holder_pid(depot) == holder.pid, "a holder of the lease")
    relieved = depot.worker()
    until(lambda: listeners(depot) == 1, "a node that heard of the holder")

    holder.process.terminate()

    until(lambda: holder_pid(depot) == relieved.pid, "the next holder", seconds=5)
    assert holder.process.poll() is None  # its job still runs
    (depot.here / "may-end").touch()
    assert holder.exit_code() == 0, holder.err
    depot.wait_done()
