from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from threadmill_sa.codec import check_annotation, decode_payload, encode_payload
from threadmill_sa.errors import DeclarationError, PayloadError


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Mixed(Enum):
    ONE = 1
    TWO = "two"


class Point(NamedTuple):
    x: int
    y: int = 0


class Address(TypedDict):
    city: str


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal


@dataclass
class Order:
    items: list[Item]
    at: datetime | None = None
    by_id: dict[UUID, Decimal] = field(default_factory=dict)


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Checked:
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            message = "count is negative"
            raise ValueError(message)
        if self.count == 0:
            raise KeyError(self.count)


@dataclass
class WithInitVar:
    x: InitVar[int]


@dataclass
class Lost:
    x: Missing  # type: ignore[name-defined]  # noqa: F821


class Arbitrary:
    pass


@dataclass
class Holder:
    parts: list[Arbitrary]


class TestValues:
    @pytest.mark.parametrize(
        ("value", "annotation"),
        [
            (Order([Item("a", Decimal("1.10"))], datetime(2024, 1, 1, tzinfo=UTC)), Order),
            (Order([], None, {UUID(int=7): Decimal("0.30")}), Order),
            ([Item("a", Decimal(1))], list[Item]),
            (Tree([Tree([])]), Tree),
            ({UUID(int=1): Decimal("2.50")}, dict[UUID, Decimal]),
            ({1: "a", 2**200: "b"}, dict[int, str]),
            ({Color.RED: 1}, dict[Color, int]),
            ({Size.LARGE: 1}, dict[Size, int]),
            ((1, "a"), tuple[int, str]),
            ((1, 2, 3), tuple[int, ...]),
            ({1, 2}, set[int]),
            (frozenset({"a"}), frozenset[str]),
            ({frozenset({1}), frozenset({2})}, set[frozenset[int]]),
            (b"\x00\xff", bytes),
            (Color.RED, Color),
            (Size.LARGE, Size),
            ("a", Literal["a", "b"]),
            (None, Item | None),
            (Item("a", Decimal(1)), Item | None),
            (date(2024, 2, 29), date),
            (time(1, 2, 3, tzinfo=UTC), time),
            (timedelta.min, timedelta),
            (timedelta.max, timedelta),
            (2**200, int),
            (0.1 + 0.2, float),
            (Point(1, 2), Point),
            ({"city": "Ulm"}, Address),
            ({"a": [1, 2.0, None, True]}, Any),
            ({"a": [1]}, object),
            ({"a": [1]}, inspect.Parameter.empty),
            (3, Annotated[int, msgspec.Meta(gt=0)]),
        ],
        ids=repr,
    )
    def test_a_value_comes_back_as_its_annotation_says(
        self, value: object, annotation: object
    ) -> None:
        check_annotation(annotation)

        decoded = decode_payload(encode_payload(value), annotation)

        assert value == decoded
        assert type(value) is type(decoded)

    def test_negative_zero_keeps_its_sign(self) -> None:
        decoded = decode_payload(encode_payload(-0.0), float)

        assert isinstance(decoded, float)
        assert math.copysign(1.0, decoded) == -1.0

    def test_no_annotation_gives_the_json_builtins(self) -> None:
        text = encode_payload((Item("a", Decimal(1)), {1: {2}}))

        assert decode_payload(text, Any) == [{"name": "a", "price": "1"}, {"1": [2]}]

    def test_an_absent_payload_reads_as_null(self) -> None:
        assert decode_payload(None, Item | None) is None
        assert decode_payload(None, Any) is None
        with pytest.raises(PayloadError, match=r"does not fit .*Item: expected `object`"):
            decode_payload(None, Item)

    def test_a_change_by_one_attempt_is_not_seen_by_the_next(self) -> None:
        text = encode_payload(Order([]))
        first = decode_payload(text, Order)
        assert isinstance(first, Order)

        first.items.append(Item("a", Decimal(1)))

        assert Order([]) == decode_payload(text, Order)

    @pytest.mark.parametrize("annotation", [Any, dict[str, Any], dict[str, str]])
    def test_names_of_code_in_the_text_are_inert(self, annotation: object) -> None:
        text = '{"__class__":"os.system","py/object":"subprocess.Popen","__reduce__":"exit"}'

        decoded = decode_payload(text, annotation)

        assert decoded == {
            "__class__": "os.system",
            "py/object": "subprocess.Popen",
            "__reduce__": "exit",
        }


