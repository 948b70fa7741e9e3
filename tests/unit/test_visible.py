"""Text of others as a terminal gets it."""

from __future__ import annotations

import pytest

from threadmill_sa._util.visible import visible_line, visible_text

STEERING = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
]


@pytest.mark.parametrize("char", STEERING, ids=ascii)
def test_what_steers_a_terminal_is_shown_instead(char: str) -> None:
    escape = char.encode("unicode_escape").decode()

    assert visible_line(f"a{char}b") == f"a{escape}b"
    assert visible_text(f"a{char}b") == (f"a{char}b" if char in "\n\t" else f"a{escape}b")


def test_all_other_text_stays_as_it_is() -> None:
    text = "".join(map(chr, set(range(0x3000)) - set(map(ord, STEERING)))) + "\N{PARTY POPPER}"

    assert visible_line(text) == text
    assert visible_text(text) == text
