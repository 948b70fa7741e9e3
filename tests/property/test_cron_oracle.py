"""Cron arithmetic against a scan of every minute and every day, and against a second library.

The matcher below shares nothing with the code under test.
"""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from threadmill_sa.errors import ScheduleError
from threadmill_sa.model.cron import CronExpression
from threadmill_sa.model.trigger import Cron, Trigger, latest_fire, next_fire

MINUTE = timedelta(minutes=1)
ANCHOR = datetime(2000, 1, 1, tzinfo=UTC)
QUICK = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG = settings(QUICK, max_examples=3_000)


# The oracle's own reading of cron text.


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in field.split(","):
        if "L" in item or "#" in item:
            continue
        span, _, step = item.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            start, stop = low, high
        elif dash:
            start, stop = int(first), int(last)
        else:
            start, stop = int(first), high if step else int(first)
        found.update(range(start, stop + 1, int(step or 1)))
    return found


class Matcher:
    def __init__(self, text: str) -> None:
        minute, hour, self.dom, month, self.dow = text.split()
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.months = numbers(month, 1, 12)
        self.days = numbers(self.dom, 1, 31)
        self.weekdays = {day % 7 for day in numbers(self.dow, 0, 6)}
        self.elapsed = minute[0] == "*" or hour[0] == "*"
        self.on = cache(self._on)

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        length = calendar.monthrange(day.year, day.month)[1]
        weekday = day.isoweekday() % 7
        in_month = day.day in self.days or ("L" in self.dom and day.day == length)
        in_week = weekday in self.weekdays
        for item in self.dow.split(","):
            if item[0] == "L" and int(item[1:]) % 7 == weekday and day.day + 7 > length:
                in_week = True
            if "#" in item:
                wanted, nth = item.split("#")
                ordinal = sum(1 for n in range(day.day, 0, -7) if n)
                in_week |= int(wanted) % 7 == weekday and int(nth) == ordinal
        if self.dom[0] == "*" or self.dow[0] == "*":
            return in_month and in_week
        return in_month or in_week

    def __call__(self, reading: datetime) -> bool:
        return (
            reading.minute in self.minutes
            and reading.hour in self.hours
            and self.on(reading.date())
        )


# Scenes: a zone and an instant near which its clock does something odd.

