"""All jobs with the indexes that keep each operation from scanning them. Takes no lock itself."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.state import FINISHED, UNFINISHED, JobState
from threadmill_sa.stores.memory.rows import JobRow

_Lane = list[tuple[int, JobId]]  # a heap of (negated priority, id): the claim order
_Timed = list[tuple[datetime, JobId]]  # a heap


@dataclass(slots=True)
class JobTable:
    """Rows and their indexes, which change together in `add`, `move` and `drop_finished` only."""

    rows: dict[JobId, JobRow] = field(default_factory=dict)
    processing: set[JobId] = field(default_factory=set)
    counts: Counter[JobState] = field(default_factory=Counter)
    depths: Counter[str] = field(default_factory=Counter)
    unfinished: Counter[str] = field(default_factory=Counter)  # by recurring task
    _ids: list[JobId] = field(default_factory=list)  # ascending
    _ready: dict[tuple[str, str], _Lane] = field(default_factory=dict)  # by (queue, handler)
    _delayed: _Timed = field(default_factory=list)
    _finished: dict[JobState, _Timed] = field(
        default_factory=lambda: {state: [] for state in FINISHED}
    )

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
        """Set the state. The job is off its heap by `take_ready`, `take_due` or `withdraw`."""
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

    def withdraw(self, row: JobRow) -> None:
        """Take one job off its heap, wherever it stands there; the caller moves it on."""
        if row.state is JobState.ENQUEUED:
            key = (row.new.queue, row.new.handler)
            _take_out(self._ready[key], _place(row))
            if not self._ready[key]:
                del self._ready[key]
        elif row.state is JobState.SCHEDULED:
            _take_out(self._delayed, _due(row))
        elif row.state in self._finished:
            _take_out(self._finished[row.state], (row.state_at, row.id))

    def drop_finished(self, state: JobState, limit: int, until: datetime) -> int:
        """Drop up to `limit` jobs in `state` since `until` or before; returns how many."""
        oldest = self._finished.get(state, [])
        dropped = 0
        while dropped < limit and oldest and oldest[0][0] <= until:
            row = self.rows.pop(heappop(oldest)[1])
            self._ids.pop(bisect_left(self._ids, row.id))
            self._leave(row)
            dropped += 1
        return dropped

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
            heappush(lane, _place(row))
        elif row.state is JobState.SCHEDULED:
            heappush(self._delayed, _due(row))
        elif row.state is JobState.PROCESSING:
            self.processing.add(row.id)
        elif row.state in self._finished:
            heappush(self._finished[row.state], (row.state_at, row.id))

    def _leave(self, row: JobRow) -> None:
        self._count(row, -1)
        self.processing.discard(row.id)

    def _count(self, row: JobRow, step: int) -> None:
        self.counts[row.state] += step
        if row.state is JobState.ENQUEUED:
            _shift(self.depths, row.new.queue, step)
        if row.new.cron_task_name is not None and row.state in UNFINISHED:
            _shift(self.unfinished, row.new.cron_task_name, step)


def _place(row: JobRow) -> tuple[int, JobId]:
    return -row.new.priority, row.id


def _due(row: JobRow) -> tuple[datetime, JobId]:
    return row.scheduled_at or row.state_at, row.id


def _take_out(heap: list[Any], entry: object) -> None:
    heap.remove(entry)
    heapify(heap)


def _shift(counter: Counter[str], key: str, step: int) -> None:
    counter[key] += step
    if not counter[key]:
        del counter[key]
