"""Rows of recurring tasks that were edited by hand or written by a newer release."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from threadmill_sa import Cron, JobContext, Threadmill
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.testing import ManualClock

T0 = datetime(2027, 1, 4, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNKNOWN_WORDS = ["trigger_kind", "missed_run_policy"]


class Host:
    """A process with two hourly tasks; `ran` names those whose handler was called."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self.tm = Threadmill(engine, clock=clock)
        self.ran: list[str | None] = []
        self.tm.job("work")(self._work)
        for name in ("edited", "other"):
            self.tm.recurring(name, self._work, Cron("0 * * * *"))

    def _work(self, ctx: JobContext) -> None:
        self.ran.append(ctx.cron_task_name)

    def edit(self, column: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(
                text(f"UPDATE threadmill_cron_tasks SET {column} = 'weekly' WHERE name = 'edited'")
            )


@pytest.fixture
def host(sql_engine: Engine) -> Iterator[Host]:
    host = Host(sql_engine, ManualClock(T0))
    host.tm.run_until_idle()
    yield host
    host.tm.close()


@pytest.mark.parametrize("column", UNKNOWN_WORDS)
def test_an_unknown_word_breaks_its_own_task_and_can_be_looked_at(host: Host, column: str) -> None:
    host.edit(column)
    host.clock.advance(HOUR)

    outcomes = {each.name: each.result for each in host.tm.tick()}

    assert outcomes == {"edited": TickResult.BROKEN, "other": TickResult.MATERIALIZED}
    edited, other = host.tm.list_recurring()
    assert getattr(edited, column) == "weekly"
    assert "'weekly' is unknown" in (edited.broken_reason or "")
    assert other.broken_reason is None


@pytest.mark.parametrize("column", UNKNOWN_WORDS)
def test_a_task_with_an_unknown_word_is_nudged_triggered_paused_and_resumed(
    host: Host, column: str
) -> None:
    host.edit(column)

    host.tm.nudge("edited")
    host.tm.run_until_idle()
    host.tm.trigger("edited")
    host.tm.run_until_idle()

    assert host.ran == ["edited", "edited"]
    assert host.tm.set_enabled("edited", False)
    assert host.tm.set_enabled("edited", True)


@pytest.mark.parametrize("column", UNKNOWN_WORDS)
def test_a_process_that_declares_the_task_starts_and_mends_it(host: Host, column: str) -> None:
    host.edit(column)
    host.clock.advance(HOUR)
    host.tm.run_until_idle()

    started = Host(host.engine, host.clock)
    started.tm.register()

    found = started.tm.get_recurring("edited")
    assert found.broken_reason is None
    assert found.next_run_at is not None
    assert found.next_run_at <= host.clock.now()  # the fire that was held back
    started.tm.run_until_idle()
    started.tm.close()
    assert started.ran == ["edited"]


def test_a_fire_that_was_taken_out_by_hand_is_set_again_by_the_next_registration(
    host: Host,
) -> None:
    with host.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE threadmill_cron_task_state SET next_run_at = NULL"
                " WHERE task_name = 'edited'"
            )
        )

    host.tm.register()

    assert host.tm.get_recurring("edited").next_run_at == T0.replace(minute=0) + HOUR


def test_a_job_of_an_unknown_origin_runs_and_holds_up_no_other(host: Host) -> None:
    """A newer release may write words that this one does not know."""
    for name in ("edited", "other"):
        host.tm.trigger(name)
    with host.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE threadmill_jobs SET cron_origin = 'webhook'"
                " WHERE cron_task_name = 'edited'"
            )
        )

    host.tm.run_until_idle()

    assert sorted(filter(None, host.ran)) == ["edited", "other"]
    [job] = host.tm.list_jobs(task="edited")
    assert job.cron_origin == "webhook"