SCENES = [
    ("Europe/Berlin", "2027-03-28T01:00"),
    ("Europe/Berlin", "2027-10-31T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Europe/Dublin", "2027-10-31T01:00"),
    ("Europe/Helsinki", "2027-10-31T01:00"),
    ("Australia/Lord_Howe", "2027-04-03T15:00"),  # half an hour back
    ("Australia/Lord_Howe", "2027-10-02T15:30"),
    ("Africa/Cairo", "2027-04-29T22:00"),  # gap at midnight
    ("Africa/Cairo", "2027-10-28T21:00"),  # midnight comes twice
    ("America/Santiago", "2027-09-05T04:00"),
    ("America/Santiago", "2027-04-04T03:00"),
    ("America/Sao_Paulo", "2018-11-04T03:00"),
    ("America/Sao_Paulo", "2018-02-18T02:00"),
    ("America/Havana", "2027-11-07T05:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),  # 30 December never was
    ("Pacific/Kwajalein", "1993-08-21T12:00"),
    ("Asia/Kathmandu", "1985-12-31T18:30"),  # a quarter of an hour ahead
    ("Pacific/Chatham", "2027-04-03T14:00"),
    ("Pacific/Chatham", "2027-09-25T14:00"),
    ("America/St_Johns", "2006-04-02T03:31"),  # one minute past midnight
    ("America/St_Johns", "2006-10-29T02:31"),
    ("Africa/Casablanca", "2027-02-07T02:00"),
    ("Antarctica/Troll", "2027-03-28T01:00"),  # two hours
    ("Antarctica/Troll", "2027-10-31T01:00"),
    ("Antarctica/Casey", "2020-03-07T16:00"),  # three hours back
    ("America/Caracas", "2007-12-09T07:00"),
    ("Asia/Pyongyang", "2018-05-04T15:00"),
    ("Asia/Kolkata", "2027-01-01T00:00"),
    ("UTC", "2027-01-01T00:00"),
]


@cache
def scanned(zone: str, around: str) -> tuple[datetime, list[tuple[datetime, datetime]]]:
    """The start of the scene, and (instant, reading) of each minute from a day before it."""
    middle = datetime.fromisoformat(around).replace(tzinfo=UTC)
    start = middle - timedelta(hours=30)
    rules = ZoneInfo(zone)
    instants = [start - timedelta(hours=26) + n * MINUTE for n in range(86 * 60)]
    return start, [(at, at.astimezone(rules).replace(tzinfo=None)) for at in instants]


def fires_by_scan(matches: Matcher, zone: str, around: str) -> list[datetime]:
    start, minutes = scanned(zone, around)
    fires = []
    reached = minutes[0][1]
    for at, reading in minutes:
        if matches.elapsed:
            due = matches(reading)
        else:
            # Every reading that the clock has passed or jumped over since the last minute.
            due = False
            while reached < reading:
                reached += MINUTE
                due |= matches(reached)
        if due and at > start:
            fires.append(at)
    return fires


def fires_by_next(trigger: Trigger, start: datetime, until: datetime) -> list[datetime]:
    fires = []
    while (start := next_fire(trigger, start, anchor=ANCHOR)) <= until:
        fires.append(start)
    return fires


# Text of all accepted forms, spelled in numbers.


def items(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    span = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.sampled_from([1, 2, 3, 5, 7]).filter(lambda each: each <= high)
    return st.one_of(
        value.map(str),
        span,
        st.builds(lambda a, n: f"{a}/{n}", span, step),
        st.builds(lambda a, n: f"{a}/{n}", value, step),
    )


def fields(low: int, high: int, *special: str) -> st.SearchStrategy[str]:
    one = st.one_of(items(low, high), st.sampled_from(special)) if special else items(low, high)
    stars = st.integers(1, high - low + 1).map(lambda n: f"*/{n}")
    return st.one_of(
        st.just("*"),
        stars,
        st.lists(one, min_size=1, max_size=3).map(",".join),
        st.builds(lambda star, more: f"{star},{more}", stars, one),
    )


NTH = [f"{day}#{nth}" for day in range(8) for nth in range(1, 6)]
DAYS_OF_MONTH = fields(1, 31, "L")
DAYS_OF_WEEK = fields(0, 6, *NTH, *[f"L{day}" for day in range(8)])
ANY = st.just("*")
TIMES = st.builds("{} {}".format, fields(0, 59), fields(0, 23))
NIGHT_TIMES = st.builds(
    "{} {}".format,
    st.one_of(
        st.sampled_from(["0", "30", "*", "*/15", "0-59", "1", "29,31", "59"]), fields(0, 59)
    ),
    st.one_of(st.sampled_from(["*", "*/2", "0-23", "0", "1", "2", "2,3", "0-3"]), fields(0, 23)),
)
NEAR = st.builds(
    "{} {} * {}".format,
    st.one_of(NIGHT_TIMES, TIMES),
    st.one_of(ANY, ANY, DAYS_OF_MONTH),
    st.one_of(ANY, ANY, DAYS_OF_WEEK),
)
FAR = st.builds("{} {} {} {}".format, TIMES, DAYS_OF_MONTH, fields(1, 12), DAYS_OF_WEEK)


def check_scene(scene: tuple[str, str], text: str) -> None:
    zone, around = scene
    try:
        trigger = Cron(text, zone=zone)
    except ScheduleError:
        assume(False)
    start, minutes = scanned(zone, around)
    until = minutes[-1][0]

    expected = fires_by_scan(Matcher(text), zone, around)

    assert expected == fires_by_next(trigger, start, until)
    if expected:
        latest = latest_fire(trigger, until, not_before=expected[0], anchor=ANCHOR)
        assert expected[-1] == latest


@QUICK
@given(st.sampled_from(SCENES), NEAR)
def test_fires_equal_a_scan_of_every_minute(scene, text):
    check_scene(scene, text)


@pytest.mark.parametrize(("zone", "around"), SCENES)
@pytest.mark.parametrize(
    "text", ["30 * * * *", "*/30 0-3 * * *", "0,30 0-3 * * *", "15 0-23/2 * * *"]
)
def test_usual_expressions_equal_the_scan_in_every_scene(zone, around, text):
    check_scene((zone, around), text)


@pytest.mark.long
@LONG
@given(st.sampled_from(SCENES), NEAR)
def test_fires_equal_a_scan_of_every_minute_at_length(scene, text):
    check_scene(scene, text)


def next_by_days(matches: Matcher, after: datetime) -> datetime:
    """The next match, by a look at each day and then at each minute of it."""
    day = after.date()
    while True:
        if matches.on(day):
            for hour in sorted(matches.hours):
                for minute in sorted(matches.minutes):
                    reading = datetime.fromisoformat(f"{day}T{hour:02}:{minute:02}")
                    if reading > after:
                        return reading
        day += timedelta(days=1)


def check_dates(text: str, after: datetime) -> None:
    matches = Matcher(text)
    try:
        expression = CronExpression.parse(text)
    except ScheduleError:
        # 28 years have each date on each weekday, leap years included.
        days = (date(2001, 1, 1) + timedelta(days=n) for n in range(28 * 365 + 7))
        assert not any(map(matches.on, days)), "refused, yet it has a date"
        return
    again = CronExpression.parse(expression.canonical)

    expected = next_by_days(matches, after)

    assert expected == expression.next_reading(after)
    assert expected == again.next_reading(after)
    assert matches.elapsed == expression.elapsed == again.elapsed


READINGS = st.datetimes(
    datetime.fromisoformat("1990-01-01T00:00"), datetime.fromisoformat("2110-01-01T00:00")
)


@settings(QUICK, max_examples=400)
@given(FAR, READINGS)
def test_dates_equal_a_scan_of_every_day(text, after):
    check_dates(text, after)


@pytest.mark.long
@LONG
@given(FAR, READINGS)
def test_dates_equal_a_scan_of_every_day_at_length(text, after):
    check_dates(text, after)


@settings(QUICK, max_examples=200)
@given(st.text(alphabet="0123456789*/,-#LlHRW? \tjanmosufri@\u0663\x00", max_size=24))
def test_any_text_is_accepted_with_a_next_reading_or_refused_with_a_schedule_error(text):
    after = datetime.fromisoformat("2027-01-01T00:00")
    try:
        expression = CronExpression.parse(text)
    except ScheduleError as refused:
        assert refused.field  # noqa: PT017 - both outcomes are right, with different facts
        assert refused.position >= 1  # noqa: PT017
    else:
        assert expression.next_reading(after) > after


def check_progress(zone: str, text: str, begin: datetime, days: int) -> None:
    trigger = Cron(text, zone=zone)
    previous = begin
    for quarter in range(days * 96):
        at = begin + quarter * 15 * MINUTE
        fire = next_fire(trigger, at, anchor=ANCHOR)
        assert fire > at
        assert fire >= previous
        assert previous > at or fire > previous or quarter == 0
        previous = fire


@pytest.mark.parametrize(
    ("zone", "text", "begin"),
    [
        ("Europe/Helsinki", "30 * * * *", datetime(2027, 10, 15, tzinfo=UTC)),
        ("Australia/Lord_Howe", "15 2 * * *", datetime(2027, 9, 15, tzinfo=UTC)),
        ("America/Santiago", "0 0 * * *", datetime(2027, 8, 25, tzinfo=UTC)),
        ("Africa/Cairo", "*/20 0,23 * * *", datetime(2027, 10, 15, tzinfo=UTC)),
        ("Pacific/Apia", "0 9 * * *", datetime(2011, 12, 15, tzinfo=UTC)),
        ("America/St_Johns", "0 */6 * * *", datetime(2006, 10, 15, tzinfo=UTC)),
    ],
)
def test_next_is_later_from_every_quarter_of_an_hour_of_a_month(zone, text, begin):
    check_progress(zone, text, begin, 31)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", ["30 * * * *", "30 2 * * *", "*/20 0-3 * * *"])
@pytest.mark.parametrize("zone", sorted({zone for zone, _ in SCENES}))
def test_next_is_later_from_every_quarter_of_an_hour_of_a_year(zone, text):
    check_progress(zone, text, datetime(2027, 1, 1, tzinfo=UTC), 366)


def ends_in_gap_once(found: list[datetime]) -> list[datetime]:
    """cronsim repeats an instant when two readings meet at the end of a gap; we fire once."""
    return sorted(set(found))


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Tokyo"],
)
@pytest.mark.parametrize(
    "text",
    ["30 2 * * *", "0 0 * * *", "15 1,2,3 * * *", "0 2,3 * * 0", "59 23 L * *", "5 4 13 * 5"],
)
def test_fixed_expressions_agree_with_a_second_library(zone, text):
    begin = datetime(2027, 1, 1, tzinfo=UTC)
    until = begin + timedelta(days=365)
    walk = CronSim(text, begin.astimezone(ZoneInfo(zone)))
    theirs = []
    while (fire := next(walk).astimezone(UTC)) <= until:
        theirs.append(fire)

    ours = fires_by_next(Cron(text, zone=zone), begin, until)

    assert ends_in_gap_once(theirs) == ours
