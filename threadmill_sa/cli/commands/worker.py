"""`threadmill-sa worker`: a node of its own process."""

from __future__ import annotations

import logging
from typing import Any

import click

from threadmill_sa._util.visible import visible_text
from threadmill_sa.cli.draining import run_until_signal
from threadmill_sa.cli.options import output_options, wants_json
from threadmill_sa.cli.output import emit_fields, emit_json_line, note, say
from threadmill_sa.cli.target import load_app
from threadmill_sa.engine.processing.node import ProcessingNode
from threadmill_sa.engine.processing.options import NodeOptions
from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model import limits

_LEVELS = ("debug", "info", "warning", "error")
_EPILOG = """\b
The first SIGTERM or SIGINT stops claiming and lets running jobs end; what has
not ended after the grace is given back, its attempt not spent. A second signal
gives everything back at once, a third ends the process as it is.

\b
Exit codes: 0 drained; 1 could not start (database, schema) or failed; 2 the
command line is wrong; 130 or 143 ended by a second SIGINT or SIGTERM.
"""


@click.command(epilog=_EPILOG)
@click.argument("app", metavar="MODULE:APP", envvar="THREADMILL_APP")
@click.option("--workers", type=int, default=10, show_default=True, help="Jobs run at once.")
@click.option("--queues", metavar="A,B", help="Serve these queues only.  [default: all]")
@click.option("--tick", type=float, default=limits.TICK_SECONDS, show_default=True)
@click.option("--poll", type=float, default=limits.POLL_SECONDS, show_default=True)
@click.option("--heartbeat", type=float, default=limits.HEARTBEAT_SECONDS, show_default=True)
@click.option(
    "--heartbeat-timeout",
    type=float,
    default=limits.HEARTBEAT_TIMEOUT_SECONDS,
    show_default=True,
    help="Jobs of a node that is silent for so many seconds are taken back.",
)
@click.option(
    "--grace",
    type=float,
    default=limits.GRACE_SECONDS,
    show_default=True,
    help="Seconds that running jobs get to end.",
)
@click.option(
    "--no-wakes", is_flag=True, help="Poll only; hold neither a listening connection nor a lease."
)
@click.option("--migrate", is_flag=True, help="Apply missing revisions before the start.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
@output_options
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    app: str,
    *,
    queues: str | None,
    no_wakes: bool,
    migrate: bool,
    log_level: str,
    **cadences: Any,
) -> None:
    """Run jobs and recurring tasks of MODULE:APP until a signal.

    APP is a Threadmill, or a function without arguments that returns one.
    """
    try:
        options = NodeOptions(queues=_split(queues), wakes=not no_wakes, **cadences)
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from error
    as_json = wants_json(ctx)

    def build() -> ProcessingNode:
        threadmill = load_app(app)
        _log_to_stderr(log_level)
        if migrate:
            threadmill.schema.migrate()
        return threadmill.node(
            **{name: getattr(options, name) for name in NodeOptions.__dataclass_fields__}
        )

    ctx.exit(
        run_until_signal(build, announce=lambda node: _announce(node, as_json=as_json), tell=note)
    )


def _announce(node: ProcessingNode, *, as_json: bool) -> None:
    if as_json:
        emit_json_line(node.banner())
        return
    say("threadmill-sa worker")
    emit_fields({f"  {name}": value for name, value in node.banner().items()})


def _split(queues: str | None) -> list[str] | None:
    return None if queues is None else [name.strip() for name in queues.split(",")]


class _VisibleFormatter(logging.Formatter):
    """Messages carry text of handlers and of the store; tracebacks stay as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return visible_text(super().formatMessage(record))


def _log_to_stderr(level: str) -> None:
    """Give the process a log where the application has set up none."""
    handler = logging.StreamHandler()
    handler.setFormatter(_VisibleFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)  # says nothing of use