class TestMisfits:
    @pytest.mark.parametrize(
        ("text", "annotation", "path"),
        [
            ('{"items":[{"name":5,"price":"1"}]}', Order, "payload.items[0].name"),
            ('{"items":[{"name":"a"}]}', Order, "payload.items[0]"),
            ('{"items":[],"by_id":{"x":"1"}}', Order, "payload.by_id"),
            ('[{"count":1},{"count":-1}]', list[Checked], "payload[1]"),
            ('[{"count":0}]', list[Checked], "payload"),
            ('"1"', int, "payload"),
            ("1.0", int, "payload"),
            ("true", int, "payload"),
            ('"green"', Color, "payload"),
            ("1" + "0" * 400, float, "payload"),
            ("1" * 5000, int, "payload"),
            ("[" * 100_000, Any, "payload"),
        ],
    )  # fmt: skip
    def test_data_of_another_shape_is_an_error_with_its_path(
        self, text: str, annotation: object, path: str
    ) -> None:
        with pytest.raises(PayloadError) as caught:
            decode_payload(text, annotation)

        assert path == caught.value.path
        assert "does not fit" in caught.value.message

    def test_what_a_class_raises_is_chained(self) -> None:
        with pytest.raises(PayloadError) as caught:
            decode_payload('{"count":0}', Checked)

        assert isinstance(caught.value.__cause__, KeyError)

    @pytest.mark.parametrize("text", ["", "{", "nan", "NaN", "1 2", '"\\ud800"', "'a'"])
    def test_text_that_is_no_json_is_an_error(self, text: str) -> None:
        with pytest.raises(PayloadError, match="payload is no JSON text"):
            decode_payload(text, Any)


class TestAnnotations:
    @pytest.mark.parametrize(
        ("annotation", "reason"),
        [
            (Arbitrary, "Arbitrary"),
            (list[Arbitrary], "Arbitrary"),
            (Holder, "Arbitrary"),
            (Arbitrary | None, "Arbitrary"),
            (dict[str, Arbitrary], "Arbitrary"),
            (complex, "complex"),
            (Iterable[int], "Iterable"),
            (Callable[[], None], "Callable"),
            (Item | Order, "more than one dataclass"),
            (str | UUID, "more than one str-like"),
            (Mixed, "Enums must contain"),
            (WithInitVar, "InitVar"),
            (Lost, "NameError"),
            ("Item", "not supported"),
            (dict[tuple[int, int], str], "cannot be a JSON key"),
            (dict[bool, str], "cannot be a JSON key"),
            (list[dict[int | str, str]], "come back as text"),
            (msgspec.Raw, "no JSON value"),
        ],
    )
    def test_an_annotation_that_cannot_be_decoded_is_refused(
        self, annotation: object, reason: str
    ) -> None:
        with pytest.raises(DeclarationError) as caught:
            check_annotation(annotation)

        assert reason in caught.value.reason
        assert caught.value.annotation in caught.value.message

    @pytest.mark.parametrize(
        "annotation",
        [Any, object, inspect.Parameter.empty, None, Tree | None, Sequence[int] | None,
         Mapping[int, Item] | None, dict[str, object] | None, dict[int | UUID, str] | None,
         list[Any] | None, int | str | None],
    )  # fmt: skip
    def test_an_annotation_that_can_be_decoded_is_accepted(self, annotation: object) -> None:
        check_annotation(annotation)

        assert decode_payload("null", annotation) is None

    def test_an_unhashable_annotation_works(self) -> None:
        annotation = Annotated[int, ["note"]]

        check_annotation(annotation)

        assert decode_payload("5", annotation) == 5
