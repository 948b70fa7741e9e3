"""Decorators: a function that holds a mutex while it runs, or that only the leader runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from enum import StrEnum
from string import Formatter
from typing import Any, Protocol, TypeVar, cast

from threadmill_sa._util.callables import check_body, is_async, require_done
from threadmill_sa.engine.leadership.choices import parse_choice
from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.engine.leadership.locks import Lock
from threadmill_sa.errors import (
    DeclarationError,
    MutexBusyError,
    NotLeaderError,
)

F = TypeVar("F", bound=Callable[..., Any])


class OnBusy(StrEnum):
    """What a locked function does while somebody else holds its mutex."""

    RAISE = "raise"  # MutexBusyError, after one attempt
    SKIP = "skip"  # return None, after one attempt
    WAIT = "wait"  # until it is free


class Otherwise(StrEnum):
    """What a leader-only function does in a process that does not lead."""

    RAISE = "raise"  # NotLeaderError
    SKIP = "skip"  # return None


class Leads(Protocol):
    """A `Leader` or an `AsyncLeader`."""

    @property
    def name(self) -> str: ...

    @property
    def grant(self) -> Grant | None: ...


def locked(
    make: Callable[[str, OnBusy], Lock], template: str, on_busy: OnBusy | str
) -> Callable[[F], F]:
    """Return a decorator that holds a mutex around each call, of a sync or async function.

    Args:
        make: returns the lock for a name, with the timeout that the choice asks for.
        template: the name, which may hold parameters of the function: "report:{tenant}".
    Raises: InvalidValueError; the decorator raises DeclarationError, for a generator too, which
        would hold nothing while it is iterated over.
    """
    choice = parse_choice(OnBusy, on_busy, what="on_busy")

    def decorate(function: F) -> F:
        check_body(function, "a locked function")
        lock_for = _lock_maker(function, lambda name: make(name, choice), template)

        if is_async(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                async with AsyncExitStack() as stack:
                    try:
                        await stack.enter_async_context(lock_for(args, kwargs))
                    except MutexBusyError:
                        if choice is OnBusy.SKIP:
                            return None
                        raise
                    return await function(*args, **kwargs)

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                try:
                    stack.enter_context(lock_for(args, kwargs))
                except MutexBusyError:
                    if choice is OnBusy.SKIP:
                        return None
                    raise
                result = function(*args, **kwargs)
                require_done(result, "a locked function")
                return result

        return cast("F", call)

    return decorate


def leader_only(
    leader: Leads, *, otherwise: Otherwise | str = Otherwise.RAISE
) -> Callable[[F], F]:
    """Return a decorator that calls a function, sync or async, only while `leader` leads.

    The answer is that of the moment of the call, without I/O; the function may go on after the
    term has ended, so what it writes needs `leader.grant.fence(session)` all the same.

    Args:
        otherwise: "raise" NotLeaderError, or "skip" and return None.
    Raises: InvalidValueError; the decorator raises DeclarationError, as for a generator.
    """
    choice = parse_choice(Otherwise, otherwise, what="otherwise")

    def leads() -> bool:
        if leader.grant is not None:
            return True
        if choice is Otherwise.SKIP:
            return False
        raise NotLeaderError(
            f"this process does not lead {leader.name!r}: call it in the one that does, or use"
            " otherwise='skip'",
            name=leader.name,
        )

    def decorate(function: F) -> F:
        check_body(function, "a function for the leader only")
        if is_async(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return await function(*args, **kwargs) if leads() else None

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not leads():
                return None
            result = function(*args, **kwargs)
            require_done(result, "a function for the leader only")
            return result

        return cast("F", call)

    return decorate


def _lock_maker(
    function: Callable[..., Any], make: Callable[[str], Lock], template: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], Lock]:
    shown = getattr(function, "__qualname__", function)
    try:
        signature = inspect.signature(function)
        for name in _names_in(template):
            signature.parameters[name]
    except (KeyError, ValueError) as error:
        raise DeclarationError(
            f"mutex name {template!r} cannot be made from the parameters of {shown}: name one of"
            " them in braces"
        ) from error

    def lock_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return make(template.format(**bound.arguments))

    return lock_for


def _names_in(template: str) -> list[str]:
    """The parameters of "{tenant}", "{day.year}" or "{shard:03d}". Raises: ValueError."""
    fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    return [field.replace("[", ".").partition(".")[0] for field in fields]
