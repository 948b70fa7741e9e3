"""`threadmill-sa db`: the schema."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from threadmill_sa import migrations
from threadmill_sa.cli.options import chosen_target, output_options, target_options, wants_json
from threadmill_sa.cli.output import emit_fields, emit_json, note, say
from threadmill_sa.errors import ThreadmillError


@click.group("db")
def database() -> None:
    """Create, upgrade and check the tables."""


@database.command()
@target_options
@output_options
@click.pass_context
def upgrade(ctx: click.Context, app: str | None, url: str | None, schema: str | None) -> None:
    """Apply every missing revision, all or none. Safe to run at once from many places."""
    with chosen_target(ctx, app, url, schema).open(creates=True) as tm:
        before = tm.schema.current()
        tm.schema.migrate()
        applied = [each for each in tm.schema.current() if each not in before]
        store = tm.store.describe()
    if wants_json(ctx):
        emit_json({"store": store, "applied": applied, "head": migrations.HEAD})
    elif applied:
        say(f"{store}: applied {', '.join(applied)}")
    else:
        say(f"{store}: already at {migrations.HEAD}")


@database.command()
@target_options
@output_options
@click.pass_context
def validate(ctx: click.Context, app: str | None, url: str | None, schema: str | None) -> None:
    """Check that the schema is exactly this release's; changes nothing."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        tm.schema.validate()
        store = tm.store.describe()
    if wants_json(ctx):
        emit_json({"store": store, "valid": True, "head": migrations.HEAD})
    else:
        say(f"{store}: valid at {migrations.HEAD}")


@database.command()
@target_options
@output_options
@click.option("--clean", is_flag=True, help="Print the SQL for an empty database instead.")
@click.pass_context
def sql(
    ctx: click.Context,
    app: str | None,
    url: str | None,
    schema: str | None,
    clean: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Print the SQL of the missing revisions; executes nothing."""
    with chosen_target(ctx, app, url, schema).open(creates=clean) as tm:
        text = tm.schema.emit_clean_install_sql() if clean else tm.schema.emit_pending_sql()
    if wants_json(ctx):
        emit_json({"sql": text})
    elif text:
        say(text)
    else:
        note(f"nothing is missing: the schema is at {migrations.HEAD}")


@database.command()
@target_options
@output_options
@click.pass_context
def current(ctx: click.Context, app: str | None, url: str | None, schema: str | None) -> None:
    """Show which revisions are applied."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        applied = tm.schema.current()
        store = tm.store.describe()
    if wants_json(ctx):
        emit_json({"store": store, "applied": applied, "head": migrations.HEAD})
        return
    emit_fields({"store": store, "applied": ", ".join(applied) or "none", "head": migrations.HEAD})


@database.command()
@click.argument("role")
@target_options
@output_options
@click.pass_context
def grants(
    ctx: click.Context, role: str, app: str | None, url: str | None, schema: str | None
) -> None:
    """Print the GRANT statements that a producer's ROLE needs; executes nothing."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        text = tm.schema.emit_grants_sql(role)
    if wants_json(ctx):
        emit_json({"role": role, "sql": text})
    else:
        say(text)


@database.command("host-revision")
@click.option("--revision", metavar="ID", help="Id of your new revision; random by default.")
@click.option("--down-revision", metavar="ID", help="Your revision that it follows.")
@click.option("--to", default=migrations.HEAD, show_default=True, help="Our revision to reach.")
@click.option("--since", metavar="ID", help="Our revision that you have already.")
@click.option("--schema", metavar="NAME", help="Schema of the tables (PostgreSQL).")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write this file, or into this directory; never replaces one. Default: print it.",
)
@output_options
@click.pass_context
def host_revision(
    ctx: click.Context,
    /,
    *,
    revision: str | None,
    down_revision: str | None,
    to: str,
    since: str | None,
    schema: str | None,
    output: Path | None,
) -> None:
    """Write a revision for your own Alembic history that brings our tables."""
    name = revision or secrets.token_hex(6)
    text = migrations.host_revision_text(
        revision=name, down_revision=down_revision, to=to, since=since, schema=schema
    )
    path = None if output is None else _write(output, f"{name}_threadmill_{to}.py", text)
    if wants_json(ctx):
        emit_json({"revision": name, "file": None if path is None else str(path), "text": text})
    elif path is None:
        say(text)
    else:
        say(f"wrote {path}")


def _write(output: Path, name: str, text: str) -> Path:
    path = output / name if output.is_dir() else output
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ThreadmillError(
            f"file {str(path)!r} cannot be written ({error.strerror}); name another with --output",
            path=str(path),
        ) from error
    return path
