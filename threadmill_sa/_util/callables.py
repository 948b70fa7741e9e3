"""Functions that users give, and whether their body runs when they are called or later."""

from __future__ import annotations

import functools
import inspect

from threadmill_sa.errors import DeclarationError


def is_async(function: object) -> bool:
    """Return True when a call gives a coroutine, also of a partial or of a callable object."""
    return inspect.iscoroutinefunction(_code_of(function))


def check_body(function: object, what: str, *, instead: str | None = None) -> None:
    """Refuse what cannot be called, and what runs nothing when it is called.

    Args:
        what: what the function is for, to begin the message with.
        instead: the next step for a coroutine function; None accepts one.
    Raises: DeclarationError.
    """
    if not callable(function):
        raise DeclarationError(
            f"{what} cannot be a {type(function).__name__}, found {function!r:.200}: expected a"
            " function"
        )
    code = _code_of(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise DeclarationError(
            f"{what} cannot be a generator, which runs nothing when it is called: remove its"
            " yield, or call what iterates over it"
        )
    if instead is not None and is_async(function):
        raise DeclarationError(f"{what} cannot be a coroutine function: {instead}")


def require_done(result: object, what: str) -> None:
    """Refuse a coroutine that a plain function has returned: nobody would run it.

    Raises: DeclarationError.
    """
    if inspect.iscoroutine(result):
        result.close()
        raise DeclarationError(
            f"{what} has returned a coroutine, whose body has not run: declare it with async def"
            " where that is accepted, or run it to its end"
        )


def _code_of(function: object) -> object:
    while isinstance(function, functools.partial | staticmethod):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    routine = inspect.isroutine(function) or inspect.isclass(function)
    return function if routine else getattr(type(function), "__call__", function)  # noqa: B004
