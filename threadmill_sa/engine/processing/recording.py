"""Telling the store at which point of its history a run begins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from threadmill_sa.model.job import ClaimedJob
from threadmill_sa.spi.store import JobStore

_log = logging.getLogger(__name__)


def run_recorder(
    store: JobStore, instant: Callable[[], datetime | None]
) -> Callable[[ClaimedJob], None] | None:
    """Return what records the start of a recurring task's run, or None where nothing is recorded.

    A record that cannot be written never stops the run; the check will miss the run then.
    """
    records = store.records
    if records is None:
        return None

    def record(job: ClaimedJob) -> None:
        if job.cron_task_name is None:
            return
        try:
            records.record_run(job.cron_task_name, job.id, job.attempt, now=instant())
        except Exception:  # noqa: BLE001 - logged, and nothing else is lost
            _log.exception(
                "the start of job %s of recurring task %r was not recorded; the check of nudges"
                " will not count this run",
                job.id,
                job.cron_task_name,
            )

    return record
