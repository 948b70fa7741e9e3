"""All jobs with the indexes that keep each operation from scanning them. Takes no lock itself."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush, heapreplace

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.state import UNFINISHED, JobState
from threadmill_sa.stores.memory.rows import JobRow

_Lane = list[tuple[int, JobId]]  # a heap of (negated priority, id): the claim order


@dataclass(slots=True)
class JobTable:
    """Rows and their indexes, which change together in `add` and `move` only."""

    rows: dict[JobId, JobRow] = field(default_factory=dict)
    processing: set[JobId] = field(default_factory=set)
    counts: Counter[JobState] = field(default_factory=Counter)
    depths: Counter[str] = field(default_factory=Counter)
    unfinished: Counter[str] = field(default_factory=Counter)  # by recurring task
    _ids: list[JobId] = field(default_factory=list)  # ascending
    _ready: dict[tuple[str, str], _Lane] = field(default_factory=dict)  # by (queue, handler)
    _delayed: list[tuple[datetime, JobId]] = field(default_factory=list)  # a heap

    def require_new(self, jobs: Iterable[NewJob]) -> None:
        """Raise StoreInvariantError when an id is stored or given twice."""
        seen: set[JobId] = set()
        for job in jobs:
            if job.id in self.rows or job.id in seen:
                raise StoreInvariantError(
                    f"job {job.id} is already stored: nothing of this insert was written;"
                    " give each job a new id",
                    job_id=job.id,
                )
            seen.add(job.id)

    def add(self, job: NewJob, now: datetime) -> None:
        scheduled_at = job.run_at and job.run_at.astimezone(UTC)
        if job.delay_seconds is not None:
            scheduled_at = now + timedelta(seconds=job.delay_seconds)
        if job.fire_time is not None:
            job = replace(job, fire_time=job.fire_time.astimezone(UTC))
        row = JobRow(job, job.state, created_at=now, state_at=now, scheduled_at=scheduled_at)
        self.rows[job.id] = row
        insort(self._ids, job.id)  # Ids grow with time, so this is an append nearly always.
        self._enter(row)

    def move(self, row: JobRow, state: JobState, now: datetime) -> None:
        """Set the state. Who takes a job off a heap (`take_ready`, `take_due`) calls this next."""
        self._leave(row)
        row.state, row.state_at = state, now
        self._enter(row)

    def newest_first(self) -> Iterator[JobRow]:
        return (self.rows[job_id] for job_id in reversed(self._ids))

    def take_ready(
        self, queues: Sequence[str] | None, handlers: Iterable[str], limit: int
    ) -> list[JobRow]:
        """Take up to `limit` ENQUEUED jobs in claim order; the caller moves each on."""
        wanted = set(handlers)
        taken: list[JobRow] = []
        for queue in [None] if queues is None else queues:
            keys = [
                key
                for key in self._ready
                if key[1] in wanted and (queue is None or key[0] == queue)
            ]
            taken += self._drain(keys, limit - len(taken))
        return taken

    def take_due(self, limit: int, now: datetime) -> Iterator[JobRow]:
        """Take up to `limit` SCHEDULED jobs by (time, id); the caller moves each on."""
        for _ in range(limit):
            if not self._delayed or self._delayed[0][0] > now:
                return
            yield self.rows[heappop(self._delayed)[1]]

    def _drain(self, keys: list[tuple[str, str]], limit: int) -> list[JobRow]:
        # Merges the lanes by their heads; a lane has the jobs of one queue and handler, so jobs
        # that this node cannot run cost nothing however many stand in front.
        heads = [(self._ready[key][0], key) for key in keys]
        heapify(heads)
        taken: list[JobRow] = []
        while heads and len(taken) < limit:
            _, key = heads[0]
            lane = self._ready[key]
            taken.append(self.rows[heappop(lane)[1]])
            if lane:
                heapreplace(heads, (lane[0], key))
            else:
                heappop(heads)
                del self._ready[key]
        return taken

    def _enter(self, row: JobRow) -> None:
        self._count(row, 1)
        if row.state is JobState.ENQUEUED:
            lane = self._ready.setdefault((row.new.queue, row.new.handler), [])
            heappush(lane, (-row.new.priority, row.id))
        elif row.state is JobState.SCHEDULED:
            heappush(self._delayed, (row.scheduled_at or row.state_at, row.id))
        elif row.state is JobState.PROCESSING:
            self.processing.add(row.id)

    def _leave(self, row: JobRow) -> None:
        self._count(row, -1)
        self.processing.discard(row.id)

    def _count(self, row: JobRow, step: int) -> None:
        self.counts[row.state] += step
        if row.state is JobState.ENQUEUED:
            _shift(self.depths, row.new.queue, step)
        if row.new.cron_task_name is not None and row.state in UNFINISHED:
            _shift(self.unfinished, row.new.cron_task_name, step)


def _shift(counter: Counter[str], key: str, step: int) -> None:
    counter[key] += step
    if not counter[key]:
        del counter[key]
