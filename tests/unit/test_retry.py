from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model.limits import BACKOFF_MAX_SECONDS
from threadmill_sa.model.retry import DEFAULT_BACKOFF, Backoff

MIDDLE = 0.5  # noise that leaves the pause unchanged


def test_the_pause_grows_by_the_factor_up_to_the_maximum() -> None:
    backoff = Backoff(initial=5, factor=2, maximum=60)

    pauses = [backoff.seconds(failed, MIDDLE) for failed in (1, 2, 3, 4, 5, 6)]

    assert pauses == pytest.approx([5, 10, 20, 40, 60, 60])


def test_the_default_starts_at_five_seconds_and_ends_at_an_hour() -> None:
    assert DEFAULT_BACKOFF.seconds(1, MIDDLE) == pytest.approx(5)
    assert DEFAULT_BACKOFF.seconds(50, MIDDLE) == pytest.approx(3600)


def test_a_duration_may_be_a_timedelta_as_everywhere() -> None:
    given: dict[str, Any] = {"initial": timedelta(seconds=5), "maximum": timedelta(minutes=1)}

    assert Backoff(**given) == Backoff(initial=5.0, maximum=60.0)


@pytest.mark.parametrize(("noise", "expected"), [(0.0, 9.0), (0.5, 10.0), (1.0, 11.0)])
def test_jitter_spreads_the_pause_over_its_share(noise: float, expected: float) -> None:
    backoff = Backoff(initial=10, factor=1, maximum=60, jitter=0.1)

    assert backoff.seconds(3, noise) == pytest.approx(expected)


def test_jitter_never_exceeds_the_maximum() -> None:
    backoff = Backoff(initial=60, factor=2, maximum=60, jitter=1)

    assert backoff.seconds(2, 1.0) == 60
    assert backoff.seconds(2, 0.0) == 0


def test_a_lower_cap_wins_and_a_higher_one_does_not() -> None:
    assert DEFAULT_BACKOFF.seconds(9, 1.0, cap=60) == 60
    assert DEFAULT_BACKOFF.seconds(20, MIDDLE, cap=1e9) == pytest.approx(3600)


@pytest.mark.parametrize("failed", [1, 10_000, 10**9])
def test_no_number_of_attempts_overflows(failed: int) -> None:
    backoff = Backoff(initial=1, factor=1e300, maximum=BACKOFF_MAX_SECONDS)

    assert 0 < backoff.seconds(failed, MIDDLE) <= BACKOFF_MAX_SECONDS


@pytest.mark.parametrize("fields", [{"initial": 0}, {"maximum": 0}])
def test_a_backoff_of_zero_never_waits(fields: dict[str, float]) -> None:
    backoff = Backoff(**fields)

    assert [backoff.seconds(failed, 1.0) for failed in (1, 2, 50)] == [0, 0, 0]
    assert DEFAULT_BACKOFF.seconds(3, 1.0, cap=0) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial", -1),
        ("initial", math.nan),
        ("initial", BACKOFF_MAX_SECONDS * 2),
        ("factor", 0.5),
        ("factor", math.nan),
        ("maximum", -1),
        ("maximum", math.inf),
        ("jitter", 1.1),
        ("jitter", -0.1),
        ("initial", True),
        ("initial", "5"),
        ("maximum", None),
    ],
)
def test_a_value_out_of_bounds_is_refused_and_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"backoff {field} must be (between|seconds)"):
        Backoff(**{field: value})
