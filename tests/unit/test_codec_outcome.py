from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from threadmill_sa.codec import (
    EncodedResult,
    encode_payload,
    encode_result,
    failure_text,
    recordable_text,
)
from threadmill_sa.model import limits


class HostileError(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RecursionError

    __repr__ = __str__


class WordlessError(Exception):
    def __str__(self) -> str:
        return cast("str", self.args)


class OpaqueError(Exception):
    """An exception that answers no attribute at all."""

    def __getattribute__(self, name: str) -> Any:
        raise MemoryError(name)


class Grumpy:
    def __repr__(self) -> str:
        raise RecursionError


class RaisingDict(dict[str, int]):
    def items(self) -> Any:
        message = "no items today"
        raise RuntimeError(message)


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301  The traceback must name this function.
    except BaseException as caught:  # noqa: BLE001
        return caught


def raised_at_depth(depth: int) -> BaseException:
    def dive(left: int) -> None:
        if left == 0:
            message = "bottom"
            raise ValueError(message)
        dive(left - 1)

    try:
        dive(depth)
    except ValueError as caught:
        return caught
    raise AssertionError


class TestResults:
    def test_a_result_is_stored_as_its_json(self) -> None:
        result = encode_result({"at": datetime(2024, 1, 1, tzinfo=UTC)})

        assert EncodedResult('{"at":"2024-01-01T00:00:00+00:00"}', None) == result

    def test_no_result_stores_nothing(self) -> None:
        assert EncodedResult(None, None) == encode_result(None)

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ({"mean": math.nan}, "result.mean cannot be encoded"),
            ("a\0b", "NUL"),
            (Grumpy(), "found <Grumpy"),
            (RaisingDict(a=1), "RuntimeError: no items today"),
            ("x" * limits.RESULT_MAX_BYTES, "over the limit of 65536"),
            ([[[]]] * 100_000, "over the limit"),
        ],
        ids=["nan", "nul", "repr raises", "items raise", "long", "many"],
    )
    def test_a_result_that_cannot_be_stored_is_dropped_with_a_note(
        self, value: object, reason: str
    ) -> None:
        result = encode_result(value)

        assert result.text is None
        assert result.note is not None
        assert result.note.startswith("result dropped: ")
        assert reason in result.note

    def test_a_note_is_recordable_itself(self) -> None:
        class Loud(dict[str, int]):
            def items(self) -> Any:
                raise RuntimeError("\0\ud800" * 10_000)

        note = encode_result(Loud(a=1)).note

        assert note is not None
        assert "\0" not in note
        assert len(note.encode("utf-8")) <= 1000

    def test_an_interrupt_is_not_swallowed(self) -> None:
        class Stop(dict[str, int]):
            def items(self) -> Any:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode_result(Stop(a=1))


class TestFailures:
    def test_the_type_and_message_come_first_then_the_frames(self) -> None:
        lines = failure_text(raised(ValueError("boom"))).splitlines()

        assert lines[0] == "ValueError: boom"
        assert lines[1].startswith('  File "')
        assert lines[1].endswith("in raised")

    def test_an_error_without_message_is_its_type(self) -> None:
        assert failure_text(KeyError()) == "KeyError"

    def test_only_the_innermost_frames_are_kept(self) -> None:
        text = failure_text(raised_at_depth(200))

        assert "[Previous line repeated 16 more times]" in text
        assert "in raised_at_depth" not in text
        assert "raise ValueError(message)" in text

    @pytest.mark.parametrize(
        ("error", "part"),
        [
            (HostileError(), "HostileError: <no message, its __str__ raised RecursionError>"),
            (WordlessError(), "WordlessError: <no message, its __str__ raised TypeError>"),
            (OpaqueError(), "OpaqueError: "),
            (ValueError("a\0b\ud800c"), "ValueError: a\\x00b\\ud800c"),
            (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: "),
            (SystemExit(3), "SystemExit: 3"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
            (ValueError(Grumpy()), "ValueError: <no message"),
        ],
        ids=lambda part: type(part).__name__,
    )
    def test_every_error_is_recordable(self, error: BaseException, part: str) -> None:
        text = failure_text(raised(error))

        assert part in text
        assert "\0" not in text
        assert text == text.encode("utf-8").decode("utf-8")
        assert encode_payload(text)

    def test_a_huge_message_keeps_the_frames_and_the_bound(self) -> None:
        text = failure_text(raised(ValueError("é" * 1_000_000)))

        assert len(text.encode("utf-8")) <= limits.FAILURE_MESSAGE_MAX_BYTES
        assert "in raised" in text
        assert "[cut, 2000012 bytes in all]" in text

    def test_the_cause_is_told(self) -> None:
        error = ValueError("outer")
        error.__cause__ = raised(KeyError("inner"))

        assert "after: KeyError: 'inner'" in failure_text(raised(error))

    def test_a_suppressed_context_is_not_told(self) -> None:
        error = ValueError("outer")
        error.__context__ = KeyError("inner")
        told = failure_text(error)
        error.__suppress_context__ = True

        assert "after: KeyError" in told
        assert "inner" not in failure_text(error)

    def test_a_circle_of_causes_ends(self) -> None:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first

        assert failure_text(first) == "ValueError: first\nafter: ValueError: second"

    def test_the_members_of_a_group_are_told(self) -> None:
        group = ExceptionGroup("two tasks", [KeyError("a"), OSError("b")])

        text = failure_text(group)

        assert "in the group: KeyError: 'a'" in text
        assert "in the group: OSError: b" in text


class TestRecordableText:
    @pytest.mark.parametrize("limit", [1, 2, 3, 79, 80, 81, 100, 200])
    @pytest.mark.parametrize("text", ["é" * 500, "😀" * 500, "a\0" * 500, "\ud800" * 500])
    def test_a_long_text_is_cut_between_characters(self, text: str, limit: int) -> None:
        cut = recordable_text(text, max_bytes=limit)

        assert len(cut.encode("utf-8")) <= limit
        assert "\0" not in cut
        assert "\ufffd" not in cut

    def test_a_text_within_the_bound_is_unchanged(self) -> None:
        assert recordable_text("é😀\u2028", max_bytes=9) == "é😀\u2028"
