"""The rule for every name that a user chooses. Equality is exact code points on every store."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime, timedelta
from uuid import UUID

from threadmill_sa.errors import InvalidNameError, InvalidValueError, NaiveDatetimeError
from threadmill_sa.model import limits

_HUGE = 10**18  # float() of a larger integer may overflow
_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, surrogates, line separators


def check_name(name: object, *, kind: str) -> str:
    """Return `name` when it is 1..128 characters without control characters.

    Args:
        kind: what is named, for the message, such as "recurring task" or "queue".
    Raises: InvalidNameError.
    """
    if not isinstance(name, str):
        raise InvalidNameError(
            f"{kind} name must be a string, found {type(name).__name__}: {name!r:.200}", name=name
        )
    if not 1 <= len(name) <= limits.NAME_MAX_CHARS:
        raise InvalidNameError(
            f"{kind} name must have 1 to {limits.NAME_MAX_CHARS} characters,"
            f" found {len(name)}: {name!r:.200}",
            name=name,
        )
    if name.isprintable() and name[0] != " " != name[-1]:
        return name  # the usual case, on the path of every nudge
    for position, char in enumerate(name):
        if unicodedata.category(char) in _FORBIDDEN:
            raise InvalidNameError(
                f"{kind} name {name!r} has a control character at position {position}: remove it",
                name=name,
            )
    if name != name.strip():
        raise InvalidNameError(
            f"{kind} name {name!r} starts or ends with white space: remove it", name=name
        )
    return name


def check_instant(value: datetime, *, what: str) -> datetime:
    """Return `value` in UTC; a naive datetime is refused, never guessed.

    Raises: NaiveDatetimeError, InvalidValueError for anything but a datetime.
    """
    if not isinstance(value, datetime):
        raise InvalidValueError(f"{what} must be a datetime, found {value!r:.200}", value=value)
    if value.utcoffset() is None:
        raise NaiveDatetimeError(
            f"{what} {value.isoformat()} has no zone: pass an aware datetime,"
            " such as datetime.now(timezone.utc)",
            value=value,
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidValueError(
            f"{what} {value.isoformat()} is outside the years 1 to 9999 in UTC", value=value
        ) from None


def check_seconds(value: float | timedelta, *, what: str, minimum: float, maximum: float) -> float:
    """Return a duration in seconds, given as `timedelta` or number, within bounds (inclusive).

    Raises: InvalidValueError.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) < _HUGE else math.inf
    else:
        raise InvalidValueError(
            f"{what} must be seconds or a timedelta, found {value!r:.200}", value=value
        )
    if not minimum <= seconds <= maximum:  # also refuses nan
        raise InvalidValueError(
            f"{what} must be between {minimum:g} and {maximum:g} seconds, found {value!r:.200}",
            value=value,
        )
    return seconds


def check_uuid(value: object, *, what: str) -> UUID:
    """Return an id. Raises: InvalidValueError for anything but a `uuid.UUID`."""
    if not isinstance(value, UUID):
        raise InvalidValueError(
            f"{what} must be a uuid.UUID, found {value!r:.200}: make one with UUID(text)",
            value=value,
        )
    return value


def check_integer(value: object, *, what: str, minimum: int, maximum: int) -> int:
    """Return an integer within bounds (inclusive). Raises: InvalidValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidValueError(
            f"{what} must be an integer from {minimum} to {maximum}, found {value!r:.200}",
            value=value,
        )
    return value
