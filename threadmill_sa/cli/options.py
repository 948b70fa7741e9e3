"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from threadmill_sa.cli.target import Target

F = TypeVar("F", bound=Callable[..., Any])

JSON_KEY, TRACEBACK_KEY = "threadmill.json", "threadmill.traceback"


def output_options(command: F) -> F:
    """`--json` and `--traceback`, kept in the context's meta."""
    for name, key, text in (
        ("--traceback", TRACEBACK_KEY, "Show where an error came from."),
        ("--json", JSON_KEY, "Print one JSON value on stdout; all else goes to stderr."),
    ):
        command = click.option(
            name,
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_remember(key),
            help=text,
        )(command)
    return command


def target_options(command: F) -> F:
    """`--app`, `--url` and `--schema`, kept in the context's meta."""
    options = (
        click.option(
            "--app",
            metavar="MODULE:APP",
            envvar="THREADMILL_APP",
            show_envvar=True,
            help="A Threadmill, or a function without arguments that returns one.",
        ),
        click.option(
            "--url",
            metavar="URL",
            envvar="THREADMILL_URL",
            show_envvar=True,
            help="The database, or redis://host/0?prefix=threadmill.",
        ),
        click.option(
            "--schema", metavar="NAME", help="Schema of the tables, with --url on PostgreSQL."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def wants_json(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(JSON_KEY))


def chosen_target(
    ctx: click.Context, app: str | None, url: str | None, schema: str | None
) -> Target:
    """What the options and the environment name; the command line goes before the environment.

    Raises: click.UsageError when it is none, or both by the same way.
    """
    typed = ParameterSource.COMMANDLINE
    app_typed = ctx.get_parameter_source("app") is typed
    url_typed = ctx.get_parameter_source("url") is typed
    if app_typed and url_typed:
        raise click.UsageError("--app and --url exclude each other: the app knows its database")
    if url_typed or not app:
        if not url:
            raise click.UsageError("name a database: --app MODULE:APP or --url URL")
        return Target(app=None, url=url, schema=schema)
    if schema is not None:
        raise click.UsageError("--schema goes with --url: the app knows its schema")
    return Target(app=app, url=None, schema=None)


def _remember(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001
        del parameter
        ctx.meta[key] = value

    return callback
