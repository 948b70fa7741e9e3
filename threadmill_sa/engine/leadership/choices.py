"""Options that are words."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from threadmill_sa.errors import InvalidValueError

E = TypeVar("E", bound=StrEnum)


def parse_choice(kind: type[E], value: E | str, *, what: str) -> E:
    """Return the member of `kind` for its value. Raises: InvalidValueError."""
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(repr(each.value) for each in kind)
        raise InvalidValueError(
            f"{what} must be one of {words}, found {value!r:.200}", value=value
        ) from None
