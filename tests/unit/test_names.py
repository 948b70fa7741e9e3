from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from threadmill_sa.errors import InvalidNameError, InvalidValueError, NaiveDatetimeError
from threadmill_sa.model.limits import NAME_MAX_CHARS
from threadmill_sa.model.names import check_instant, check_integer, check_name, check_seconds

GOOD = ["a", "x" * NAME_MAX_CHARS, "\U0001f9f5" * NAME_MAX_CHARS, "a b", "it's %s", 'q"', "ä/:"]
BAD = [
    "",
    "x" * (NAME_MAX_CHARS + 1),
    "a\x00b",
    "a\nb",
    "a\x7fb",
    "a\x85b",
    "a\u2028b",
    "\ud800",
    " a",
    "a ",
    "\u00a0a",
    None,
    1,
    b"a",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_returned_unchanged(name: str) -> None:
    assert check_name(name, kind="queue") is name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_and_told(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="queue name") as caught:
        check_name(name, kind="queue")

    assert caught.value.name == name
    assert caught.value.code == "TM-V02"


def test_the_message_of_a_huge_name_stays_short() -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_name("x" * 1_000_000, kind="queue")

    assert len(str(caught.value)) < 500


def test_an_instant_comes_back_in_utc() -> None:
    local = datetime(2026, 3, 2, 8, 0, tzinfo=timezone(timedelta(hours=-5)))

    checked = check_instant(local, what="run_at")

    assert checked == local
    assert checked.tzinfo is UTC


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(NaiveDatetimeError, match="run_at"):
        check_instant(datetime(2026, 3, 2), what="run_at")  # noqa: DTZ001  The case itself.


@pytest.mark.parametrize("value", ["2026-03-02", date(2026, 3, 2), 1.5, None])
def test_what_is_no_instant_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be a datetime"):
        check_instant(value, what="run_at")


@pytest.mark.parametrize(
    "edge",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_an_instant_outside_the_calendar_in_utc_is_refused(edge: datetime) -> None:
    with pytest.raises(InvalidValueError, match="outside the years"):
        check_instant(edge, what="run_at")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (1.5, 1.5), (10, 10.0), (timedelta(milliseconds=1500), 1.5)],
)
def test_a_duration_comes_back_in_seconds(value: Any, expected: float) -> None:
    assert check_seconds(value, what="delay", minimum=0, maximum=10) == expected


@pytest.mark.parametrize(
    "value",
    [-1, 10.1, math.nan, math.inf, 10**400, True, "1", None, timedelta(seconds=11)],
)
def test_a_duration_out_of_bounds_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="delay must be"):
        check_seconds(value, what="delay", minimum=0, maximum=10)


@pytest.mark.parametrize("value", [0, 5])
def test_an_integer_within_bounds_is_returned(value: int) -> None:
    assert check_integer(value, what="priority", minimum=0, maximum=5) == value


@pytest.mark.parametrize("value", [-1, 6, True, 1.0, "1", None])
def test_anything_else_is_no_integer_within_bounds(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="priority must be an integer from 0 to 5"):
        check_integer(value, what="priority", minimum=0, maximum=5)
