"""Text of others as it may reach a terminal: what would steer it is shown instead."""

from __future__ import annotations

import re
from typing import Final

# Controls (C0 with DEL, C1), and what reorders the text around it.
_STEERING: Final = "\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_IN_A_LINE: Final = re.compile(f"[{_STEERING}]")
_IN_LINES: Final = re.compile(f"(?![\n\t])[{_STEERING}]")
_LATIN_MAX: Final = 0xFF
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def visible_line(text: str) -> str:
    r"""Return `text` as one line: control characters and bidi overrides as `\x1b`, `\u202e`, `\n`.

    For eyes only: a backslash stays one, so the answer cannot be read back.
    """
    return _IN_A_LINE.sub(_shown, text)


def visible_text(text: str) -> str:
    """As `visible_line`, for text of several lines: newlines and tabs stay."""
    return _IN_LINES.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    char = match.group()
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code <= _LATIN_MAX else f"\\u{code:04x}")
