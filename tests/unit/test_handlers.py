"""What can be declared as a handler, and how the registry finds it again."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.engine.processing.handlers import (
    Handler,
    HandlerRegistry,
    declare_handler,
)
from threadmill_sa.errors import (
    DeclarationError,
    InvalidNameError,
    InvalidValueError,
    UnknownHandlerError,
)
from threadmill_sa.model.retry import Backoff

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Mail:
    to: str


def nothing() -> None: ...


def context_only(ctx: JobContext) -> None: ...


def payload_only(mail: Mail) -> None: ...


def both(mail: Mail, ctx: JobContext) -> None: ...


def keyword_only(*, ctx: JobContext, mail: Mail) -> None: ...


def bare(value) -> None: ...


def optional(mail: Mail | None = None) -> None: ...


def unresolved_return() -> Decimal: ...  # type: ignore[empty-body]


def unresolved_payload(value: Decimal) -> None: ...


def two_payloads(first: int, second: int) -> None: ...


def two_contexts(first: JobContext, second: JobContext) -> None: ...


def positional(ctx: JobContext, /) -> None: ...


def undecodable(value: Iterator[int]) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


async def coroutine(mail: Mail) -> None: ...


class Invocable:
    def __call__(self) -> None: ...

    def method(self, mail: Mail, ctx: JobContext) -> None: ...


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "context", "payload", "annotation"),
    [
        (nothing, None, None, Any),
        (context_only, "ctx", None, Any),
        (payload_only, None, "mail", Mail),
        (both, "ctx", "mail", Mail),
        (keyword_only, "ctx", "mail", Mail),
        (bare, None, "value", Any),
        (unresolved_return, None, None, Any),
        (decorated(both), "ctx", "mail", Mail),
        (Invocable().method, "ctx", "mail", Mail),
    ],
)
def test_the_parameter_annotated_with_the_context_is_the_context_and_the_other_the_payload(
    function, context, payload, annotation
):
    handler = declare_handler(function, name="h")

    assert (context, payload) == (handler.context_parameter, handler.payload_parameter)
    assert annotation == handler.payload_annotation


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (two_payloads, "['first', 'second']"),
        (two_contexts, "['first', 'second']"),
        (positional, "positional-only parameter 'ctx'"),
        (unresolved_payload, "import the name at run time"),
        (undecodable, "cannot be decoded"),
        (generator, "generator"),
        (async_generator, "generator"),
        (Invocable(), "Invocable"),
        (Invocable, "type"),
        (functools.partial(nothing), "partial"),
        (print, "builtin_function_or_method"),
        (None, "NoneType"),
    ],
)
def test_a_function_that_no_job_can_call_is_refused_when_it_is_declared(function, part):
    with pytest.raises(DeclarationError) as caught:
        declare_handler(function, name="h")

    assert part in str(caught.value)
    assert str(caught.value).endswith("[TM-C01]")


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"timeout": True},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"priority": 2**31},
        {"queue": ""},
        {"queue": "a\x00b"},
    ],
)
def test_an_option_out_of_bounds_is_refused(options):
    with pytest.raises(InvalidValueError):
        declare_handler(nothing, name="h", **options)


def test_a_name_with_a_control_character_is_refused():
    with pytest.raises(InvalidNameError):
        declare_handler(nothing, name="a\nb")


def test_a_backoff_of_another_type_is_refused():
    with pytest.raises(DeclarationError, match="expected Backoff"):
        declare_handler(nothing, name="h", backoff=5)  # type: ignore[arg-type]


def test_the_defaults_of_a_handler_are_the_documented_ones():
    handler = declare_handler(coroutine, name="h")

    assert handler == Handler(
        name="h",
        function=coroutine,
        queue="default",
        priority=0,
        timeout_seconds=None,
        max_attempts=5,
        backoff=Backoff(initial=5, factor=2, maximum=3600, jitter=0.1),
        is_async=True,
        context_parameter=None,
        payload_parameter="mail",
        payload_annotation=Mail,
    )


def test_a_timeout_may_be_a_timedelta():
    assert declare_handler(nothing, name="h", timeout=timedelta(minutes=1)).timeout_seconds == 60


def test_a_payload_parameter_with_a_default_is_optional():
    assert declare_handler(optional, name="h").payload_optional


def test_an_equal_declaration_twice_is_one_handler():
    registry = HandlerRegistry()

    registry.add(declare_handler(nothing, name="h"))
    registry.add(declare_handler(nothing, name="h"))

    assert registry.names() == ("h",)


def test_another_declaration_of_a_known_name_is_refused_and_the_first_stays():
    registry = HandlerRegistry()
    registry.add(declare_handler(nothing, name="h"))

    with pytest.raises(DeclarationError, match=r"'h' is declared twice"):
        registry.add(declare_handler(nothing, name="h", queue="other"))

    assert registry.get("h").queue == "default"


def test_a_handler_is_found_by_its_function_and_by_its_name():
    registry = HandlerRegistry()
    handler = registry.add(declare_handler(nothing, name="h"))

    assert handler is registry.resolve(nothing)
    assert handler is registry.resolve("h")


def test_a_function_with_two_names_must_be_meant_by_name():
    registry = HandlerRegistry()
    registry.add(declare_handler(nothing, name="one"))
    registry.add(declare_handler(nothing, name="two"))

    with pytest.raises(DeclarationError, match="pass the name"):
        registry.resolve(nothing)


@pytest.mark.parametrize("wanted", ["send-mial", bare])
def test_an_unknown_handler_is_refused_by_name(wanted):
    registry = HandlerRegistry()
    registry.add(declare_handler(nothing, name="send-mail"))

    with pytest.raises(UnknownHandlerError, match="not declared in this process"):
        registry.resolve(wanted)


def test_the_refusal_of_an_unknown_name_tells_close_ones():
    registry = HandlerRegistry()
    registry.add(declare_handler(nothing, name="send-mail"))

    with pytest.raises(UnknownHandlerError) as caught:
        registry.get("send-mial")

    assert caught.value.suggestions == ("send-mail",)
