"""Slots of leader-gated work: pure, so searched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadmill_sa.engine.leadership.schedule import (
    Due,
    Grid,
    MissedTicks,
    ScheduleConfig,
    Strategy,
)
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.errors import InvalidValueError

PERIOD = 10.0
BEGAN = 1000.0

lasting = st.floats(0.0, 95.0)  # seconds of one run


def rate(missed: str = "once", *, max_replay: int = 10, initial_delay: float = 0.0) -> Grid:
    config = ScheduleConfig.rate(
        period=PERIOD, missed=missed, max_replay=max_replay, initial_delay=initial_delay
    )
    return Grid(config, BEGAN, None)


def play(grid: Grid, runs: list[float]) -> list[tuple[Due, float, float]]:
    """Run one work after another; (what was due, its start, its end)."""
    now, due, played = BEGAN, grid.first(), []
    for seconds in runs:
        now = max(now, due.at)
        due = grid.settled(due, now)
        now = max(now, due.at)
        played.append((due, now, now + seconds))
        now += seconds
        due = grid.following(due, now)
    return played


def slots_and_missed(grid: Grid, runs: list[float]) -> list[tuple[int, int]]:
    return [(due.slot, due.missed) for due, _, _ in play(grid, runs)]


def test_an_overrun_has_one_late_run_and_is_back_on_the_grid() -> None:
    grid = rate("once")

    played = play(grid, [35.0, 1.0, 1.0])

    assert [(due.slot, due.missed) for due, _, _ in played] == [(0, 0), (3, 2), (4, 0)]
    assert [start - BEGAN for _, start, _ in played] == [0.0, 35.0, 40.0]


def test_skipping_leaves_the_missed_ones_out() -> None:
    played = play(rate("skip"), [35.0, 1.0])

    assert [(due.slot, due.missed) for due, _, _ in played] == [(0, 0), (4, 3)]
    assert played[1][1] - BEGAN == 40.0


def test_replay_makes_up_for_the_newest_within_its_bound() -> None:
    assert slots_and_missed(rate("replay"), [35.0, 1, 1, 1, 1]) == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 0),
    ]
    assert slots_and_missed(rate("replay", max_replay=2), [55.0, 1, 1, 1]) == [
        (0, 0),
        (4, 3),
        (5, 0),
        (6, 0),
    ]


@pytest.mark.parametrize(("missed", "slot"), [("once", 6), ("skip", 7), ("replay", 1)])
def test_a_process_that_stood_still_is_treated_as_an_overrun(missed: str, slot: int) -> None:
    grid = rate(missed)
    due = grid.following(grid.first(), BEGAN + 1)

    late = grid.settled(due, BEGAN + 65)

    assert (late.slot, late.missed) == (slot, slot - 1)


def test_a_timer_that_fires_early_neither_doubles_nor_loses_a_slot() -> None:
    grid = rate()
    due = grid.following(grid.first(), BEGAN + 1)

    assert grid.settled(due, due.at - 1e-6) == due
    assert grid.following(due, due.at - 1e-6).slot == due.slot + 1


@given(st.lists(lasting, min_size=1, max_size=20), st.sampled_from(MissedTicks))
def test_fixed_rate_starts_on_the_grid_or_right_after_an_overrun(
    runs: list[float], missed: MissedTicks
) -> None:
    grid = rate(missed)
    before = BEGAN
    last = -1
    elapsed = 0

    for due, start, end in play(grid, runs):
        assert due.slot > last
        assert due.at == BEGAN + due.slot * PERIOD
        assert start in {due.at, before}
        assert start >= before
        elapsed += 1 + due.missed
        assert elapsed == due.slot + 1
        if missed is MissedTicks.SKIP:
            assert start == due.at
        last, before = due.slot, end


@given(st.lists(lasting, min_size=1, max_size=20))
def test_one_late_run_at_most_stands_between_two_on_the_grid(runs: list[float]) -> None:
    for due, start, _ in play(rate("once"), runs):
        assert start < due.at + PERIOD


@given(st.lists(lasting, min_size=1, max_size=20), st.none() | st.floats(0.0, 50.0))
def test_fixed_delay_keeps_its_distance_also_from_the_term_before(
    runs: list[float], ago: float | None
) -> None:
    config = ScheduleConfig.delay(period=PERIOD, initial_delay=2.0)
    before = None if ago is None else BEGAN - ago
    played = play(Grid(config, BEGAN, before), runs)

    assert played[0][1] >= BEGAN + 2.0
    for _, start, end in played:
        if before is not None:
            assert start >= before + PERIOD - 1e-9
        before = end


def test_the_initial_delay_is_counted_from_the_acquisition() -> None:
    assert rate(initial_delay=3.0).first() == Due(0, BEGAN + 3.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"period": 0.0},
        {"period": -1.0},
        {"period": float("nan")},
        {"period": 1.0, "initial_delay": -1.0},
        {"period": 1.0, "missed": "never"},
        {"period": 1.0, "max_replay": 0},
    ],
)
def test_a_schedule_that_cannot_work_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError):
        ScheduleConfig.rate(**fields)  # type: ignore[arg-type]


def test_words_are_taken_for_the_strategy() -> None:
    assert ScheduleConfig("fixed_delay", 0, 1).strategy is Strategy.FIXED_DELAY


def test_the_default_timings_have_room_for_a_failed_renewal() -> None:
    timings = Timings()

    assert timings.seconds("ttl") == 15.0
    assert timings.seconds("renew_every") == 5.0
    assert timings.seconds("margin") == 1.5
    assert timings.seconds("call_timeout") == 2.5
    assert timings.retry_max == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl": 0},
        {"ttl": -5},
        {"ttl": 0.01},
        {"ttl": 10.0, "renew_every": 9.0},
        {"ttl": 10.0, "margin": 9.0},
        {"ttl": 10.0, "call_timeout": 4.0},
        {"renew_every": 0},
        {"margin": -1},
        {"margin": 0},
        {"jitter": 2.0},
    ],
)
def test_timings_that_cannot_keep_a_lease_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError):
        Timings(**fields)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, True, timedelta(seconds=1), float("nan"), "0.2"])
def test_a_jitter_that_is_no_part_of_the_ttl_is_refused(jitter: Any) -> None:
    with pytest.raises(InvalidValueError, match="a part of ttl between 0 and 1, found"):
        Timings(jitter=jitter)
