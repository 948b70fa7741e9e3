"""What a finished attempt leaves behind: always recordable, whatever the handler returned."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from threadmill_sa.codec.encode import encode_value
from threadmill_sa.codec.text import recordable_text, type_name
from threadmill_sa.model import limits

FRAMES_MAX = 20  # innermost frames of each traceback
RELATED_MAX = 5  # causes followed, and members shown of an exception group
NOTE_MAX_BYTES = 1000


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """A handler's result as stored; both None when it returned None.

    text: JSON text, at most `limits.RESULT_MAX_BYTES`.
    note: why a result was dropped; at most 1000 UTF-8 bytes.
    """

    text: str | None
    note: str | None


def encode_result(value: object, *, max_bytes: int = limits.RESULT_MAX_BYTES) -> EncodedResult:
    """The result to store with a success; one that has no JSON form is dropped with a note.

    Never raises but KeyboardInterrupt, whatever the value's own code does: the work is done, and
    its success must not be lost to its result.
    """
    if value is None:
        return EncodedResult(text=None, note=None)
    try:
        text = encode_value(value, root="result", max_bytes=max_bytes)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  Also what a property of the user's raises.
        note = recordable_text(f"result dropped: {_headline(error)}", max_bytes=NOTE_MAX_BYTES)
        return EncodedResult(text=None, note=note)
    return EncodedResult(text=text, note=None)


def failure_text(
    error: BaseException, *, max_bytes: int = limits.FAILURE_MESSAGE_MAX_BYTES
) -> str:
    """`Type: message`, then the innermost frames, the causes and the members of a group.

    Bounds: at most `max_bytes` UTF-8 bytes, no NUL, no lone surrogate. The message takes at most
    half, so the frames survive a huge one. Never raises, whatever the exception's methods do.
    """
    lines: list[str] = []
    try:
        for label, part in _related(error):
            headline = recordable_text(_headline(part), max_bytes=max_bytes // 2)
            lines += [f"{label}{headline}", *_frames(part)]
    except BaseException:  # noqa: BLE001  Any attribute may be the user's; keep what was read.
        lines.append(f"{type(error).__name__}: <not readable further>")
    return recordable_text("\n".join(lines), max_bytes=max_bytes)


def error_message(error: BaseException) -> str:
    """`str(error)`, or what its `__str__` raised. Never raises."""
    try:
        return str(error)
    except BaseException as unreadable:  # noqa: BLE001  __str__ belongs to the user.
        return f"<no message, its __str__ raised {type(unreadable).__name__}>"


def _related(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    yield "", error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions[:RELATED_MAX]:
            yield "in the group: ", member
    known = {id(error)}
    for _ in range(RELATED_MAX):
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in known:
            return
        known.add(id(cause))
        yield "after: ", cause
        error = cause


def _headline(error: BaseException) -> str:
    name, message = type_name(type(error)), error_message(error)
    return f"{name}: {message}" if message else name


def _frames(error: BaseException) -> list[str]:
    try:
        frames = traceback.format_tb(error.__traceback__, limit=-FRAMES_MAX)
    except Exception:  # noqa: BLE001  An unreadable source line must not cost the record.
        return ["  <no traceback>"]
    return [frame.rstrip("\n") for frame in frames]
