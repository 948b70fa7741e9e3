"""The role that keeps jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    DeleteVerdict,
    FinishVerdict,
    Job,
    JobId,
    JobSummary,
    NewJob,
    NodeId,
    OrphanedJob,
)
from threadmill_sa.model.state import JobState

DecideOrphan = Callable[[OrphanedJob], AttemptOutcome]


class Jobs(Protocol):
    """Insert, claim, finish and read jobs.

    A job that a hand has damaged stops only itself: claim, promote and reclaim set it aside.

    `now` is None for the store's own clock, or an injected instant (aware UTC) that is used for
    everything in the call, stamps and comparisons alike.
    """

    def insert(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> None:
        """Store all `jobs`, or none.

        Raises: StoreInvariantError when an id is already stored; nothing is written then.
        Atomicity: one transaction.
        """
        ...

    def claim(
        self,
        node_id: NodeId,
        *,
        queues: Sequence[str] | None,
        handlers: Sequence[str],
        limit: int,
        now: datetime | None = None,
    ) -> list[ClaimedJob]:
        """Take up to `limit` ready jobs for `node_id`.

        Only jobs of the named handlers are taken: one that this process cannot run waits for a
        process that can. A job is never held by two claims: each raises `attempt_token`.

        Args:
            queues: the queues to take from, emptied in this order; None takes from all.
            limit: 0..limits.CLAIM_BATCH_MAX.
        Returns: 0..limit jobs, within a queue by (priority descending, id).
        Atomicity: one statement per queue; never waits for another claim.
        """
        ...

    def finish(
        self, node_id: NodeId, outcomes: Sequence[AttemptOutcome], *, now: datetime | None = None
    ) -> list[FinishVerdict]:
        """Record the ends of attempts, each only while its token holds the job for `node_id`.

        A retry is decided in the same write as the failure, so a retrying instance never looks
        finished to the pile-up guard. Calling again with the same outcomes is LOST, not an error.

        Returns: one verdict per outcome, in order.
        Atomicity: all outcomes in one transaction; each is recorded or lost by itself.
        """
        ...

    def promote(self, *, limit: int, now: datetime | None = None) -> int:
        """Make up to `limit` delayed jobs ready whose time has come; returns how many."""
        ...

    def reclaim(
        self,
        decide: DecideOrphan,
        *,
        silent_since: datetime,
        limit: int,
        now: datetime | None = None,
    ) -> list[tuple[OrphanedJob, AttemptOutcome]]:
        """End the attempts whose owner has not beaten after `silent_since`.

        That is an instant of the store's own clock as the caller knows it from a beat of its own,
        so a jump of that clock makes nobody silent. `decide` is pure and gives each orphan its
        outcome. Jobs that another reclaim holds are skipped.

        Returns: what was ended, at most `limit`.
        Atomicity: one transaction.
        """
        ...

    def delete(self, job_id: JobId, *, now: datetime | None = None) -> DeleteVerdict:
        """Move a job that no node holds to DELETED; no attempt of it starts afterwards.

        An unfinished instance of a recurring task lets go of the pile-up guard by it, as by any
        end; schedule and pending nudges stay as they are. The job keeps payload, result and
        history, and is removed when its time has passed.

        Guarantee: beside a claim or a finish exactly one of the two comes first, and the other
            one meets what it has written.
        Returns: DELETED by this call; ALREADY; RUNNING; UNKNOWN. Only the first writes.
        Atomicity: one transaction, the entry in the history included.
        """
        ...

    def remove_old(
        self,
        state: JobState,
        *,
        older_than_seconds: float,
        limit: int,
        now: datetime | None = None,
    ) -> int:
        """Remove up to `limit` jobs that have been in `state` for so long, the oldest first.

        All that is kept of a job goes with it. Nothing is removed for a state that is not one of
        `model.state.FINISHED`.

        Guarantee: found by an index, without looking at other jobs; it waits for no other writer
            and passes by the jobs that one holds.
        Returns: how many; fewer than `limit` when no more were free to go.
        Atomicity: one transaction.
        """
        ...

    def get(self, job_id: JobId) -> Job | None:
        """Return one job with payload, result and history, or None.

        Raises: StoreInvariantError for a stored job that cannot be read; it names id and field.
        """
        ...

    def counts(self) -> Mapping[JobState, int]:
        """Return the number of jobs in every state, exact, without scanning the jobs."""
        ...

    def queue_depths(self) -> Mapping[str, int]:
        """Return the number of ENQUEUED jobs of each queue that has any, exact."""
        ...

    def fold_counts(self, *, limit: int) -> int:
        """Fold up to `limit` count deltas and return how many; never waits for a producer."""
        ...

    def list(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 50,
    ) -> list[JobSummary]:
        """Return up to `limit` jobs that match every given filter, newest id first.

        A stored job that cannot be read is left out and logged.
        """
        ...
