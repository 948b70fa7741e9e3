"""Handlers: the code that runs jobs, checked when it is declared."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from threadmill_sa.codec import check_annotation
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.errors import DeclarationError, UnknownHandlerError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_integer, check_name, check_seconds
from threadmill_sa.model.retry import DEFAULT_BACKOFF, Backoff

HandlerFunction = Callable[..., Any]

_TIMEOUT_MIN_SECONDS = 1e-3
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Handler:
    """One declared handler: the function, how it is called and the defaults of its jobs."""

    name: str
    function: HandlerFunction
    queue: str
    priority: int
    timeout_seconds: float | None
    max_attempts: int
    backoff: Backoff
    is_async: bool
    context_parameter: str | None
    payload_parameter: str | None
    payload_annotation: Any = Any
    payload_optional: bool = False  # its default serves a job without a payload


def declare_handler(
    function: HandlerFunction,
    *,
    name: str,
    queue: str = "default",
    priority: int = 0,
    timeout: float | timedelta | None = None,
    max_attempts: int = 5,
    backoff: Backoff = DEFAULT_BACKOFF,
) -> Handler:
    """The handler that runs `function` for jobs named `name`.

    Bounds: `timeout` of one attempt 0.001 s .. 100 years, None is no limit; `max_attempts`
    1..limits.MAX_ATTEMPTS_MAX, the first included.
    Raises: DeclarationError for a function that no job can call; InvalidValueError for the rest.
    """
    check_name(name, kind="handler")
    _check_function(function, name)
    if not isinstance(backoff, Backoff):
        raise DeclarationError(
            f"handler {name!r} has a backoff of type {type(backoff).__name__}: expected Backoff",
            handler=name,
        )
    context, payload = _parameters(function, name)
    annotation: Any = Any if payload is None else payload.annotation
    if payload is not None:
        check_annotation(annotation)
    return Handler(
        name=name,
        function=function,
        queue=check_name(queue, kind="queue"),
        priority=check_integer(
            priority, what="priority", minimum=limits.PRIORITY_MIN, maximum=limits.PRIORITY_MAX
        ),
        timeout_seconds=None
        if timeout is None
        else check_seconds(
            timeout,
            what="timeout",
            minimum=_TIMEOUT_MIN_SECONDS,
            maximum=limits.JOB_TIMEOUT_MAX_SECONDS,
        ),
        max_attempts=check_integer(
            max_attempts, what="max_attempts", minimum=1, maximum=limits.MAX_ATTEMPTS_MAX
        ),
        backoff=backoff,
        is_async=inspect.iscoroutinefunction(function),
        context_parameter=None if context is None else context.name,
        payload_parameter=None if payload is None else payload.name,
        payload_annotation=annotation,
        payload_optional=payload is not None and payload.default is not inspect.Parameter.empty,
    )


class HandlerRegistry:
    """The handlers of one application, by name. Only grows."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> Handler:
        """Keep `handler`. Raises: DeclarationError when another one has its name."""
        known = self._handlers.setdefault(handler.name, handler)
        if known != handler:
            raise DeclarationError(
                f"handler {handler.name!r} is declared twice: found {_where(handler.function)}, "
                f"declared before by {_where(known.function)}; give one another name",
                handler=handler.name,
            )
        return known

    def find(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def get(self, name: str) -> Handler:
        """The handler of that name. Raises: UnknownHandlerError with `suggestions`."""
        handler = self._handlers.get(name)
        if handler is None:
            raise _unknown(repr(name), name, list(self._handlers))
        return handler

    def names(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    def resolve(self, function_or_name: HandlerFunction | str) -> Handler:
        """The handler meant by its function or its name.

        Raises: UnknownHandlerError; DeclarationError for a function with several names.
        """
        if isinstance(function_or_name, str):
            return self.get(function_or_name)
        found = [
            handler
            for handler in self._handlers.copy().values()
            if handler.function == function_or_name
        ]
        if len(found) > 1:
            raise DeclarationError(
                f"{_where(function_or_name)} is declared as {[each.name for each in found]!r}: "
                "pass the name instead of the function",
                handlers=[each.name for each in found],
            )
        if not found:
            close_to = str(getattr(function_or_name, "__name__", "")).replace("_", "-")
            raise _unknown(_where(function_or_name), close_to, list(self._handlers))
        return found[0]


def _unknown(shown: str, text: str, known: list[str]) -> UnknownHandlerError:
    close = difflib.get_close_matches(text[: limits.NAME_MAX_CHARS], known, n=3)
    hint = f"; did you mean {' or '.join(map(repr, close))}" if close else ""
    return UnknownHandlerError(
        f"handler {shown:.300} is not declared in this process: declare it with tm.job{hint}",
        handler=text,
        suggestions=tuple(close),
    )


def _check_function(function: object, name: str) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise DeclarationError(
            f"handler {name!r} is a {type(function).__name__}: expected a function, "
            "a coroutine function or a bound method",
            handler=name,
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"handler {name!r} is a generator, which runs nothing when called: "
            "remove its yield or wrap the generator in a function",
            handler=name,
        )


def _parameters(
    function: HandlerFunction, name: str
) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
    """The context and the payload parameter, each with its annotation evaluated."""
    signature = inspect.signature(function)
    hints = _hints(function, signature, name)
    contexts: list[inspect.Parameter] = []
    payloads: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIABLE:
            continue
        if parameter.kind not in _NAMED:
            raise DeclarationError(
                f"handler {name!r} has the positional-only parameter {parameter.name!r}: "
                "payload and context are passed by name",
                handler=name,
            )
        evaluated = parameter.replace(annotation=hints.get(parameter.name, Any))
        (contexts if evaluated.annotation is JobContext else payloads).append(evaluated)
    if len(contexts) > 1 or len(payloads) > 1:
        raise DeclarationError(
            f"handler {name!r} takes {[each.name for each in contexts + payloads]!r}: expected at "
            "most one payload and one parameter annotated JobContext; put the values in a "
            "dataclass",
            handler=name,
        )
    return next(iter(contexts), None), next(iter(payloads), None)


def _hints(function: HandlerFunction, signature: inspect.Signature, name: str) -> dict[str, Any]:
    # The return annotation is left out: nobody decodes to it, so it need not resolve.
    annotations = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if parameter.annotation is not inspect.Parameter.empty
    }
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__=annotations), names, include_extras=True
        )
    except Exception as error:
        # Evaluating a string annotation runs whatever it says.
        raise DeclarationError(
            f"handler {name!r} has an annotation that cannot be evaluated: "
            f"{type(error).__name__}: {error}; import the name at run time, in its module",
            handler=name,
        ) from error


def _where(function: object) -> str:
    qualified = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{qualified}"
