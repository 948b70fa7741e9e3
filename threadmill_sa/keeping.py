"""What `Threadmill` offers for jobs that are stored: to read, list and delete them."""

from __future__ import annotations

from datetime import datetime

from threadmill_sa.errors import InvalidValueError, JobRunningError
from threadmill_sa.model import limits
from threadmill_sa.model.job import DeleteVerdict, Job, JobId, JobSummary
from threadmill_sa.model.names import check_integer, check_name, check_uuid
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore


class Keeping:
    """The part of `Threadmill` that needs nothing but the store's jobs."""

    @property
    def store(self) -> JobStore:
        """The store, by its contract `threadmill_sa.spi`."""
        raise NotImplementedError

    def _instant(self, now: datetime | None = None) -> datetime | None:
        raise NotImplementedError

    def get_job(self, job_id: JobId) -> Job | None:
        """Return one job with payload, result and history, or None.

        Raises: InvalidValueError.
        """
        return self.store.jobs.get(_job_id(job_id))

    def list_jobs(
        self,
        *,
        state: JobState | str | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = limits.LIST_DEFAULT,
    ) -> list[JobSummary]:
        """Return up to `limit` (1..500) jobs that match every given filter, newest first."""
        return self.store.jobs.list(
            state=None if state is None else _job_state(state),
            queue=None if queue is None else check_name(queue, kind="queue"),
            task=None if task is None else check_name(task, kind="recurring task"),
            limit=check_integer(limit, what="limit", minimum=1, maximum=limits.LIST_MAX),
        )

    def delete_job(self, job_id: JobId) -> bool:
        """Take one job away, waiting or finished: it is DELETED, and no attempt starts any more.

        It stays to be read until its time has passed. An instance of a recurring task lets the
        next one through; the schedule stays, and so do nudges that came after it was created.

        Returns: False when there is no such job, or it was deleted before.
        Raises: JobRunningError while a node holds it, and nothing is written; InvalidValueError.
        """
        verdict = self.store.jobs.delete(_job_id(job_id), now=self._instant())
        if verdict is DeleteVerdict.RUNNING:
            raise JobRunningError(
                f"job {job_id} is running and was not deleted: try again when the attempt has"
                " ended, or stop its node, which gives the job back",
                job_id=job_id,
            )
        return verdict is DeleteVerdict.DELETED


def _job_id(value: JobId) -> JobId:
    return JobId(check_uuid(value, what="job_id"))


def _job_state(value: JobState | str) -> JobState:
    try:
        return JobState(value.upper())
    except ValueError:
        words = ", ".join(state.value for state in JobState)
        raise InvalidValueError(f"state must be one of {words}, found {value!r:.200}") from None
