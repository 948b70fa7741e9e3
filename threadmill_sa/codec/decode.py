"""Stored JSON text to the value that a handler's annotation asks for."""

from __future__ import annotations

import re

import msgspec

from threadmill_sa.codec.annotations import annotation_name, decoder_for
from threadmill_sa.codec.text import recordable_text, shown
from threadmill_sa.errors import PayloadError

_PLACE = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`\Z")
_REASON_MAX_BYTES = 500


def decode_payload(text: str | None, annotation: object) -> object:
    """A fresh value of type `annotation`, built from nothing but its own classes.

    Args:
        text: what `encode_payload` wrote; None reads as JSON null.
        annotation: Any, object or an absent annotation gives the JSON builtins.
    Raises: PayloadError with `path` when the data does not fit; DeclarationError when nothing
        could fit (see `check_annotation`).
    """
    decoder = decoder_for(annotation)
    try:
        value: object = decoder.decode("null" if text is None else text)
    except msgspec.ValidationError as error:
        raise _misfit(annotation, str(error)) from error
    except msgspec.DecodeError as error:
        raise PayloadError(
            f"payload is no JSON text, found {shown(text)}: {_lower(str(error))}; "
            "the row was written by other code, delete the job or repair it",
            path="payload",
            value=shown(text),
        ) from error
    except Exception as error:
        # A class's own __post_init__ can raise anything; the failure must name the payload.
        raise _misfit(annotation, f"{type(error).__name__} raised by its class") from error
    return value


def _misfit(annotation: object, message: str) -> PayloadError:
    place = _PLACE.search(message)
    path = "payload" + (place["path"] if place else "")
    reason = message[: place.start()] if place else message
    key = " (a key)" if place and place["key"] else ""
    reason = recordable_text(_lower(reason), max_bytes=_REASON_MAX_BYTES)
    return PayloadError(
        f"{path}{key} does not fit {annotation_name(annotation)}: {reason}; "
        "enqueue data of that shape or widen the handler's annotation",
        path=path,
        annotation=annotation_name(annotation),
        reason=reason,
    )


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
