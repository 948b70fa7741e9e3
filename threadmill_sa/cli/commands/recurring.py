"""`threadmill-sa recurring`: what operators do with recurring tasks."""

from __future__ import annotations

import click

from threadmill_sa.cli.options import chosen_target, output_options, target_options, wants_json
from threadmill_sa.cli.output import emit_fields, emit_json, emit_table, note
from threadmill_sa.cli.target import Target
from threadmill_sa.cli.views import (
    LIST_HEADINGS,
    in_zone,
    task_fields,
    task_json,
    task_row,
    utc,
)
from threadmill_sa.model import limits

_NAMES = click.argument("names", metavar="NAME...", nargs=-1, required=True)
_NAME = click.argument("name")


@click.group(epilog="A name that starts with a dash goes behind --, at the end.")
def recurring() -> None:
    """List, nudge, trigger, pause and delete recurring tasks."""


@recurring.command("list")
@target_options
@output_options
@click.pass_context
def list_tasks(ctx: click.Context, app: str | None, url: str | None, schema: str | None) -> None:
    """Show every registered task."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        views = tm.list_recurring()
    if wants_json(ctx):
        emit_json([task_json(view) for view in views])
    elif views:
        emit_table(LIST_HEADINGS, [task_row(view) for view in views])
    else:
        note("no recurring task is registered")


@recurring.command()
@_NAME
@target_options
@output_options
@click.pass_context
def show(
    ctx: click.Context, name: str, app: str | None, url: str | None, schema: str | None
) -> None:
    """Show one task: definition, schedule and pending nudges."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        view = tm.get_recurring(name)
    if wants_json(ctx):
        emit_json(task_json(view))
    else:
        emit_fields(task_fields(view))


@recurring.command()
@_NAME
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, limits.PREVIEW_MAX),
    default=5,
    show_default=True,
    help="How many.",
)
@target_options
@output_options
@click.pass_context
def preview(
    ctx: click.Context,
    /,
    *,
    name: str,
    count: int,
    app: str | None,
    url: str | None,
    schema: str | None,
) -> None:
    """Show the next fire times; of a paused task as if it were enabled now."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        zone = tm.get_recurring(name).zone
        fires = tm.preview(name, count)
    if wants_json(ctx):
        emit_json({"task": name, "zone": zone, "fires": fires})
    else:
        emit_table(("UTC", zone), [[utc(fire), in_zone(fire, zone)] for fire in fires])


@recurring.command()
@_NAMES
@target_options
@output_options
@click.pass_context
def nudge(
    ctx: click.Context,
    names: tuple[str, ...],
    app: str | None,
    url: str | None,
    schema: str | None,
) -> None:
    """Ask for a run as soon as possible. Coalesces, and never overrides a pause."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        receipts = tm.nudge_many(names)
    if wants_json(ctx):
        emit_json([{"task": each.task, "revision": each.revision} for each in receipts])
        return
    for each in receipts:
        click.echo(f"{each.task}: nudged")


@recurring.command()
@_NAME
@target_options
@output_options
@click.pass_context
def trigger(
    ctx: click.Context, name: str, app: str | None, url: str | None, schema: str | None
) -> None:
    """Create an instance at once, whatever the pause and unfinished instances say."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        job_id = tm.trigger(name)
    if wants_json(ctx):
        emit_json({"task": name, "job": job_id})
    else:
        click.echo(f"{name}: job {job_id}")


@recurring.command()
@_NAMES
@target_options
@output_options
@click.pass_context
def enable(
    ctx: click.Context,
    names: tuple[str, ...],
    app: str | None,
    url: str | None,
    schema: str | None,
) -> None:
    """Resume paused tasks; nudges from before are dropped."""
    _flip(ctx, chosen_target(ctx, app, url, schema), names, enabled=True)


@recurring.command()
@_NAMES
@target_options
@output_options
@click.pass_context
def disable(
    ctx: click.Context,
    names: tuple[str, ...],
    app: str | None,
    url: str | None,
    schema: str | None,
) -> None:
    """Pause tasks: no fires and no nudges until they are enabled."""
    _flip(ctx, chosen_target(ctx, app, url, schema), names, enabled=False)


@recurring.command()
@_NAME
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
@output_options
@click.pass_context
def delete(
    ctx: click.Context,
    /,
    *,
    name: str,
    yes: bool,
    app: str | None,
    url: str | None,
    schema: str | None,
) -> None:
    """Remove a task with its schedule and nudges; instances that exist still run.

    Code that still declares it registers it anew when it starts.
    """
    with chosen_target(ctx, app, url, schema).open() as tm:
        tm.get_recurring(name)
        if not yes:
            click.confirm(f"delete recurring task {name!r}?", abort=True, err=True)
        tm.delete_recurring(name)
    if wants_json(ctx):
        emit_json({"task": name, "deleted": True})
    else:
        click.echo(f"{name}: deleted")


def _flip(ctx: click.Context, target: Target, names: tuple[str, ...], *, enabled: bool) -> None:
    distinct = list(dict.fromkeys(names))
    with target.open() as tm:
        for name in distinct:
            tm.get_recurring(name)  # all are known before any is changed
        changed = {name: tm.set_enabled(name, enabled) for name in distinct}
    word = "enabled" if enabled else "disabled"
    if wants_json(ctx):
        emit_json(
            [{"task": name, "enabled": enabled, "changed": flag} for name, flag in changed.items()]
        )
        return
    for name, flag in changed.items():
        click.echo(f"{name}: {word}" if flag else f"{name}: was {word} already")
