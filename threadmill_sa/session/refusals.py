"""The refusals of the boundary: what was found, what was expected, what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from threadmill_sa.errors import (
    AfterCommitError,
    InvalidValueError,
    StoreUnavailableError,
    TaskDisabledError,
    UnknownTaskError,
)
from threadmill_sa.model.nudge import EnqueueMode, NudgeVerdict
from threadmill_sa.session.handles import borrowed_connection
from threadmill_sa.spi.commits import commit_is_final

_REGISTER = "declare it with tm.recurring(...) and write it with tm.register()"


def parse_mode(mode: EnqueueMode | str) -> EnqueueMode:
    """Return the mode that `mode` is or names. Raises: InvalidValueError."""
    try:
        return EnqueueMode(mode)
    except ValueError:
        accepted = ", ".join(repr(known.value) for known in EnqueueMode)
        raise InvalidValueError(
            f"mode must be one of {accepted}, found {mode!r:.200}", mode=mode
        ) from None


def check_verdicts(
    verdicts: Mapping[str, NudgeVerdict], explain_unknown: Callable[[Sequence[str]], str] | None
) -> None:
    """Raise one error that lists every name that is not accepted; pass when all are.

    Raises: UnknownTaskError when any name is unknown, else TaskDisabledError. Both carry `task`,
        `tasks` (every bad name), `unknown` and `disabled`.
    """
    unknown = _named(verdicts, NudgeVerdict.UNKNOWN_TASK)
    disabled = _named(verdicts, NudgeVerdict.DISABLED)
    if not unknown and not disabled:
        return
    bad = (*unknown, *disabled)
    facts = {"task": bad[0], "tasks": bad, "unknown": unknown, "disabled": disabled}
    paused = (
        f"disabled and not to be nudged: {_listed(disabled)}; resume with"
        f" tm.set_enabled({disabled[0]!r}, True)"
        if disabled
        else ""
    )
    if not unknown:
        raise TaskDisabledError(f"nudge refused, recurring task {paused}", **facts)
    advice = (explain_unknown(unknown) if explain_unknown else "") or _REGISTER
    message = f"nudge refused, recurring task not registered: {_listed(unknown)}; {advice}"
    raise UnknownTaskError(f"{message}; {paused}" if paused else message, **facts)


def check_can_wait(handle: Session | Connection, *, joins: bool) -> Session:
    """Return the session whose end of transaction will be the end of the story.

    Raises: AfterCommitError for a bare Connection and for a Session on a borrowed one.
    """
    if isinstance(handle, Connection):
        raise AfterCommitError(
            f"nothing tells when a bare Connection's transaction has committed; {_cure(joins)}"
        )
    if borrowed_connection(handle) is not None:
        check_ends_itself(None, joins=joins)
    return handle


def check_ends_itself(carrier: object, *, joins: bool) -> None:
    """Pass when the session takes its connections from an engine.

    `carrier` is what it runs on; anything but an Engine is someone else's to commit.
    Raises: AfterCommitError.
    """
    if isinstance(carrier, Engine) or commit_is_final.on:
        return
    raise AfterCommitError(
        "the session is bound to a Connection, whose outer transaction may be undone after the"
        f" session's commit; {_cure(joins)}; in a test's outer transaction, use"
        " threadmill_sa.testing.treat_commit_as_final()"
    )


def name_the_pool(error: Exception) -> Exception:
    """Return `error`, or one that names the way out when no connection was free."""
    if not isinstance(error, PoolTimeoutError) and not isinstance(
        error.__cause__, PoolTimeoutError
    ):
        return error
    return StoreUnavailableError(
        "no connection of the pool was free for a transaction of its own; nothing was written:"
        " when this thread's session holds the last one, pass that session and join, such as"
        " tm.nudge(name, session, mode='join_transaction'), or let the pool grow"
    )


def _named(verdicts: Mapping[str, NudgeVerdict], verdict: NudgeVerdict) -> tuple[str, ...]:
    return tuple(name for name, found in verdicts.items() if found is verdict)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _cure(joins: bool) -> str:  # noqa: FBT001 - private, one meaning
    if joins:
        return "join it instead: mode='join_transaction'"
    return "commit first, then call without a session"
