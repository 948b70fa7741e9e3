"""What is accepted at enqueue comes back equal; what is refused is refused as a PayloadError."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadmill_sa.codec import (
    check_annotation,
    decode_payload,
    encode_payload,
    encode_result,
    failure_text,
    recordable_text,
)
from threadmill_sa.errors import PayloadError
from threadmill_sa.model import limits


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 3


@dataclass(frozen=True)
class Leaf:
    number: int
    ratio: float
    amount: Decimal
    at: datetime
    color: Color


@dataclass(frozen=True)
class Everything:
    flag: bool
    text: str
    raw: bytes
    day: date
    clock: time
    span: timedelta
    key: UUID
    size: Size
    leaf: Leaf | None
    leaves: list[Leaf]
    pair: tuple[int, str]
    many: tuple[float, ...]
    numbers: set[int]
    words: frozenset[str]
    by_number: dict[int, str]
    by_key: dict[UUID, Decimal]
    by_color: dict[Color, list[int]]
    by_amount: dict[Decimal, bytes]
    by_day: dict[date, timedelta]
    rest: Any


NAIVE_1980 = datetime(1980, 1, 1)  # noqa: DTZ001  Hypothesis takes naive bounds.

offsets = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers() | st.integers(-(2**300), 2**300)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
instants = st.datetimes(timezones=offsets | st.just(UTC))
plain = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
leaves = st.builds(
    Leaf, number=integers, ratio=floats, amount=decimals, at=instants, color=st.sampled_from(Color)
)
everything = st.builds(
    Everything,
    flag=st.booleans(),
    text=texts,
    raw=st.binary(max_size=20),
    day=st.dates(),
    clock=st.times(timezones=st.none() | offsets),
    span=st.timedeltas(),
    key=st.uuids(),
    size=st.sampled_from(Size),
    leaf=st.none() | leaves,
    leaves=st.lists(leaves, max_size=3),
    pair=st.tuples(integers, texts),
    many=st.lists(floats, max_size=4).map(tuple),
    numbers=st.sets(integers, max_size=4),
    words=st.frozensets(texts, max_size=4),
    by_number=st.dictionaries(integers, texts, max_size=4),
    by_key=st.dictionaries(st.uuids(), decimals, max_size=4),
    by_color=st.dictionaries(st.sampled_from(Color), st.lists(integers, max_size=2)),
    by_amount=st.dictionaries(decimals, st.binary(max_size=4), max_size=3),
    by_day=st.dictionaries(st.dates(), st.timedeltas(), max_size=3),
    rest=plain,
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.times(timezones=st.timezones())
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def encoded_or_refused(value: object) -> tuple[str, PayloadError | None]:
    try:
        return encode_payload(value), None
    except PayloadError as error:
        return "", error


@given(everything)
def test_a_declared_value_comes_back_equal_and_of_the_same_types(value: Everything) -> None:
    check_annotation(Everything)

    decoded = decode_payload(encode_payload(value), Everything)

    assert value == decoded
    # The repr also tells 1 from 1.0, True from 1 and the digits of a Decimal; sets have no order.
    assert isinstance(decoded, Everything)
    for name in ("flag", "text", "raw", "size", "pair", "many", "by_number", "by_key", "rest"):
        assert repr(getattr(value, name)) == repr(getattr(decoded, name))
    for one, other in zip(value.leaves, decoded.leaves, strict=True):
        assert repr(one.amount) == repr(other.amount)
        assert one.at.utcoffset() == other.at.utcoffset()


@given(floats)
def test_a_float_keeps_every_bit(value: float) -> None:
    decoded = decode_payload(encode_payload(value), float)

    assert isinstance(decoded, float)
    assert value.hex() == decoded.hex()


@given(st.integers(1, limits.PAYLOAD_MAX_DEPTH * 40), st.sampled_from([1, -1]))
def test_an_integer_of_any_accepted_length_is_exact(digits: int, sign: int) -> None:
    value = sign * (10**digits - 7)

    assert value == decode_payload(encode_payload(value), int)


@given(
    st.datetimes(min_value=NAIVE_1980, timezones=st.timezones()),
    st.sampled_from([0, 1]),
)
def test_the_instant_of_a_zoned_datetime_survives(value: datetime, fold: int) -> None:
    moment = value.replace(fold=fold)
    if moment.utcoffset() % timedelta(minutes=1):  # type: ignore[operator]
        return

    decoded = decode_payload(encode_payload(moment), datetime)

    assert isinstance(decoded, datetime)
    assert moment.astimezone(UTC) == decoded.astimezone(UTC)


@given(anything)
def test_every_value_is_encoded_as_strict_json_or_refused_with_a_path(value: object) -> None:
    text, refusal = encoded_or_refused(value)

    if refusal is not None:
        assert refusal.path.startswith("payload")
        assert refusal.message.isprintable()
        return
    assert "\0" not in text
    assert text == text.encode("utf-8").decode("utf-8")
    assert text == encode_payload(value)
    assert isinstance(json.loads(text, parse_constant=pytest.fail), object)
    assert encode_payload(decode_payload(text, Any)) == text


@given(anything, st.integers(2, 200))
def test_a_result_is_kept_within_the_limit_or_dropped_with_a_note(
    value: object, limit: int
) -> None:
    result = encode_result(value, max_bytes=limit)

    if result.text is not None:
        assert len(result.text.encode("utf-8")) <= limit
        assert result.note is None
    else:
        assert value is None or result.note


@given(st.text(st.characters(), max_size=300), st.integers(0, 400))
def test_every_text_becomes_recordable_within_the_limit(text: str, limit: int) -> None:
    cut = recordable_text(text, max_bytes=limit)
    failure = failure_text(ValueError(text), max_bytes=limit)

    for stored in (cut, failure):
        assert "\0" not in stored
        assert len(stored.encode("utf-8")) <= limit
