"""From readings of a wall clock to instants: zones, gaps and repeated hours.

Two rules. *Fixed*: a reading fires at the first instant at which the clock has reached it, so a
reading inside a gap fires when the gap ends, and one that occurs twice fires the first time.
*Elapsed*: every instant whose reading matches fires; a reading that does not exist never does,
one that occurs twice fires twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from threadmill_sa.errors import ScheduleError

NextReading = Callable[[datetime], datetime]

_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
# No clock was ever put back further than one day.
_REACH = timedelta(hours=25)
# Equal offsets at both ends prove "no change between" only for short spans: offsets change at
# most once in several days in all published data. Guarded by test_cron_dst.py.
_PROBE = timedelta(hours=6)
# Keys that load but mean the host's own setting or no zone at all.
_NOT_ZONES = frozenset({"localtime", "posixrules", "Factory"})


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """The rules of the IANA zone `name`, spelled exactly.

    Raises: ScheduleError with `zone` and `suggestions` (0..3 close names).
    """
    # Looked up in the list first: a key is never handed to the file system unchecked.
    known = _zone_names()
    if name in known:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError) as err:
            raise ScheduleError(
                f"zone {name!r} cannot be loaded: {err}; reinstall tzdata", zone=name
            ) from err
    text = name[:64]
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(text.lower(), lowered, n=3, cutoff=0.6)
    suggestions = tuple(lowered[each] for each in close)
    hint = f"; did you mean {' or '.join(map(repr, suggestions))}" if suggestions else ""
    raise ScheduleError(
        f"zone {text!r} is unknown: expected an IANA name such as 'Europe/Berlin'{hint}",
        zone=text,
        suggestions=suggestions,
    )


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones()) - _NOT_ZONES


def next_fixed(next_reading: NextReading, zone: ZoneInfo, after: datetime) -> datetime:
    """The first fire strictly later than `after` under the fixed rule, aware UTC."""
    reading = _furthest_reading(zone, after)
    while True:
        reading = next_reading(reading)
        fire = _first_reached(zone, reading)
        # True at once for all published zones; data with changes minutes apart costs more turns.
        if fire > after:
            return fire


def next_elapsed(next_reading: NextReading, zone: ZoneInfo, after: datetime) -> datetime:
    """The first fire strictly later than `after` under the elapsed rule, aware UTC.

    Walks spans of constant offset; one turn per offset change that is met on the way.
    """
    cursor, reading = after, _reading(zone, after)
    while True:
        found = next_reading(reading)
        fire = (found - _offset(zone, cursor)).replace(tzinfo=UTC)
        change = _first_change(zone, cursor, min(fire, cursor + _REACH))
        if change is None:
            if fire - cursor <= _REACH:
                return fire
            # No clock is put back within reach, so any later repeat shows only readings after
            # `reading`, and none of those before `found` matches.
            earliest = _at(zone, found)
            if _reading(zone, earliest) == found:
                return earliest
            change = _gap_end(zone, found)
        cursor, reading = change, _reading(zone, change) - _TICK


def _reading(zone: ZoneInfo, at: datetime) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def _at(zone: ZoneInfo, reading: datetime, *, fold: int = 0) -> datetime:
    return reading.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return _reading(zone, at) - at.replace(tzinfo=None)


def _first_reached(zone: ZoneInfo, reading: datetime) -> datetime:
    first = _at(zone, reading)
    return first if _reading(zone, first) == reading else _gap_end(zone, reading)


def _gap_end(zone: ZoneInfo, reading: datetime) -> datetime:
    """The instant at which the clock jumped over `reading`, which does not exist."""
    # Inside a gap fold=1 means the offset after it, which lies before the jump, and vice versa.
    return _bisect(zone, _at(zone, reading, fold=1), _at(zone, reading))


def _furthest_reading(zone: ZoneInfo, at: datetime) -> datetime:
    """The reading that the clock has reached by `at`: later than its own in a repeated hour."""
    local = at.astimezone(zone)
    reading = local.replace(tzinfo=None, fold=0)
    if not local.fold:
        return reading
    first = _at(zone, reading)
    put_back = _bisect(zone, first, at)
    # The reading at which the clock was put back was not shown then, so it is still to come.
    return put_back.replace(tzinfo=None) + _offset(zone, first) - _TICK


def _first_change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime | None:
    """The first change of offset in (low, high], a span of at most `_REACH`."""
    offset = _offset(zone, low)
    while low < high:
        probe = min(low + _PROBE, high)
        if _offset(zone, probe) != offset:
            return _bisect(zone, low, probe)
        low = probe
    return None


def _bisect(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The whole second in (low, high] from which the offset differs from the one at `low`."""
    low = low.replace(microsecond=0)
    offset = _offset(zone, low)
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if middle == low:
            middle = low + _SECOND
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return low + _SECOND
