"""A payload to JSON text: strict, exact, and refused with the path of the value at fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from itertools import pairwise
from typing import Any, NoReturn

import msgspec

from threadmill_sa.codec.scalars import RefusedError, Scalar, key_text, scalar_form
from threadmill_sa.codec.text import shown, type_name
from threadmill_sa.errors import PayloadError, PayloadTooLargeError
from threadmill_sa.model import limits

Plain = Scalar | list[Any] | dict[str, Any]

_IDENTIFIER_MAX_CHARS = 64  # longer keys are shown quoted and shortened
_ANY_ELEMENT = None  # path segment of a set's element, which has no place


class _TooLargeError(Exception):
    """The walk has met more bytes than the limit allows."""


def encode_payload(value: object, *, max_bytes: int = limits.PAYLOAD_MAX_BYTES) -> str:
    """The JSON text of `value`, the same for equal values in equal order.

    Bounds: at most `max_bytes` UTF-8 bytes and `limits.PAYLOAD_MAX_DEPTH` nested containers.
    Dicts keep their order; sets are sorted by the text of their elements.
    Raises: PayloadError with `path` and `value`; PayloadTooLargeError with `size` and `limit`.
    Source: decision 0003.
    """
    return encode_value(value, root="payload", max_bytes=max_bytes)


def encode_value(value: object, *, root: str, max_bytes: int) -> str:
    """As `encode_payload`, with `root` as the first word of every path."""
    walk = _Walk(max_bytes)
    try:
        plain = walk.plain(value)
    except RefusedError as refusal:
        path = root + "".join(_segment(part) for part in walk.path)
        text = shown(refusal.value)
        raise PayloadError(
            f"{path} cannot be encoded, found {text}: {refusal.reason}; {refusal.next_step}",
            path=path,
            value=text,
        ) from None
    except _TooLargeError:
        _refuse_size(root, max_bytes - walk.room, max_bytes, at_least="at least ")
    data = msgspec.json.encode(plain)
    if len(data) > max_bytes:
        _refuse_size(root, len(data), max_bytes, at_least="")
    return data.decode("utf-8")


def _refuse_size(root: str, size: int, limit: int, *, at_least: str) -> NoReturn:
    raise PayloadTooLargeError(
        f"{root} is {at_least}{size} bytes of JSON, over the limit of {limit}; "
        "store the data elsewhere and pass its key",
        path=root,
        size=size,
        limit=limit,
    ) from None


def _segment(part: str | int | None) -> str:
    if part is _ANY_ELEMENT:
        return "[*]"
    if isinstance(part, str):
        named = part.isidentifier() and len(part) <= _IDENTIFIER_MAX_CHARS
        return f".{part}" if named else f"[{shown(part)}]"
    return f"[{part}]"


class _Walk:
    """One pass over a value. On an exception `path` still names the place it came from."""

    __slots__ = ("active", "path", "room")

    def __init__(self, max_bytes: int) -> None:
        self.path: list[str | int | None] = []
        self.active: set[int] = set()  # ids of the containers around the current value
        self.room = max_bytes  # bytes left by a lower bound, so that shared parts cannot explode

    def plain(self, value: object) -> Plain:
        if isinstance(value, Enum):
            return self.plain(value.value)
        if isinstance(value, str | bytes | bytearray):
            self._take(len(value) + 2)
        form = scalar_form(type(value))
        if form is not None:
            scalar = form(value)
            if not isinstance(value, str | bytes | bytearray):
                self._take(_least_bytes(scalar))
            return scalar
        return self._container(value)

    def _container(self, value: object) -> Plain:
        if id(value) in self.active:
            raise RefusedError(value, "a value that contains itself", "pass a tree or ids")
        if len(self.active) >= limits.PAYLOAD_MAX_DEPTH:
            raise RefusedError(
                value,
                f"more than {limits.PAYLOAD_MAX_DEPTH} nested containers",
                "flatten it or pass text",
            )
        self.active.add(id(value))
        self._take(1)  # a container of n > 0 items has n + 1 brackets and commas
        plain = self._contents(value)
        self.active.discard(id(value))
        return plain

    def _contents(self, value: object) -> Plain:
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list | tuple):
            return [self._at(index, item) for index, item in enumerate(value)]
        if isinstance(value, set | frozenset):
            return self._set(value)
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return self._fields(value, zip(names, names, strict=True))
        raise RefusedError(
            value,
            f"type {type_name(type(value))!r} has no JSON form",
            "pass a dataclass, builtin types, datetime, UUID, Decimal, Enum or bytes",
        )

    def _at(self, part: str | int | None, value: object) -> Plain:
        self.path.append(part)
        self._take(1)
        plain = self.plain(value)
        self.path.pop()
        return plain

    def _dict(self, value: dict[Any, Any]) -> Plain:
        plain: dict[str, Any] = {}
        for key, item in value.items():
            self.path.append(key if type(key) is str else shown(key))
            if isinstance(key, str | bytes | bytearray):
                self._take(len(key))
            text = key_text(key)
            if text in plain:
                raise RefusedError(
                    key, f"two keys that both become {shown(text)}", "keep one of them"
                )
            self.path.pop()
            plain[text] = self._at(text, item)
        return plain

    def _set(self, value: Iterable[object]) -> Plain:
        pairs = [(msgspec.json.encode(p), p) for p in (self._at(_ANY_ELEMENT, v) for v in value)]
        pairs.sort(key=lambda pair: pair[0])
        for (text, _), (following, _) in pairwise(pairs):
            if text == following:
                raise RefusedError(value, "two elements with one JSON form", "keep one of them")
        return [plain for _, plain in pairs]

    def _struct(self, value: msgspec.Struct) -> Plain:
        config = value.__struct_config__
        if config.array_like:
            raise RefusedError(value, "a Struct with array_like", "declare it without array_like")
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        tag = {} if config.tag_field is None else {config.tag_field: config.tag}
        return tag | self._fields(value, names)

    def _fields(self, value: object, names: Iterable[tuple[str, str]]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for text, name in names:
            try:
                item = getattr(value, name)
            except AttributeError:
                raise RefusedError(
                    value, f"its field {name!r} is not set", "set it first"
                ) from None
            plain[text] = self._at(text, item)
        return plain

    def _take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _TooLargeError


def _least_bytes(scalar: Scalar) -> int:
    # A digit holds less than four bits, so this never exceeds the encoded length.
    if isinstance(scalar, int):
        return max(1, scalar.bit_length() // 4)
    return len(scalar) + 2 if isinstance(scalar, str) else 1
