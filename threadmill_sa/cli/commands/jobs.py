"""`threadmill-sa jobs`: what operators do with single jobs."""

from __future__ import annotations

from uuid import UUID

import click

from threadmill_sa.cli.jobviews import LIST_HEADINGS, job_fields, job_json, job_row, summary_json
from threadmill_sa.cli.options import chosen_target, output_options, target_options, wants_json
from threadmill_sa.cli.output import emit_fields, emit_json, emit_table, note, say
from threadmill_sa.errors import ThreadmillError
from threadmill_sa.model import limits
from threadmill_sa.model.job import JobId
from threadmill_sa.model.state import JobState

_ID = click.argument("job_id", metavar="ID", type=click.UUID)


@click.group()
def jobs() -> None:
    """List, show and delete jobs."""


@jobs.command("list")
@click.option(
    "--state", type=click.Choice([*JobState], case_sensitive=False), help="In this state only."
)
@click.option("--queue", metavar="NAME", help="Of this queue only.")
@click.option("--task", metavar="NAME", help="Instances of this recurring task only.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, limits.LIST_MAX),
    default=limits.LIST_DEFAULT,
    show_default=True,
    help="How many at most.",
)
@target_options
@output_options
@click.pass_context
def list_jobs(
    ctx: click.Context,
    /,
    *,
    state: JobState | None,
    queue: str | None,
    task: str | None,
    limit: int,
    app: str | None,
    url: str | None,
    schema: str | None,
) -> None:
    """Show jobs, newest first."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        found = tm.list_jobs(state=state, queue=queue, task=task, limit=limit)
    if wants_json(ctx):
        emit_json([summary_json(job) for job in found])
    elif found:
        emit_table(LIST_HEADINGS, [job_row(job) for job in found])
    else:
        note("no job matches")


@jobs.command()
@_ID
@target_options
@output_options
@click.pass_context
def show(
    ctx: click.Context, job_id: UUID, app: str | None, url: str | None, schema: str | None
) -> None:
    """Show one job with payload, result and history."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        job = tm.get_job(JobId(job_id))
    if job is None:
        raise _unknown(job_id)
    if wants_json(ctx):
        emit_json(job_json(job))
    else:
        emit_fields(job_fields(job))


@jobs.command()
@_ID
@target_options
@output_options
@click.pass_context
def delete(
    ctx: click.Context, job_id: UUID, app: str | None, url: str | None, schema: str | None
) -> None:
    """Delete one job that is not running. It can be read until its retention has passed."""
    with chosen_target(ctx, app, url, schema).open() as tm:
        deleted = tm.delete_job(JobId(job_id))
        if not deleted and tm.get_job(JobId(job_id)) is None:
            raise _unknown(job_id)
    if wants_json(ctx):
        emit_json({"job": job_id, "deleted": deleted})
    else:
        say(f"{job_id}: deleted" if deleted else f"{job_id}: was deleted already")


def _unknown(job_id: UUID) -> ThreadmillError:
    return ThreadmillError(
        f"job {job_id} is not stored: `jobs list` shows those that are", job_id=job_id
    )
