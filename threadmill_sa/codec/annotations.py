"""Which annotations of a handler's payload can be decoded, decided when the job is declared."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect as shapes

from threadmill_sa.codec.text import shown, type_name
from threadmill_sa.errors import DeclarationError

DECODERS_MAX = 1024  # annotations of one process with a decoder at hand

_KEYS = (
    shapes.AnyType,
    shapes.BytesType,
    shapes.DateTimeType,
    shapes.DateType,
    shapes.DecimalType,
    shapes.EnumType,
    shapes.FloatType,
    shapes.IntType,
    shapes.LiteralType,
    shapes.StrType,
    shapes.TimeDeltaType,
    shapes.TimeType,
    shapes.UUIDType,
)
_FOREIGN = (shapes.ExtType, shapes.RawType)


def check_annotation(annotation: object) -> None:
    """Accept an annotation that stored payloads can be decoded to.

    Raises: DeclarationError with `annotation` and the part at fault.
    """
    if is_plain(annotation):
        return
    decoder_for(annotation)
    for shape in _shapes(shapes.type_info(annotation)):
        reason = _fault(shape)
        if reason is not None:
            raise _refused(annotation, reason)


def is_plain(annotation: object) -> bool:
    """True when the handler takes the JSON builtins as they are."""
    return annotation is Any or annotation is object or annotation is inspect.Parameter.empty


def decoder_for(annotation: object) -> msgspec.json.Decoder[Any]:
    """The decoder of an annotation, built once per process for hashable ones."""
    try:
        return _cached_decoder(annotation)
    except TypeError:
        # Unhashable, as Annotated[...] with a list in it; a bad annotation raises no TypeError.
        return _build_decoder(annotation)


def annotation_name(annotation: object) -> str:
    """An annotation as its author wrote it, shortened."""
    return type_name(annotation) if type(annotation) is type else shown(annotation)


def _build_decoder(annotation: Any) -> msgspec.json.Decoder[Any]:
    if is_plain(annotation):
        return msgspec.json.Decoder()
    try:
        return msgspec.json.Decoder(annotation)
    except Exception as error:  # Resolving a class's own annotations can raise anything.
        raise _refused(annotation, f"{type(error).__name__}: {error}") from error


_cached_decoder = lru_cache(maxsize=DECODERS_MAX)(_build_decoder)


def _refused(annotation: object, reason: str) -> DeclarationError:
    name = annotation_name(annotation)
    return DeclarationError(
        f"payload annotation {name} cannot be decoded: {reason}; "
        "use a dataclass, builtin types, datetime, UUID, Decimal, Enum or no annotation",
        annotation=name,
        reason=reason,
    )


def _fault(shape: object) -> str | None:
    if isinstance(shape, _FOREIGN):
        return f"{type(shape).__name__} is no JSON value"
    if isinstance(shape, shapes.CustomType) and shape.cls is not object:
        return f"nothing says how to build {type_name(shape.cls)!r} from JSON"
    if isinstance(shape, shapes.DictType):
        return _key_fault(shape.key_type)
    return None


def _key_fault(key: shapes.Type) -> str | None:
    parts = key.types if isinstance(key, shapes.UnionType) else (key,)
    for part in parts:
        if not isinstance(part, _KEYS):
            return f"{type(part).__name__.removesuffix('Type').lower()} cannot be a JSON key"
    texts = [part for part in parts if isinstance(part, shapes.StrType)]
    if texts and len(parts) > 1:
        return "keys of text or another type all come back as text"
    return None


def _shapes(root: object) -> Iterator[object]:
    """Every part of a type description once; recursive dataclasses make it a graph."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        shape = waiting.pop()
        if id(shape) in seen:
            continue
        seen.add(id(shape))
        yield shape
        for name in getattr(shape, "__struct_fields__", ()):
            value = getattr(shape, name)
            parts = value if isinstance(value, tuple) else (value,)
            waiting += [part for part in parts if isinstance(part, shapes.Type | shapes.Field)]
