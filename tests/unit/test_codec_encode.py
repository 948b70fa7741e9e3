from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from threadmill_sa.codec import encode_payload
from threadmill_sa.errors import PayloadError, PayloadTooLargeError
from threadmill_sa.model import limits

BERLIN = ZoneInfo("Europe/Berlin")


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Mood(StrEnum):
    CALM = "calm"


class Point(NamedTuple):
    x: int
    y: int


class Tagged(msgspec.Struct, tag="parcel", rename="camel"):
    net_weight: Decimal


class Row(msgspec.Struct, array_like=True):
    x: int


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    price: Decimal = Decimal("0.10")


@dataclass
class Order:
    items: list[Item]
    labels: dict[str, Any] = field(default_factory=dict)


@dataclass
class Half:
    whole: int = field(init=False)


class Text(str):
    """A subclass that does not look like its own text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "other"


@contextmanager
def int_digits_limited_to(digits: int) -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(digits)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def refused(value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        encode_payload(value)
    return caught.value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _written(part: object) -> str:
    """An id that is the same in every process: the order of a set is not."""
    return f"frozenset {sorted(part)}" if isinstance(part, frozenset) else repr(part)


class TestForms:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, "null"),
            (True, "true"),
            (2**63, str(2**63)),
            (-(2**200), str(-(2**200))),
            (0.1 + 0.2, "0.30000000000000004"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            ("naïve 😀 \u2028", '"naïve 😀 \u2028"'),
            (Text("own"), '"own"'),
            (b"\x00\xff", '"AP8="'),
            (bytearray(b"\x00\xff"), '"AP8="'),
            ((1, "a"), '[1,"a"]'),
            (Point(1, 2), "[1,2]"),
            ({3, 1, 2}, "[1,2,3]"),
            (frozenset({"b", "a"}), '["a","b"]'),
            (Decimal("1.10"), '"1.10"'),
            (Decimal("1E+400"), '"1E+400"'),
            (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
            (date(2024, 2, 29), '"2024-02-29"'),
            (time(1, 2, 3, 4), '"01:02:03.000004"'),
            (time(1, 2, tzinfo=UTC), '"01:02:00+00:00"'),
            (timedelta(days=-1, microseconds=1), '"-PT86399.999999S"'),
            (datetime(2024, 1, 1, tzinfo=UTC), '"2024-01-01T00:00:00+00:00"'),
            (Color.RED, '"red"'),
            (Size.LARGE, "3"),
            (Mood.CALM, '"calm"'),
            (Tagged(Decimal(2)), '{"type":"parcel","netWeight":"2"}'),
            (
                Order([Item("a")], {"k": None}),
                '{"items":[{"name":"a","price":"0.10"}],"labels":{"k":null}}',
            ),
        ],
        ids=_written,
    )
    def test_each_supported_type_has_one_json_form(self, value: object, text: str) -> None:
        assert text == encode_payload(value)

    def test_both_instants_of_a_repeated_hour_keep_their_offset(self) -> None:
        first = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)

        texts = [encode_payload(first), encode_payload(first.replace(fold=1))]

        assert texts == ['"2024-10-27T02:30:00+02:00"', '"2024-10-27T02:30:00+01:00"']

    def test_a_dict_keeps_its_order_and_a_set_has_one(self) -> None:
        words = {f"word-{n}" for n in range(50)}
        last_first = sorted(words, reverse=True)

        text = encode_payload({"z": words, "a": set(last_first)})

        decoded = json.loads(text)
        assert list(decoded) == ["z", "a"]
        assert sorted(words) == decoded["z"] == decoded["a"]

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("a b", "a b"),
            (-7, "-7"),
            (2**200, str(2**200)),
            (1.5, "1.5"),
            (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (Decimal("1.50"), "1.50"),
            (Color.RED, "red"),
            (Size.LARGE, "3"),
            (Mood.CALM, "calm"),
            (date(2024, 1, 1), "2024-01-01"),
            (b"\xff", "/w=="),
        ],
        ids=repr,
    )
    def test_each_scalar_key_has_one_text(self, key: object, text: str) -> None:
        assert {text: 0} == json.loads(encode_payload({key: 0}))

    def test_a_change_after_encoding_is_not_seen(self) -> None:
        order = Order([Item("a")])
        text = encode_payload(order)

        order.items.append(Item("b"))

        assert text != encode_payload(order)
        assert [item["name"] for item in json.loads(text)["items"]] == ["a"]

    def test_one_value_in_two_places_is_no_cycle(self) -> None:
        item = [1]

        assert encode_payload([item, item]) == "[[1],[1]]"


class TestRefusals:
    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            ("a\0b", "NUL"),
            ("\ud800", "lone surrogate"),
            (math.nan, "NaN"),
            (-math.inf, "infinity"),
            (Decimal("NaN"), "not finite"),
            (Decimal("sNaN"), "not finite"),
            (Decimal("-Infinity"), "not finite"),
            (datetime(2024, 1, 1), "naive datetime"),  # noqa: DTZ001
            (datetime(1890, 1, 1, tzinfo=BERLIN), "not whole minutes"),
            (time(1, tzinfo=timezone(timedelta(seconds=5))), "not whole minutes"),
            (time(1, tzinfo=BERLIN), "depends on the date"),
            (object(), "has no JSON form"),
            (Item, "has no JSON form"),
            (1j, "has no JSON form"),
            (iter([1]), "has no JSON form"),
            (Row(1), "array_like"),
            (Half(), "'whole' is not set"),
            (10**4299, "more than 4299 digits"),
            ({UUID(int=1), str(UUID(int=1))}, "one JSON form"),
        ],
        ids=lambda part: (
            part if isinstance(part, str) and part.isprintable() else type(part).__name__
        ),
    )
    def test_a_value_without_a_form_is_refused_with_its_path(
        self, bad: object, reason: str
    ) -> None:
        fine = {"name": "fine"}

        error = refused({"items": [fine, fine, fine, {"name": bad}]})

        assert error.path == "payload.items[3].name"
        assert str(error).startswith("payload.items[3].name cannot be encoded, found ")
        assert reason in error.message

    def test_the_path_goes_through_dataclasses_and_sets(self) -> None:
        inside_class = refused([Order([Item("ok"), Item("no\0")])])
        inside_set = refused({"tags": {"no\0"}})

        assert inside_class.path == "payload[0].items[1].name"
        assert inside_set.path == "payload.tags[*]"

    @pytest.mark.parametrize(
        ("key", "path"),
        [
            ("no\0", "payload.by['no\\x00']"),
            ("\udfff", "payload.by['\\udfff']"),
            (None, "payload.by.None"),
            (True, "payload.by.True"),
            (math.nan, "payload.by.nan"),
            ((1, 2), "payload.by['(1, 2)']"),
        ],
    )
    def test_a_key_without_a_form_is_refused_with_its_path(self, key: object, path: str) -> None:
        assert path == refused({"by": {key: 1}}).path

    @pytest.mark.parametrize(
        "pair",
        [(1, "1"), (UUID(int=1), str(UUID(int=1))), (Color.RED, "red"), (Decimal("1.50"), "1.50")],
    )
    def test_keys_that_become_one_are_refused(self, pair: tuple[object, object]) -> None:
        error = refused({pair[0]: "a", pair[1]: "b"})

        assert "two keys that both become" in error.message

    def test_a_value_that_contains_itself_is_refused_where_it_closes(self) -> None:
        loop: dict[str, Any] = {"items": [1]}
        loop["items"].append(loop)

        error = refused(loop)

        assert error.path == "payload.items[1]"
        assert "contains itself" in error.message

    def test_the_depth_is_bounded(self) -> None:
        deepest = encode_payload(nested(limits.PAYLOAD_MAX_DEPTH))
        error = refused(nested(limits.PAYLOAD_MAX_DEPTH + 1))

        assert deepest[: limits.PAYLOAD_MAX_DEPTH] == "[" * limits.PAYLOAD_MAX_DEPTH
        assert error.path == "payload" + "[0]" * limits.PAYLOAD_MAX_DEPTH

    def test_the_largest_integer_encodes_whatever_the_default_limit_of_digits(self) -> None:
        largest = -(10**4299) + 1

        assert largest == int(encode_payload(largest))

    def test_a_lowered_limit_of_digits_is_a_payload_error(self) -> None:
        with int_digits_limited_to(640):
            error = refused([10**1000])

        assert error.path == "payload[0]"
        assert "limit of digits" in error.message

    def test_the_value_is_shown_shortened_and_printable(self) -> None:
        error = refused("\0" + "\ud800" * 1000)

        assert len(error.value) <= 80
        assert error.message.isprintable()

    def test_a_value_whose_repr_fails_is_still_named(self) -> None:
        class Broken:
            def __repr__(self) -> str:
                raise RecursionError

        assert "Broken" in refused([Broken()]).value

    def test_an_integer_too_long_to_show_is_still_named(self) -> None:
        assert refused(10**5000).value.startswith("<int ")

    def test_a_refusal_says_what_to_do_next(self) -> None:
        message = refused({"at": datetime(2024, 1, 1)}).message  # noqa: DTZ001

        assert message.endswith("; give it a zone, as in datetime.now(UTC)")


class TestSize:
    def test_the_limit_counts_utf8_bytes(self) -> None:
        assert encode_payload("ééé", max_bytes=8) == '"ééé"'
        with pytest.raises(PayloadTooLargeError) as caught:
            encode_payload("ééé", max_bytes=7)

        assert (caught.value.size, caught.value.limit) == (8, 7)
        assert caught.value.path == "payload"

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "abc",
            7,
            8,
            15,
            16,
            10**30,
            -0.0,
            None,
            True,
            [],
            {},
            [[]],
            [1, 2],
            {"a": [1], "b": {}},
            {1: 2},
            {1, 2},
            b"",
            b"abcd",
            Decimal(1),
            date(2024, 1, 1),
            Item("x"),
            [64, 128, 255, 999],
        ],
        ids=repr,
    )
    def test_a_value_of_exactly_the_limit_is_accepted(self, value: object) -> None:
        text = encode_payload(value)
        size = len(text.encode())

        assert text == encode_payload(value, max_bytes=size)
        with pytest.raises(PayloadTooLargeError):
            encode_payload(value, max_bytes=size - 1)

    def test_shared_parts_that_would_explode_are_refused_early(self) -> None:
        value: list[Any] = ["x"]
        for _ in range(60):
            value = [value, value]

        with pytest.raises(PayloadTooLargeError, match="at least"):
            encode_payload(value)

    def test_the_default_limit_is_the_documented_one(self) -> None:
        text = encode_payload("x" * (limits.PAYLOAD_MAX_BYTES - 2))

        assert len(text) == limits.PAYLOAD_MAX_BYTES
        with pytest.raises(PayloadTooLargeError):
            encode_payload("x" * (limits.PAYLOAD_MAX_BYTES - 1))
