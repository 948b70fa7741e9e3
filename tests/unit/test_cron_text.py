"""Which cron text is accepted, what is said about the rest, and the normal spelling."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from threadmill_sa.errors import ScheduleError
from threadmill_sa.model.cron import CronExpression
from threadmill_sa.model.trigger import Cron

START = datetime.fromisoformat("2027-01-01T00:00")  # a Friday


def readings(text: str, count: int, *, start: datetime = START) -> list[str]:
    expression = CronExpression.parse(text)
    found = []
    for _ in range(count):
        start = expression.next_reading(start)
        found.append(f"{start:%Y-%m-%d %H:%M}")
    return found


REFUSED = [
    ("", "minute", 1),
    ("* * * *", "day-of-week", 8),
    ("0 0 * * * *", "sixth", 11),
    ("0 0 * * * * 2027", "sixth", 11),
    ("60 * * * *", "minute", 1),
    ("0 24 * * *", "hour", 3),
    ("0 0 0 * *", "day-of-month", 5),
    ("0 0 32 * *", "day-of-month", 5),
    ("0 0 * 0 *", "month", 7),
    ("0 0 * 13 *", "month", 7),
    ("0 0 * * 8", "day-of-week", 9),
    ("59-5 * * * *", "minute", 1),
    ("0 22-6 * * *", "hour", 3),
    ("0 0 * * FRI-SUN", "day-of-week", 9),
    ("*/0 * * * *", "minute", 1),
    ("*/-5 * * * *", "minute", 1),
    ("-5 * * * *", "minute", 1),
    ("0-30/0 * * * *", "minute", 1),
    ("*/90 * * * *", "minute", 1),
    ("0 */25 * * *", "hour", 3),
    ("1,,2 * * * *", "minute", 3),
    (",1 * * * *", "minute", 1),
    ("1, * * * *", "minute", 3),
    ("5,61,7 * * * *", "minute", 3),
    ("H * * * *", "minute", 1),
    ("H(0-29)/10 * * * *", "minute", 1),
    ("0 R * * *", "hour", 3),
    ("0 0 15W * *", "day-of-month", 5),
    ("0 0 LW * *", "day-of-month", 5),
    ("0 0 ? * 1", "day-of-month", 5),
    ("0 0 1 * ?", "day-of-week", 9),
    ("0 0 L-3 * *", "day-of-month", 5),
    ("0 0 15-L * *", "day-of-month", 5),
    ("0 0 * L *", "month", 7),
    ("0 0 * * L", "day-of-week", 9),
    ("0 0 * * 5L", "day-of-week", 9),
    ("0 0 * * L8", "day-of-week", 9),
    ("0 0 * * 5#0", "day-of-week", 9),
    ("0 0 * * 5#6", "day-of-week", 9),
    ("0 0 * * 1-5#2", "day-of-week", 9),
    ("0 0 5#2 * *", "day-of-month", 5),
    ("0 0 * MON *", "month", 7),
    ("0 0 * * JAN", "day-of-week", 9),
    ("0 0 * JANUARY *", "month", 7),
    ("** * * * *", "minute", 1),
    ("1.5 * * * *", "minute", 1),
    ("+5 * * * *", "minute", 1),
    ("1-2-3 * * * *", "minute", 1),
    ("*/5/2 * * * *", "minute", 1),
    ("@reboot", "expression", 1),
    ("@every 5m", "expression", 1),
    ("  @dailyy", "expression", 3),
    ("0 0 * * *\n", "day-of-week", 10),
    ("0\n0 * * *", "minute", 2),
    ("0 0\x00 * * *", "hour", 4),
    ("0\u00a00 * * *", "minute", 2),
    ("\u0663 * * * *", "minute", 1),
    ("0 \uff15 * * *", "hour", 3),
    ("0 0 * * \u017fun", "day-of-week", 9),
    ("0 0 30 2 *", "day-of-month", 5),
    ("0 0 31 4,6 *", "day-of-month", 5),
    ("0 0 */31 * 5#2", "day-of-month", 5),
    ("0 0 */20 * L5", "day-of-month", 5),
    ("* " * 200, "expression", 257),
]


@pytest.mark.parametrize(("text", "field", "position"), REFUSED)
def test_odd_text_is_refused_with_its_field_and_position(text, field, position):
    with pytest.raises(ScheduleError) as caught:
        Cron(text)

    assert (field, position) == (caught.value.field, caught.value.position)
    assert f"{field} field, position {position}" in caught.value.message


ACCEPTED = [
    ("* * * * *", "* * * * *"),
    (" \t5\t4 *  * * ", "5 4 * * *"),
    ("05 004 * * *", "5 4 * * *"),
    ("0 9 * jan-Mar mon-FRI", "0 9 * 1-3 1-5"),
    ("0 9 * * 7", "0 9 * * 0"),
    ("0 9 * * sun,7#2,L7", "0 9 * * 0,0#2,L0"),
    ("0 9 * * 5-7", "0 9 * * 5-7"),
    ("0 9 * * 0-7", "0 9 * * 0-7"),
    ("0 9 * * mon#1", "0 9 * * 1#1"),
    ("0 9 l * *", "0 9 L * *"),
    ("0 9 31,L * *", "0 9 31,L * *"),
    ("10/20 * * * *", "10/20 * * * *"),
    ("0-30/10,45 * * * *", "0-30/10,45 * * * *"),
    ("*/60 * * * *", "*/60 * * * *"),
    ("0 0 31 4,5 *", "0 0 31 4,5 *"),
    ("0 0 29 2 *", "0 0 29 2 *"),
    ("0 0 * 2 5#5", "0 0 * 2 5#5"),
    ("@hourly", "0 * * * *"),
    ("@Daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    (" @MONTHLY ", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
]


@pytest.mark.parametrize(("text", "canonical"), ACCEPTED)
def test_accepted_text_has_one_normal_spelling(text, canonical):
    expression = CronExpression.parse(text)

    assert canonical == expression.canonical
    assert CronExpression.parse(canonical) == expression


@pytest.mark.parametrize(
    ("text", "elapsed"),
    [
        ("0 * * * *", True),
        ("*/30 2 * * *", True),
        ("@hourly", True),
        ("0 */2 * * *", True),
        ("0 0-23 * * *", False),
        ("0-59 2 * * *", False),
        ("30 2 * * *", False),
        ("0,* 2 * * *", False),
    ],
)
def test_a_leading_star_in_minute_or_hour_makes_an_expression_elapsed(text, elapsed):
    assert elapsed == CronExpression.parse(text).elapsed


def test_day_of_month_and_day_of_week_are_alternatives_when_neither_starts_with_a_star():
    expected = [
        "2027-01-08 09:00",
        "2027-01-13 09:00",
        "2027-01-15 09:00",
        "2027-01-22 09:00",
    ]

    assert ["2027-01-01 09:00", *expected] == readings("0 9 13 * 5", 5)


def test_a_star_with_a_step_makes_both_day_fields_necessary():
    # Odd days of the month that are Saturdays.
    expected = ["2027-01-09 09:00", "2027-01-23 09:00", "2027-02-13 09:00", "2027-02-27 09:00"]

    assert expected == readings("0 9 */2 * 6", 4)


def test_seven_is_sunday():
    assert readings("0 9 * * 7", 2) == ["2027-01-03 09:00", "2027-01-10 09:00"]
    assert readings("0 9 * * 6/1,7/3", 3)[1:] == ["2027-01-03 09:00", "2027-01-09 09:00"]


def test_a_list_with_the_last_day_keeps_the_short_months():
    expected = ["2027-01-31 00:00", "2027-02-28 00:00", "2027-03-31 00:00", "2027-04-30 00:00"]

    assert expected == readings("0 0 31,L * *", 4)


def test_the_last_day_and_a_plain_day_both_fire():
    assert [each[:10] for each in readings("0 0 15,L * *", 4)] == [
        "2027-01-15",
        "2027-01-31",
        "2027-02-15",
        "2027-02-28",
    ]


def test_the_last_friday_and_the_second_friday_of_the_month():
    assert [each[:10] for each in readings("0 0 * * L5", 2)] == ["2027-01-29", "2027-02-26"]
    assert [each[:10] for each in readings("0 0 * * 5#2", 2)] == ["2027-01-08", "2027-02-12"]


def test_a_numbered_weekday_beside_a_day_of_month_is_an_alternative():
    # croniter alone drops the day of the month here.
    expected = ["2027-01-08", "2027-01-20", "2027-02-12", "2027-02-20"]

    assert expected == [each[:10] for each in readings("0 0 20 * 5#2", 4)]


def test_a_numbered_weekday_beside_a_plain_one_is_accepted():
    # croniter alone refuses the mix.
    expected = ["2027-01-04", "2027-01-08", "2027-01-11", "2027-01-18"]

    assert expected == [each[:10] for each in readings("0 0 * * 1,5#2", 4)]


def test_a_range_of_one_value_is_that_value():
    # croniter alone reads it as the whole field.
    assert readings("7-7 5-5 * * *", 2) == ["2027-01-01 05:07", "2027-01-02 05:07"]


def test_a_step_from_the_last_value_is_that_value():
    assert readings("59/15 * * * *", 2) == ["2027-01-01 00:59", "2027-01-01 01:59"]


def test_leap_day_is_found_across_a_common_century_year():
    after = datetime.fromisoformat("2096-02-29T00:00:01")

    assert readings("0 0 29 2 *", 1, start=after) == ["2104-02-29 00:00"]


def test_every_minute_of_leap_day_goes_on_during_the_day():
    during = datetime.fromisoformat("2096-02-29T10:00:30")
    last = datetime.fromisoformat("2096-02-29T23:59")

    assert readings("* * 29 2 *", 1, start=during) == ["2096-02-29 10:01"]
    assert readings("* * 29 2 *", 1, start=last) == ["2104-02-29 00:00"]


def test_the_rarest_date_is_found_after_forty_years():
    after = datetime.fromisoformat("2072-03-01T00:00")

    # A fifth Monday in February, with the common year 2100 between.
    assert readings("0 0 * 2 1#5", 1, start=after) == ["2112-02-29 00:00"]


def test_an_impossible_date_is_refused_at_once():
    started = time.perf_counter()

    with pytest.raises(ScheduleError, match="which no selected month and weekday ever has"):
        CronExpression.parse("0 0 30 2 *")

    assert time.perf_counter() - started < 0.05


def test_the_reversed_range_says_what_to_write():
    with pytest.raises(ScheduleError, match=r"reversed range '22-6', expected its lower end"):
        Cron("0 22-6 * * *")


def test_seconds_point_to_intervals():
    with pytest.raises(ScheduleError, match=r"Every\(seconds=\.\.\.\)"):
        Cron("0 0 * * * *")


@pytest.mark.parametrize("value", [None, 5, b"* * * * *"])
def test_what_is_not_text_is_refused(value):
    with pytest.raises(ScheduleError, match="is no text"):
        Cron(value)
    with pytest.raises(ScheduleError, match="is no text"):
        Cron("* * * * *", zone=value)
