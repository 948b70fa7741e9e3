"""When a recurring task fires: `Cron` and `Every`, and their arithmetic on instants.

Everything here is pure: instants come in as arguments and go out as aware UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from threadmill_sa.errors import NaiveDatetimeError, ScheduleError
from threadmill_sa.model.cron import CronExpression
from threadmill_sa.model.limits import INTERVAL_MAX_SECONDS, INTERVAL_MIN_SECONDS
from threadmill_sa.model.walltime import load_zone, next_elapsed, next_fixed

_MICROSECOND = timedelta(microseconds=1)
_INTERVAL_TEXT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?")

_parsed = lru_cache(maxsize=1024)(CronExpression.parse)


class TriggerKind(StrEnum):
    """How the trigger of a recurring task is stored."""

    CRON = "cron"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class Cron:
    """Fires when the wall clock of `zone` matches five cron fields.

    Raises: ScheduleError for text or a zone that cannot be evaluated.
    """

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _require_text("expression", self.expression)
        _require_text("zone", self.zone)
        _parsed(self.expression)
        load_zone(self.zone)


@dataclass(frozen=True, slots=True, init=False)
class Every:
    """Fires each time `interval` has elapsed since the anchor; never follows a wall clock.

    The interval is one `timedelta` or the sum of the named parts, rounded to microseconds.
    `anchor` is an aware instant; without one it is the moment of registration.

    Raises: ScheduleError outside 1 ms .. 100 years, and for an anchor whose first fire no calendar
        has; NaiveDatetimeError for a naive anchor.
    """

    interval: timedelta
    anchor: datetime | None

    def __init__(
        self,
        interval: timedelta | None = None,
        /,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        weeks: float = 0,
        anchor: datetime | None = None,
    ) -> None:
        parts = {
            "seconds": seconds,
            "minutes": minutes,
            "hours": hours,
            "days": days,
            "weeks": weeks,
        }
        object.__setattr__(self, "interval", _checked_interval(interval, parts))
        object.__setattr__(self, "anchor", None if anchor is None else _utc(anchor, "anchor"))
        _require_first_fire(self)


Trigger = Cron | Every


def trigger_text(trigger: Trigger) -> tuple[TriggerKind, str, str]:
    """What to store: kind, value and zone; an explicit anchor is stored elsewhere."""
    if isinstance(trigger, Cron):
        return TriggerKind.CRON, trigger.expression, trigger.zone
    return TriggerKind.INTERVAL, _seconds_text(trigger.interval), "UTC"


def parse_trigger(kind: str, value: str, zone: str) -> Trigger:
    """The trigger that was stored as `trigger_text` gives it.

    Raises: ScheduleError for anything that cannot be evaluated, such as rows edited by hand.
    """
    if kind == TriggerKind.CRON:
        return Cron(value, zone)
    if kind != TriggerKind.INTERVAL:
        raise ScheduleError(
            f"trigger kind {kind!r} is unknown: expected 'cron' or 'interval'", kind=kind
        )
    match = _INTERVAL_TEXT.fullmatch(str(value))
    if match is None:
        raise ScheduleError(
            f"interval {value!r} cannot be read: expected seconds such as '600' or '0.5'",
            value=value,
        )
    whole, fraction = match.groups()
    return Every(timedelta(seconds=int(whole), microseconds=int((fraction or "").ljust(6, "0"))))


def timing_fingerprint(trigger: Trigger) -> str:
    """Text that differs when the timing differs and stays when only the spelling does."""
    if isinstance(trigger, Cron):
        return f"cron:{_parsed(trigger.expression).canonical}@{trigger.zone}"
    text = f"interval:{_seconds_text(trigger.interval)}"
    return text if trigger.anchor is None else f"{text}@{trigger.anchor.isoformat()}"


def next_fire(trigger: Trigger, after: datetime, *, anchor: datetime) -> datetime:
    """The first nominal fire strictly later than `after`, aware UTC.

    An interval fires at `anchor` plus 1, 2, 3 ... intervals; a cron expression ignores `anchor`.
    Raises: ScheduleError when the calendar ends before the next fire.
    """
    after = _utc(after, "after")
    anchor = _utc(anchor, "anchor")
    try:
        if isinstance(trigger, Cron):
            expression = _parsed(trigger.expression)
            step = next_elapsed if expression.elapsed else next_fixed
            return step(expression.next_reading, load_zone(trigger.zone), after)
        return anchor + max(1, (after - anchor) // trigger.interval + 1) * trigger.interval
    except ScheduleError:
        raise
    except (OverflowError, ValueError) as err:
        # Both are how datetime and croniter say that a date is past the year 9999.
        raise ScheduleError(
            f"trigger {trigger!r} has no fire after {after.isoformat()}: "
            "expected one before the year 10000",
            after=after,
        ) from err


def latest_fire(
    trigger: Trigger, at_or_before: datetime, *, not_before: datetime, anchor: datetime
) -> datetime:
    """The latest nominal fire up to `at_or_before`, given that `not_before` is one.

    Returns `not_before` when no later one was reached. Cost: constant for an interval; for cron
    it grows with the logarithm of the outage.
    """
    until = _utc(at_or_before, "at_or_before")
    known = _utc(not_before, "not_before")
    anchor = _utc(anchor, "anchor")
    if isinstance(trigger, Cron):
        return _latest_match(trigger, known, until)
    count = (until - anchor) // trigger.interval
    return max(known, anchor + count * trigger.interval) if count >= 1 else known


def fires_between(
    trigger: Trigger, first: datetime, until: datetime, *, limit: int, anchor: datetime
) -> list[datetime]:
    """Nominal fires from `first`, itself one, up to `until`; 0..limit, in order of time."""
    until = _utc(until, "until")
    fire: datetime | None = _utc(first, "first")
    fires: list[datetime] = []
    while fire is not None and fire <= until and len(fires) < limit:
        fires.append(fire)
        fire = _next_until(trigger, fire, until, anchor=anchor)
    return fires


def _latest_match(trigger: Cron, known: datetime, until: datetime) -> datetime:
    """The last fire in (known, until], else `known`."""
    # Windows that double, seen back from the end, find a late fire of a dense schedule at once.
    quiet_from = until  # nothing fires in (quiet_from, until]
    window = timedelta(minutes=1)
    while until - known > window:
        fire = _next_until(trigger, until - window, until)
        if fire is not None:
            known = fire
            break
        quiet_from = until - window
        window *= 2
    # Each turn takes one more fire and halves what lies between it and the quiet end.
    while (fire := _next_until(trigger, known, until)) is not None:
        known = fire
        middle = known + (quiet_from - known) / 2
        fire = _next_until(trigger, middle, until) if middle > known else None
        if fire is not None:
            known = fire
        elif middle > known:
            quiet_from = middle
    return known


def _next_until(
    trigger: Trigger, after: datetime, until: datetime, *, anchor: datetime | None = None
) -> datetime | None:
    try:
        fire = next_fire(trigger, after, anchor=after if anchor is None else anchor)
    except ScheduleError:
        # The calendar ends first, so `until` does too.
        return None
    return fire if fire <= until else None


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ScheduleError(
            f"cron {name} {value!r} is no text: found {type(value).__name__}, expected str",
            field=name,
        )


def _checked_interval(interval: object, parts: dict[str, float]) -> timedelta:
    if interval is None:
        try:
            interval = timedelta(**parts)
        except (OverflowError, ValueError, TypeError) as err:
            raise ScheduleError(
                f"interval of {parts!r} cannot be represented: {err}", interval=parts
            ) from err
    elif not isinstance(interval, timedelta):
        raise ScheduleError(
            f"interval {interval!r} is no timedelta: write Every(seconds=...)", interval=interval
        )
    elif any(parts.values()):
        raise ScheduleError(
            f"interval {interval!r} came with parts as well: give a timedelta or parts",
            interval=interval,
        )
    if not INTERVAL_MIN_SECONDS <= interval.total_seconds() <= INTERVAL_MAX_SECONDS:
        raise ScheduleError(
            f"interval of {interval.total_seconds()!r} s is out of bounds: "
            f"expected {INTERVAL_MIN_SECONDS:g}..{INTERVAL_MAX_SECONDS:.0f} s",
            interval=interval,
        )
    # A subclass of timedelta may not round-trip through text.
    return timedelta(microseconds=interval // _MICROSECOND)


def _require_first_fire(every: Every) -> None:
    if every.anchor is None:
        return
    try:
        _ = every.anchor + every.interval
    except OverflowError as err:
        raise ScheduleError(
            f"anchor {every.anchor!r} leaves no room for a first fire {every.interval} later:"
            " expected one before the year 10000",
            anchor=every.anchor,
        ) from err


def _seconds_text(interval: timedelta) -> str:
    whole, rest = divmod(interval // _MICROSECOND, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def _utc(instant: object, name: str) -> datetime:
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise NaiveDatetimeError(
            f"{name} {instant!r} names no instant: expected an aware datetime, "
            "such as datetime.now(UTC)",
            argument=name,
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError as err:
        raise ScheduleError(f"{name} {instant!r} is outside the years 1..9999 in UTC") from err
