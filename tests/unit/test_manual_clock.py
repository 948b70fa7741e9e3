from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from threadmill_sa.errors import InvalidValueError, NaiveDatetimeError
from threadmill_sa.testing import ManualClock

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def test_the_clock_stands_still_and_says_that_it_is_injected() -> None:
    clock = ManualClock(T0)

    assert (clock.now(), clock.now(), clock.monotonic(), clock.injected) == (T0, T0, 0.0, True)


@pytest.mark.parametrize("by", [1.5, timedelta(milliseconds=1500)])
def test_time_passes_for_both_readings(by: float | timedelta) -> None:
    clock = ManualClock(T0)

    assert clock.advance(by) == T0 + timedelta(milliseconds=1500)
    assert (clock.now(), clock.monotonic()) == (T0 + timedelta(milliseconds=1500), 1.5)


def test_a_set_clock_may_go_back_while_no_time_passes() -> None:
    clock = ManualClock(T0)

    clock.set(T0 - timedelta(hours=1))

    assert (clock.now(), clock.monotonic()) == (T0 - timedelta(hours=1), 0.0)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(InvalidValueError, match="set"):
        ManualClock(T0).advance(-0.001)


def test_a_naive_instant_is_refused() -> None:
    naive = T0.replace(tzinfo=None)

    with pytest.raises(NaiveDatetimeError):
        ManualClock(naive)
    with pytest.raises(NaiveDatetimeError):
        ManualClock(T0).set(naive)


def test_threads_that_advance_lose_no_step() -> None:
    clock = ManualClock(T0)

    def advance() -> None:
        for _ in range(1000):
            clock.advance(1)

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert (clock.now(), clock.monotonic()) == (T0 + timedelta(seconds=4000), 4000.0)
