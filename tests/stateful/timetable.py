"""When a recurring task should fire, worked out without the arithmetic under test.

An interval is counted in whole microseconds; a cron text is a table of the minutes that match it,
found by looking at every minute of the days in question.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MICRO = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
REACH = timedelta(days=75)  # a table covers so much before and after its start


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of one definition; equal timings are the same timing to the product as well."""

    seconds: int | None = None  # an interval
    anchor: datetime | None = None  # its explicit anchor
    text: str = ""  # or a cron text, of those in `_TABLES`
    zone: str = "UTC"

    def after(self, instant: datetime, anchor: datetime) -> datetime:
        """The first fire later than `instant`."""
        if self.seconds is None:
            minutes = self._minutes(instant)
            return minutes[bisect_right(minutes, instant)]
        step = self.seconds * 1_000_000
        elapsed = (instant - anchor) // MICRO
        if elapsed < step:
            return anchor + timedelta(seconds=self.seconds)
        return anchor + (elapsed - elapsed % step + step) * MICRO

    def until(self, first: datetime, now: datetime, anchor: datetime) -> list[datetime]:
        """`first`, a promised fire, and every fire after it up to `now`."""
        fires = [first]
        while (fire := self.after(fires[-1], anchor)) <= now:
            fires.append(fire)
        return fires

    def _minutes(self, instant: datetime) -> Sequence[datetime]:
        return _table(self.text, self.zone, instant.year, instant.month > 6)


@cache
def _table(text: str, zone: str, year: int, autumn: bool) -> Sequence[datetime]:
    middle = datetime(year, 10 if autumn else 3, 28, tzinfo=UTC)
    return _TABLES[text](ZoneInfo(zone), middle - REACH, middle + REACH)


def _every_20_minutes(zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    # Elapsed: each minute whose local reading matches, the repeated hour twice.
    count = (end - start) // MINUTE
    minutes = [start + number * MINUTE for number in range(count)]
    return [minute for minute in minutes if minute.astimezone(zone).minute % 20 == 0]


def _fixed(*clock: time) -> Callable[[ZoneInfo, datetime, datetime], list[datetime]]:
    def table(zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
        days = (end - start).days
        dates = [start.date() + timedelta(days=number) for number in range(days)]
        return sorted({_first_reading(day, each, zone) for day in dates for each in clock})

    return table


def _first_reading(day: date, clock: time, zone: ZoneInfo) -> datetime:
    """The first minute at which the wall shows this, or the first one after the gap."""
    wall = datetime.combine(day, clock)
    minute = wall.replace(tzinfo=UTC) - timedelta(hours=3)  # no zone here is further east
    while minute.astimezone(zone).replace(tzinfo=None) < wall:
        minute += MINUTE
    return minute


_TABLES: dict[str, Callable[[ZoneInfo, datetime, datetime], list[datetime]]] = {
    "*/20 * * * *": _every_20_minutes,
    "30 2 * * *": _fixed(time(2, 30)),
    "0 6,18 * * *": _fixed(time(6), time(18)),
}

EVERY_10_MINUTES = Timing(seconds=600)
TIMINGS = (
    EVERY_10_MINUTES,
    Timing(seconds=2_700),
    Timing(seconds=25_200),
    Timing(seconds=600, anchor=datetime(2026, 3, 1, 0, 3, 7, tzinfo=UTC)),
    Timing(text="*/20 * * * *", zone="Europe/Berlin"),
    Timing(text="30 2 * * *", zone="Europe/Berlin"),
    Timing(text="0 6,18 * * *"),
)
STARTS = (  # shortly before the clocks of Berlin change
    datetime(2026, 3, 28, 23, 51, 7, 123_456, tzinfo=UTC),
    datetime(2026, 10, 24, 23, 51, 7, 123_456, tzinfo=UTC),
)
