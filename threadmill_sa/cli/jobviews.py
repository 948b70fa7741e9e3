"""Jobs as commands show them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from threadmill_sa.cli.views import NOTHING, decoded, utc
from threadmill_sa.model.job import Job, JobSummary

LIST_HEADINGS = ("id", "state", "handler", "queue", "attempt", "since (UTC)", "task")


def summary_json(job: JobSummary) -> dict[str, Any]:
    """Every field of a summary; instants are ISO 8601 in UTC."""
    return asdict(job)


def job_json(job: Job) -> dict[str, Any]:
    """Every field of a job; payload and result are decoded."""
    return asdict(job) | {"payload": decoded(job.payload), "result": decoded(job.result)}


def job_row(job: JobSummary) -> list[str]:
    """The cells under `LIST_HEADINGS`."""
    return [
        str(job.id),
        job.state,
        job.handler,
        job.queue,
        _attempt(job),
        utc(job.state_at.replace(microsecond=0)),
        job.cron_task_name or NOTHING,
    ]


def job_fields(job: Job) -> dict[str, str]:
    """One line for each fact of a job, and for each entry of its history."""
    fields = {
        "id": str(job.id),
        "state": f"{job.state} since {utc(job.state_at)} UTC",
        "handler": job.handler,
        "payload": NOTHING if job.payload is None else job.payload,
        "result": NOTHING if job.result is None else job.result,
        "queue": job.queue,
        "priority": str(job.priority),
        "attempt": _attempt(job),
        "timeout": NOTHING if job.timeout_seconds is None else f"{job.timeout_seconds:g} s",
        "node": str(job.owner_node_id or NOTHING),
        "task": job.cron_task_name or NOTHING,
        "origin": job.cron_origin or NOTHING,
    }
    for name, instant in (
        ("fire time", job.fire_time),
        ("created", job.created_at),
        ("scheduled", job.scheduled_at),
        ("started", job.started_at),
    ):
        fields[name] = NOTHING if instant is None else f"{utc(instant)} UTC"
    for number, entry in enumerate(job.history, 1):
        told = f"{utc(entry.at)} UTC  {entry.state}  attempt {entry.attempt}  {entry.reason}"
        first_line = (entry.message or "").split("\n", 1)[0]
        fields[f"history {number}"] = f"{told}  {first_line}".rstrip()
    return fields


def _attempt(job: JobSummary) -> str:
    return f"{job.attempt} of {job.max_attempts}"
