"""The role `Jobs` in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from threading import Lock

from threadmill_sa.clock import Clock
from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    DeleteVerdict,
    FinishVerdict,
    HistoryEntry,
    Job,
    JobId,
    JobSummary,
    NewJob,
    NodeId,
    OrphanedJob,
    delete_verdict,
)
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.jobs import DecideOrphan
from threadmill_sa.stores.memory.outcomes import end_attempt
from threadmill_sa.stores.memory.rows import (
    JobRow,
    claimed_view,
    job_view,
    orphaned_view,
    summary_view,
)
from threadmill_sa.stores.memory.table import JobTable


class MemoryJobs:
    """Jobs in one table under the store's lock."""

    def __init__(self, table: JobTable, lock: Lock, clock: Clock) -> None:
        self._table = table
        self._lock = lock
        self._clock = clock

    def insert(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> None:
        with self._lock:
            moment = now or self._clock.now()
            self._table.require_new(jobs)
            for job in jobs:
                self._table.add(job, moment)

    def claim(
        self,
        node_id: NodeId,
        *,
        queues: Sequence[str] | None,
        handlers: Sequence[str],
        limit: int,
        now: datetime | None = None,
    ) -> list[ClaimedJob]:
        with self._lock:
            moment = now or self._clock.now()
            claimed = []
            for row in self._table.take_ready(queues, handlers, limit):
                row.attempt += 1
                row.attempt_token += 1
                row.owner_node_id = node_id
                row.started_at = moment
                # Liveness is judged by the store's own clock, never by an injected instant.
                row.heartbeat_at = self._clock.now()
                self._table.move(row, JobState.PROCESSING, moment)
                claimed.append(claimed_view(row))
            return claimed

    def finish(
        self, node_id: NodeId, outcomes: Sequence[AttemptOutcome], *, now: datetime | None = None
    ) -> list[FinishVerdict]:
        with self._lock:
            moment = now or self._clock.now()
            verdicts = []
            for outcome in outcomes:
                row = self._table.rows.get(outcome.job_id)
                if row is None or not row.held_by(node_id, outcome.attempt_token):
                    verdicts.append(FinishVerdict.LOST)
                    continue
                end_attempt(self._table, row, outcome, moment)
                verdicts.append(FinishVerdict.RECORDED)
            return verdicts

    def promote(self, *, limit: int, now: datetime | None = None) -> int:
        with self._lock:
            moment = now or self._clock.now()
            promoted = 0
            for row in self._table.take_due(limit, moment):
                self._table.move(row, JobState.ENQUEUED, moment)
                promoted += 1
            return promoted

    def reclaim(
        self,
        decide: DecideOrphan,
        *,
        silent_since: datetime,
        limit: int,
        now: datetime | None = None,
    ) -> list[tuple[OrphanedJob, AttemptOutcome]]:
        with self._lock:
            moment = now or self._clock.now()
            rows = [self._table.rows[job_id] for job_id in sorted(self._table.processing)]
            silent = [row for row in rows if _silent(row, silent_since)][:limit]
            # Decide all before the first write: a decision that raises leaves nothing behind.
            ended = [(orphan := orphaned_view(row), decide(orphan)) for row in silent]
            for row, (_, outcome) in zip(silent, ended, strict=True):
                end_attempt(self._table, row, outcome, moment)
            return ended

    def delete(self, job_id: JobId, *, now: datetime | None = None) -> DeleteVerdict:
        with self._lock:
            row = self._table.rows.get(job_id)
            verdict = delete_verdict(None if row is None else row.state)
            if row is not None and verdict is DeleteVerdict.DELETED:
                moment = now or self._clock.now()
                told = HistoryEntry(JobState.DELETED, moment, row.attempt, failure.DELETE, None)
                row.history.append(told)
                self._table.withdraw(row)
                self._table.move(row, JobState.DELETED, moment)
            return verdict

    def remove_old(
        self,
        state: JobState,
        *,
        older_than_seconds: float,
        limit: int,
        now: datetime | None = None,
    ) -> int:
        with self._lock:
            until = (now or self._clock.now()) - timedelta(seconds=older_than_seconds)
            return self._table.drop_finished(state, limit, until)

    def get(self, job_id: JobId) -> Job | None:
        with self._lock:
            row = self._table.rows.get(job_id)
            return None if row is None else job_view(row)

    def list(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 50,
    ) -> list[JobSummary]:
        def wanted(row: JobRow) -> bool:
            return (
                (state is None or row.state == state)
                and (queue is None or row.new.queue == queue)
                and (task is None or row.new.cron_task_name == task)
            )

        with self._lock:
            found = islice(filter(wanted, self._table.newest_first()), limit)
            return [summary_view(row) for row in found]

    def counts(self) -> Mapping[JobState, int]:
        with self._lock:
            return {state: self._table.counts[state] for state in JobState}

    def queue_depths(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._table.depths)

    def fold_counts(self, *, limit: int) -> int:
        del limit  # Counts are kept exact under the lock, so no delta ever waits.
        return 0


def _silent(row: JobRow, since: datetime) -> bool:
    return row.heartbeat_at is not None and row.heartbeat_at <= since
