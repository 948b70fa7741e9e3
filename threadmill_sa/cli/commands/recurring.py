"""`threadmill-sa recurring`: what operators do with recurring tasks."""

from __future__ import annotations

import click

from threadmill_sa.app import Threadmill
from threadmill_sa.cli.options import chosen_target, output_options, target_options, wants_json
from threadmill_sa.cli.output import emit_fields, emit_json, emit_table, note, say
from threadmill_sa.cli.target import Target
from threadmill_sa.cli.views import (
    LIST_HEADINGS,
    Hold,
    in_zone,
    task_fields,
    task_json,
    task_row,
    utc,
)
from threadmill_sa.clock import SystemClock
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import limits
from threadmill_sa.model.job import Job, JobId
from threadmill_sa.model.recurring import CronTaskView

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
    """Show one task: definition, schedule, pending nudges, and the job that holds it back."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        view = tm.get_recurring(name)
        hold = Hold.of(view, _in_flight(tm, view), now=SystemClock().now())
    if wants_json(ctx):
        emit_json(task_json(view) | {"held_by": hold})
    else:
        emit_fields(task_fields(view, hold))


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
        say(f"{each.task}: nudged")


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
        say(f"{name}: job {job_id}")


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
        say(f"{name}: deleted")


def _in_flight(tm: Threadmill, view: CronTaskView) -> Job | None:
    if view.in_flight_job_id is None:
        return None
    try:
        return tm.get_job(JobId(view.in_flight_job_id))
    except StoreInvariantError:  # what is stored of it is damaged; the task is shown all the same
        return None


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
        say(f"{name}: {word}" if flag else f"{name}: was {word} already")
