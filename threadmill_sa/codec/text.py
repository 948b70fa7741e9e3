"""Text that every store takes, and short forms of values for messages."""

from __future__ import annotations

import reprlib

SHOWN_MAX_CHARS = 80  # of one value in a message
_CUT_ROOM_BYTES = 40  # kept free for the suffix that tells the size

_short = reprlib.Repr()
_short.maxlevel = 3
_short.maxlist = _short.maxtuple = _short.maxset = _short.maxfrozenset = _short.maxdict = 4
_short.maxstring = _short.maxother = _short.maxlong = SHOWN_MAX_CHARS


def recordable_text(text: str, *, max_bytes: int) -> str:
    r"""`text` as valid UTF-8 without NUL, at most `max_bytes` long.

    NUL and lone surrogates appear as their escapes (`\x00`, `\ud800`). A longer text is cut
    between two characters and ends with its full size in bytes.
    """
    # The unbound methods also hold for a subclass of str that overrides them.
    data = str.encode(str.replace(text, "\0", "\\x00"), "utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return data.decode("utf-8")
    if max_bytes < 2 * _CUT_ROOM_BYTES:
        return data[:max_bytes].decode("utf-8", "ignore")
    kept = data[: max_bytes - _CUT_ROOM_BYTES].decode("utf-8", "ignore")
    return f"{kept} … [cut, {len(data)} bytes in all]"


def shown(value: object) -> str:
    """A repr of `value` for a message: at most 80 characters, printable, never raises."""
    try:
        text = _short.repr(value)
    except Exception:  # noqa: BLE001  The repr is the user's; a message must not fail on it.
        text = f"<{type(value).__name__} without a repr>"
    text = recordable_text(text, max_bytes=8 * SHOWN_MAX_CHARS)
    return text if len(text) <= SHOWN_MAX_CHARS else text[: SHOWN_MAX_CHARS - 1] + "…"


def type_name(kind: type) -> str:
    """The importable name of a class, without the module for builtins."""
    module, name = kind.__module__, kind.__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"
