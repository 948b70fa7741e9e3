"""Jobs that were claimed by a call whose answer never came."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import AttemptOutcome, Job, JobId, NodeId, OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.jobs import Jobs


def give_back_strays(
    jobs: Jobs, node_id: NodeId, known: Collection[JobId], *, now: datetime | None = None
) -> int:
    """Give back what the store says that `node_id` holds and the node knows nothing of.

    The reclaim would take such jobs for those of a lost worker: after the heartbeat timeout, and
    with an attempt spent, which may be the last one, though nothing has run. To be called when
    no claim of the node is under way; what commits later still, or stands behind
    limits.LIST_MAX newer jobs, is left to the reclaim.

    Returns: how many were given back. Raises: StoreUnavailableError.
    """
    running = jobs.list(state=JobState.PROCESSING, limit=limits.LIST_MAX)
    unknown = (job.id for job in running if job.owner_node_id == node_id and job.id not in known)
    strays = [job for job_id in unknown if (job := jobs.get(job_id)) is not None]
    jobs.finish(node_id, [_unspent(job) for job in strays], now=now)
    return len(strays)


def _unspent(job: Job) -> AttemptOutcome:
    return AttemptOutcome(
        job_id=job.id,
        attempt_token=job.attempt_token,
        kind=OutcomeKind.RELEASED,
        reason=failure.SHUTDOWN,
        message="the answer to the claim was lost: the attempt is given back",
    )
