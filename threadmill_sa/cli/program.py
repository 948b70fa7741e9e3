"""The command `threadmill-sa`: its groups, and the one place where errors become exit codes."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import click
from sqlalchemy.exc import SQLAlchemyError

from threadmill_sa._util.visible import visible_text
from threadmill_sa.cli.commands.database import database
from threadmill_sa.cli.commands.demo import demo
from threadmill_sa.cli.commands.jobs import jobs
from threadmill_sa.cli.commands.leases import leases
from threadmill_sa.cli.commands.recurring import recurring
from threadmill_sa.cli.commands.worker import worker
from threadmill_sa.cli.options import JSON_KEY, TRACEBACK_KEY
from threadmill_sa.cli.output import emit_json, note
from threadmill_sa.errors import ThreadmillError

FAILED = 1
INTERRUPTED = 130
_PLAIN: Final = (str, int, float, UUID)
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

_EPILOG = """\b
Exit codes:
  0    done; for worker: drained
  1    the operation failed; the reason is on stderr, with its code
  2    the command line is wrong, or an extra is missing
  130  interrupted (143 for worker: ended by a second SIGTERM)

\b
Environment:
  THREADMILL_APP  MODULE:APP, as --app
  THREADMILL_URL  a database URL, as --url
"""


class Program(click.Group):
    """A group whose commands end with a line and an exit code instead of a traceback."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _visible_refusals():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _visible_refusals():
                return super().invoke(ctx)
        except ThreadmillError as error:
            _fail(ctx, str(error), code=error.code, message=error.message, facts=error.facts)
        except SQLAlchemyError as error:
            _fail(ctx, _database_line(error), code="database", message=_database_line(error))
        except KeyboardInterrupt:
            note("interrupted")
            ctx.exit(INTERRUPTED)


@click.group(cls=Program, epilog=_EPILOG, context_settings={"max_content_width": 99})
@click.version_option(package_name="threadmill-sa")
def program() -> None:
    """Durable jobs, recurring tasks and nudges on your own SQLAlchemy engine."""


program.add_command(demo)
program.add_command(database)
program.add_command(worker)
program.add_command(recurring)
program.add_command(jobs)
program.add_command(leases)


@contextmanager
def _visible_refusals() -> Iterator[None]:
    """Refusals of the command line repeat what was typed, and click prints them as they are."""
    try:
        yield
    except click.ClickException as error:
        told = error.format_message()
        shown = visible_text(told)
        if shown == told:
            raise
        if isinstance(error, click.UsageError):
            raise click.UsageError(shown, error.ctx) from error
        raise click.ClickException(shown) from error


def _fail(
    ctx: click.Context,
    line: str,
    *,
    code: str,
    message: str,
    facts: Mapping[str, object] = _NOTHING,
) -> None:
    """Tell what failed and exit. With --json the one value on stdout says it as well.

    Args:
        facts: of the error; those that are plain values become fields beside code and message.
    """
    if ctx.meta.get(TRACEBACK_KEY):
        note(traceback.format_exc())
    note(f"error: {line}")
    if ctx.meta.get(JSON_KEY):
        plain = {name: value for name, value in facts.items() if isinstance(value, _PLAIN)}
        emit_json({"error": plain | {"code": code, "message": message}})
    ctx.exit(FAILED)


def _database_line(error: SQLAlchemyError) -> str:
    source = getattr(error, "orig", None) or error
    lines = str(source).strip().splitlines() or [type(source).__name__]
    return f"the database refused: {lines[0]} ({type(error).__name__}); --traceback shows where"
