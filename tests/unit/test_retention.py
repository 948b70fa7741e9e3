"""How long finished jobs are kept, and how a sweep goes about it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from threadmill_sa.engine.processing import retention as module
from threadmill_sa.engine.processing.retention import RetentionSweep
from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model import limits
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.retention import DEFAULT_RETENTION, Retention
from threadmill_sa.model.state import FINISHED, JobState
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.testing.clock import ManualClock
from threadmill_sa.testing.stores import FaultingStore
from threadmill_sa.testing.suite.tools import T0, insert, new_job, run_all

DAY = 86_400.0
REMOVALS = "jobs.remove_old"


def test_the_defaults_are_a_week_and_for_what_went_wrong_a_month() -> None:
    assert DEFAULT_RETENTION == Retention(
        succeeded=timedelta(days=7),
        failed=timedelta(days=30),
        deleted=timedelta(days=7),
        quarantined=timedelta(days=30),
    )
    assert set(DEFAULT_RETENTION.seconds) == set(FINISHED)


def test_seconds_and_timedeltas_are_the_same() -> None:
    assert Retention(failed=90) == Retention(failed=timedelta(minutes=1.5))
    assert Retention(failed=90).seconds[JobState.FAILED] == 90.0


def test_none_keeps_for_ever() -> None:
    assert Retention(succeeded=None, deleted=None).seconds == {
        JobState.FAILED: 30 * DAY,
        JobState.QUARANTINED: 30 * DAY,
    }


@pytest.mark.parametrize("wrong", [0, -1.0, 0.999, timedelta(0), float("nan"), "7", 10**30, True])
def test_a_time_out_of_bounds_is_refused_by_the_name_of_its_state(wrong: object) -> None:
    with pytest.raises(InvalidValueError, match="retention of quarantined jobs must be"):
        Retention(quarantined=wrong)  # type: ignore[arg-type]


class Desk:
    """A sweep over a store in memory, with hands on both of its clocks."""

    def __init__(self, retention: Retention = DEFAULT_RETENTION, *, noise: float = 0.0) -> None:
        self.store = FaultingStore(MemoryStore())
        self.elapsed, self.noise = 0.0, noise
        self.batch_takes = 0.0
        self.sweep = RetentionSweep(
            self.store.jobs,
            retention,
            instant=self._instant,
            monotonic=lambda: self.elapsed,
            noise=lambda: self.noise,
        )

    def _instant(self) -> datetime:
        self.elapsed += self.batch_takes
        return T0 + timedelta(days=100)

    def finished(self, count: int) -> None:
        insert(self.store.inner, count)
        run_all(self.store.inner)

    def left(self, state: JobState = JobState.SUCCEEDED) -> int:
        return self.store.jobs.counts()[state]

    def turn_at(self, elapsed: float) -> int:
        """Take a turn; returns how often the store was asked."""
        before = self.store.calls(REMOVALS)
        self.elapsed = elapsed
        self.sweep.turn()
        return self.store.calls(REMOVALS) - before


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETENTION_BATCH", 3)
    monkeypatch.setattr(limits, "RETENTION_ROUNDS_MAX", 5)


def test_a_sweep_asks_once_for_each_state_when_nothing_is_old() -> None:
    desk = Desk()

    assert desk.turn_at(0) == len(FINISHED)


def test_states_that_are_kept_for_ever_are_not_asked_for() -> None:
    desk = Desk(Retention(None, None, None, None))

    assert desk.turn_at(0) == 0
    assert desk.turn_at(2 * limits.RETENTION_SECONDS) == 0


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_sweeps_are_an_hour_apart_and_spread(noise: float) -> None:
    desk = Desk(noise=noise)
    first = limits.RETENTION_FIRST_SECONDS * noise
    hour = limits.RETENTION_SECONDS * (0.9 + 0.2 * noise)

    asked = [desk.turn_at(at) for at in (first - 1e-3, first, first + hour - 1e-3, first + hour)]

    assert asked == [0, 4, 0, 4]


@pytest.mark.usefixtures("small")
def test_a_sweep_that_is_cut_short_carries_on_a_tick_later() -> None:
    desk = Desk()
    desk.finished(20)

    assert desk.turn_at(0) == 5  # all states once, and the crowd a second time
    assert desk.left() == 14
    assert desk.turn_at(limits.TICK_SECONDS - 0.001) == 0
    assert desk.turn_at(limits.TICK_SECONDS) == 5
    assert desk.turn_at(2 * limits.TICK_SECONDS) == 0  # the last batch was not full

    assert desk.left() == 0


@pytest.mark.usefixtures("small")
def test_a_crowd_in_one_state_holds_up_no_other() -> None:
    desk = Desk()
    desk.finished(30)
    gone = new_job()
    desk.store.inner.jobs.insert([gone], now=T0)
    desk.store.inner.jobs.delete(gone.id, now=T0)

    desk.turn_at(0)

    assert desk.left(JobState.DELETED) == 0
    assert desk.left() == 24


def test_a_turn_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETENTION_BATCH", 1)
    desk = Desk(Retention(failed=None, deleted=None, quarantined=None))
    desk.finished(9)
    desk.batch_takes = limits.RETENTION_TURN_SECONDS / 2

    assert desk.turn_at(0) == 2

    assert desk.left() == 7


@pytest.mark.usefixtures("small")
def test_a_turn_gives_way_after_a_batch_and_goes_on_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(Retention(failed=None, deleted=None, quarantined=None))
    desk.finished(7)
    caplog.set_level(logging.INFO, module.__name__)
    before = desk.store.calls(REMOVALS)

    desk.sweep.turn(give_way=lambda: True)
    assert desk.store.calls(REMOVALS) == before + 1
    assert desk.left() == 4
    assert caplog.messages == []  # a stream of wakes is no stream of lines
    assert desk.turn_at(0) == 2

    assert desk.left() == 0
    assert caplog.messages == ["finished jobs removed, their time has passed: 7 succeeded"]
    assert desk.turn_at(limits.TICK_SECONDS) == 0


def test_a_sweep_that_is_done_gives_way_to_nobody() -> None:
    desk = Desk(Retention(failed=None, deleted=None, quarantined=None))
    desk.finished(2)

    desk.sweep.turn(give_way=lambda: True)

    assert desk.turn_at(limits.TICK_SECONDS) == 0
    assert desk.left() == 0


def test_an_outage_is_tried_again_a_tick_later_and_not_before() -> None:
    desk = Desk()
    desk.finished(2)
    desk.store.fail(REMOVALS, ZeroDivisionError("told"), times=1)

    with pytest.raises(ZeroDivisionError):
        desk.turn_at(0)

    assert desk.turn_at(limits.TICK_SECONDS / 2) == 0
    assert desk.turn_at(limits.TICK_SECONDS) == 4
    assert desk.left() == 0


def test_what_went_is_told_also_when_the_turn_ends_in_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.finished(2)
    desk.store.fail(REMOVALS, ZeroDivisionError("told"), skip=1)

    with caplog.at_level(logging.INFO, module.__name__), pytest.raises(ZeroDivisionError):
        desk.turn_at(0)

    assert caplog.messages == ["finished jobs removed, their time has passed: 2 succeeded"]


def test_a_sweep_that_removes_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()

    with caplog.at_level(logging.DEBUG):
        desk.turn_at(0)

    assert caplog.messages == []


def test_the_age_is_judged_by_an_injected_instant() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    store = MemoryStore(clock)
    store.jobs.insert([NewJob(new_job().id, "work")])
    run_all(store, at=clock.now())
    sweep = RetentionSweep(
        store.jobs,
        Retention(succeeded=60),
        instant=clock.now,
        monotonic=clock.monotonic,
        noise=lambda: 0.0,
    )

    sweep.turn()
    assert store.jobs.counts()[JobState.SUCCEEDED] == 1
    clock.advance(limits.RETENTION_SECONDS)
    sweep.turn()

    assert store.jobs.counts()[JobState.SUCCEEDED] == 0
