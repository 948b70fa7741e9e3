"""The JSON form of each value that holds no other value."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, cast
from uuid import UUID

import msgspec

Scalar = str | int | float | bool | None

# Above this the decoder refuses a negative integer, under Python's default of 4,300 digits.
INT_MAX_DIGITS = 4299
_INT_BOUND: int = 10**INT_MAX_DIGITS
_INT_SAFE_BITS = 2048  # 617 digits; Python's limit cannot be set below 640


class RefusedError(Exception):
    """Why one value has no JSON form; the walk adds where it stands."""

    def __init__(self, value: object, reason: str, next_step: str) -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason
        self.next_step = next_step


def _same(value: Any) -> Scalar:
    return cast("Scalar", value)


def _int(value: int) -> int:
    exact = int.__index__(value)
    if exact.bit_length() > _INT_SAFE_BITS:
        if abs(exact) >= _INT_BOUND:
            raise RefusedError(
                value, f"an integer of more than {INT_MAX_DIGITS} digits", "pass it as bytes"
            )
        try:
            int.__repr__(exact)
        except ValueError:
            # This process lowered the limit; the encoder would raise without a path.
            raise RefusedError(
                value,
                "an integer over this process's limit of digits",
                "raise sys.set_int_max_str_digits() or pass it as bytes",
            ) from None
    return exact


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise RefusedError(value, "JSON has no NaN or infinity", "pass None or a finite number")
    return float.__float__(value)


def _str(value: str) -> str:
    exact = str.__str__(value)
    if "\0" in exact:
        raise RefusedError(value, "text with NUL, which PostgreSQL cannot hold", "strip it")
    if not exact.isascii():
        try:
            exact.encode("utf-8")
        except UnicodeEncodeError:
            raise RefusedError(
                value, "text with a lone surrogate, which UTF-8 cannot hold", "pass bytes"
            ) from None
    return exact


def _bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise RefusedError(value, "a Decimal that is not finite", "pass None or a finite number")
    return Decimal.__str__(value)


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise RefusedError(
            value,
            "a naive datetime, which is no instant",
            "give it a zone, as in datetime.now(UTC)",
        )
    _require_whole_minutes(value, offset)
    return datetime.isoformat(value)


def _time(value: time) -> str:
    offset = value.utcoffset()
    if value.tzinfo is not None and offset is None:
        raise RefusedError(
            value, "a time whose offset depends on the date", "pass a datetime or a naive time"
        )
    if offset is not None:
        _require_whole_minutes(value, offset)
    return time.isoformat(value)


def _require_whole_minutes(value: object, offset: timedelta) -> None:
    if offset % timedelta(minutes=1):
        # RFC 3339 has no seconds there; rounding them would move the instant.
        raise RefusedError(value, "a UTC offset that is not whole minutes", "convert it to UTC")


def _date(value: date) -> str:
    return date.isoformat(value)


def _timedelta(value: timedelta) -> str:
    exact = timedelta(days=value.days, seconds=value.seconds, microseconds=value.microseconds)
    return str(msgspec.to_builtins(exact))


def _uuid(value: UUID) -> str:
    return str(value)


_SCALARS: dict[type, Callable[[Any], Scalar]] = {
    NoneType: _same,
    bool: _same,
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
    bytearray: _bytes,
    Decimal: _decimal,
    datetime: _datetime,
    time: _time,
    date: _date,
    timedelta: _timedelta,
    UUID: _uuid,
}


def scalar_form(kind: type) -> Callable[[Any], Scalar] | None:
    """The conversion for values of class `kind`, found by its nearest base; None without one."""
    form = _SCALARS.get(kind)
    if form is None:
        form = next((_SCALARS[base] for base in kind.__mro__ if base in _SCALARS), None)
    return form


def key_text(key: object) -> str:
    """The JSON object key for a dict key: any scalar but None and bool, an Enum by its value."""
    bare = key
    while isinstance(bare, Enum):
        bare = bare.value
    form = scalar_form(type(bare))
    if form is None or bare is None or isinstance(bare, bool):
        raise RefusedError(
            key,
            f"a dict key of type {type(key).__name__!r}",
            "use text, a number, UUID, Decimal, Enum or a date as key",
        )
    plain = form(bare)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode("ascii")
