"""Jobs and nodes: every write of the two roles, and the calls of users that lead there."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from tests.faults.scenes import SMALL_BATCHES, Scene
from tests.faults.world import LATER, MAIL, RELAY, decide_orphan
from threadmill_sa import Threadmill
from threadmill_sa.clock import SystemClock
from threadmill_sa.engine.processing.strays import give_back_strays
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    DeleteVerdict,
    FinishVerdict,
    JobId,
    NodeId,
    OutcomeKind,
)
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import JobState
from threadmill_sa.testing.suite.tools import AFTER_ALL

ENDS = {
    OutcomeKind.SUCCEEDED: JobState.SUCCEEDED,
    OutcomeKind.RETRY: JobState.SCHEDULED,
    OutcomeKind.FAILED: JobState.FAILED,
    OutcomeKind.QUARANTINED: JobState.QUARANTINED,
    OutcomeKind.RELEASED: JobState.ENQUEUED,
}


class _Jobs(Scene):
    """Jobs in a queue of their own; each ran once at the end."""

    count = 1

    def arrange(self) -> None:
        self.queue = self.world.name("queue")
        self.jobs = self.world.new_jobs(self.count, queue=self.queue)

    @property
    def states(self) -> list[JobState]:
        found = self.world.store.jobs.list(queue=self.queue, limit=500)
        return [each.state for each in found]

    def all_in(self, state: JobState, *, else_in: JobState) -> int:
        """1 when every job is in `state`, 0 when every one is in the other."""
        assert len(self.states) == self.count
        assert set(self.states) in ({state}, {else_in}), f"half of it: {self.states}"
        return int(self.states[0] is state)

    def verify(self) -> None:
        assert len(self.states) == self.count
        for job in self.jobs:
            assert self.world.job(job.id).state is JobState.SUCCEEDED
            assert self.world.claims[job.id] == 1
            assert self.world.job(job.id).attempt == 1


class InsertOne(_Jobs):
    def act(self, tm: Threadmill) -> None:
        tm.store.jobs.insert(self.jobs)

    def look(self) -> int:
        stored = len(self.states)
        assert stored in {0, self.count}, f"{stored} of {self.count} jobs are stored"
        return int(stored > 0)

    def again(self, tm: Threadmill) -> None:
        if not self.had:
            self.act(tm)
            return
        with pytest.raises(StoreInvariantError):  # the same ids: refused and not doubled
            self.act(tm)


class InsertMany(InsertOne):
    count = 5
    limits = SMALL_BATCHES


class InsertLarge(InsertMany):
    """The file has to grow."""

    def arrange(self) -> None:
        self.queue = self.world.name("queue")
        large = json.dumps("x" * 200_000)
        self.jobs = self.world.new_jobs(self.count, queue=self.queue, payload=large)


class Enqueue(Scene):
    """A user who gets an error calls again, and has two jobs where the first had been stored."""

    count = 1

    def arrange(self) -> None:
        self.queue = self.world.name("queue")

    def act(self, tm: Threadmill) -> None:
        tm.enqueue(RELAY, queue=self.queue)

    def look(self) -> int:
        stored = len(self.world.store.jobs.list(queue=self.queue, limit=500))
        assert stored % self.count == 0, f"{stored} jobs of {self.count} in each call"
        return stored // self.count

    def verify(self) -> None:
        jobs = self.world.store.jobs.list(queue=self.queue, limit=500)
        assert len(jobs) == self.done * self.count
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        assert all(self.world.claims[job.id] == 1 for job in jobs)


class EnqueueMany(Enqueue):
    count = 3

    def act(self, tm: Threadmill) -> None:
        tm.enqueue_many([(MAIL, number) for number in range(self.count)], queue=self.queue)


class _Claimed(_Jobs):
    """Jobs that a node holds."""

    count = 3
    max_attempts = 5

    def arrange(self) -> None:
        self.queue = self.world.name("queue")
        self.jobs = self.world.stored_jobs(
            self.count, queue=self.queue, max_attempts=self.max_attempts
        )
        self.node = self.world.new_node()
        self.held = sorted(self.claim_before(), key=lambda job: job.id)

    def claim_before(self) -> list[ClaimedJob]:
        return self.world.claim(self.node)


class Claim(_Claimed):
    def claim_before(self) -> list[ClaimedJob]:
        return []

    def act(self, tm: Threadmill) -> None:
        claimed = tm.store.jobs.claim(self.node, queues=self.queues(), handlers=[RELAY], limit=10)
        self.world.claims.update(job.id for job in claimed)
        self.held += claimed

    def queues(self) -> list[str] | None:
        return None

    def again(self, tm: Threadmill) -> None:
        given_back = give_back_strays(tm.store.jobs, self.node, ())
        assert given_back == (self.count if self.had else 0)
        self.act(tm)

    def look(self) -> int:
        return self.all_in(JobState.PROCESSING, else_in=JobState.ENQUEUED)

    def after(self) -> None:
        assert len({job.id for job in self.held}) == len(self.held)
        self.world.finish(self.node, self.held)


class ClaimFromQueues(Claim):
    def queues(self) -> list[str] | None:
        return [self.world.name("empty"), self.queue, self.world.name("empty")]


class ClaimForTheOnlyAttempt(Claim):
    max_attempts = 1


class Finish(_Claimed):
    def act(self, tm: Threadmill) -> None:
        self.verdicts = tm.store.jobs.finish(self.node, self.outcomes())

    def outcomes(self) -> list[AttemptOutcome]:
        return [_end(job, OutcomeKind.SUCCEEDED) for job in self.held]

    def look(self) -> int:
        return self.all_in(JobState.SUCCEEDED, else_in=JobState.PROCESSING)

    def again(self, tm: Threadmill) -> None:
        self.act(tm)
        expected = FinishVerdict.LOST if self.had else FinishVerdict.RECORDED
        assert set(self.verdicts) == {expected}


class FinishMixed(Finish):
    """One of each kind; the history tells each once."""

    count = 5
    kinds = tuple(OutcomeKind)

    def outcomes(self) -> list[AttemptOutcome]:
        return [_end(job, kind) for job, kind in zip(self.held, self.kinds, strict=True)]

    def look(self) -> int:
        found = [self.world.job(job.id).state for job in self.held]
        whole = [ENDS[kind] for kind in self.kinds]
        assert found in (whole, [JobState.PROCESSING] * self.count), f"half of it: {found}"
        return int(found == whole)

    def after(self) -> None:
        assert self.look() == 1
        for job, kind in zip(self.held, self.kinds, strict=True):
            told = [entry.state for entry in self.world.job(job.id).history]
            assert told == _told(kind), f"{kind} was told as {told}"
            given_back = kind is OutcomeKind.RELEASED
            assert self.world.job(job.id).attempt == (0 if given_back else 1)

    def verify(self) -> None:
        for job, kind in zip(self.held, self.kinds, strict=True):
            again = kind in {OutcomeKind.RETRY, OutcomeKind.RELEASED}
            assert self.world.claims[job.id] == (2 if again else 1)
            assert self.world.job(job.id).attempt == (2 if kind is OutcomeKind.RETRY else 1)
            ended = JobState.SUCCEEDED if again else ENDS[kind]
            assert self.world.job(job.id).state is ended


class Release(FinishMixed):
    """What a node does with its jobs when it stops."""

    count = 3
    kinds = (OutcomeKind.RELEASED,) * 3


class FailWithRetry(FinishMixed):
    count = 2
    kinds = (OutcomeKind.RETRY,) * 2


class Reclaim(_Claimed):
    def act(self, tm: Threadmill) -> None:
        tm.store.jobs.reclaim(decide_orphan, silent_since=AFTER_ALL, limit=100)

    def look(self) -> int:
        return self.all_in(JobState.SCHEDULED, else_in=JobState.PROCESSING)

    def after(self) -> None:
        assert self.look() == 1
        for job in self.held:
            told = [entry.state for entry in self.world.job(job.id).history]
            assert told == [JobState.FAILED, JobState.SCHEDULED]

    def verify(self) -> None:
        for job in self.jobs:
            assert self.world.job(job.id).state is JobState.SUCCEEDED
            assert self.world.claims[job.id] == 2
            assert self.world.job(job.id).attempt == 2


class Promote(_Jobs):
    count = 3

    def arrange(self) -> None:
        self.queue = self.world.name("queue")
        self.jobs = self.world.stored_jobs(self.count, queue=self.queue, delay_seconds=3600.0)

    def act(self, tm: Threadmill) -> None:
        tm.store.jobs.promote(limit=100, now=SystemClock().now() + LATER)

    def look(self) -> int:
        return self.all_in(JobState.ENQUEUED, else_in=JobState.SCHEDULED)


class DeleteJob(_Jobs):
    """Taken away, and told in the history, by one write."""

    def arrange(self) -> None:
        self.queue = self.world.name("queue")
        self.jobs = self.world.stored_jobs(self.count, queue=self.queue, delay_seconds=3600.0)

    def act(self, tm: Threadmill) -> None:
        self.verdict = tm.store.jobs.delete(self.jobs[0].id)

    def look(self) -> int:
        deleted = self.all_in(JobState.DELETED, else_in=JobState.SCHEDULED)
        told = [entry.state for entry in self.world.job(self.jobs[0].id).history]
        assert told == [JobState.DELETED] * deleted, f"{deleted} deleted, told as {told}"
        return deleted

    def again(self, tm: Threadmill) -> None:
        self.act(tm)
        assert self.verdict is (DeleteVerdict.ALREADY if self.had else DeleteVerdict.DELETED)

    def verify(self) -> None:
        assert self.look() == 1
        assert self.world.claims[self.jobs[0].id] == 0


class RemoveOld(_Claimed):
    """Jobs and what their history tells go together."""

    def arrange(self) -> None:
        super().arrange()
        ends = [_end(job, OutcomeKind.QUARANTINED) for job in self.held]
        self.world.store.jobs.finish(self.node, ends)

    def act(self, tm: Threadmill) -> None:
        tm.store.jobs.remove_old(JobState.QUARANTINED, older_than_seconds=0.0, limit=1_000_000)

    def look(self) -> int:
        left = len(self.states)
        assert left in {0, self.count}, f"{left} of {self.count} jobs are left"
        if self.world.sql is not None:
            with self.world.sql.connect() as connection:
                told = connection.scalar(
                    text(
                        "SELECT count(*) FROM threadmill_job_history AS told WHERE NOT EXISTS"
                        " (SELECT 1 FROM threadmill_jobs WHERE id = told.job_id)"
                    )
                )
            assert told == 0, f"{told} entries of jobs that are gone"
        return int(left == 0)

    def verify(self) -> None:
        assert self.look() == 1


class FoldCounts(_Jobs):
    """What was folded is counted once; the world compares the counts with the jobs."""

    count = 4

    def arrange(self) -> None:
        super().arrange()
        self.world.store.jobs.insert(self.jobs[:2])
        self.world.store.jobs.insert(self.jobs[2:])

    def act(self, tm: Threadmill) -> None:
        tm.store.jobs.fold_counts(limit=1_000_000)  # all there is of earlier scenes

    def look(self) -> int | None:
        depths = self.world.store.jobs.queue_depths()
        assert depths == {self.queue: self.count}
        assert self.world.store.jobs.counts()[JobState.ENQUEUED] == self.count
        if self.world.sql is None or self.world.sql.dialect.name == "sqlite":
            return None  # counted by each write, so there is nothing to fold
        with self.world.sql.connect() as connection:
            left = connection.scalar(text("SELECT count(*) FROM threadmill_count_deltas"))
        return int(left == 0)


class Heartbeat(_Claimed):
    def arrange(self) -> None:
        super().arrange()
        self.lost: frozenset[JobId] = frozenset()
        self.before = self.beats()

    def act(self, tm: Threadmill) -> None:
        node = NodeInfo(self.node, "host", 1, None, 1)
        held = [HeldJob(job.id, job.attempt_token) for job in self.held]
        self.lost |= tm.store.nodes.beat(node, held)

    def beats(self) -> list[object]:
        return [self.world.job(job.id).heartbeat_at for job in self.held]

    def look(self) -> int:
        known = self.node in _nodes(self)
        moved = [old != new for old, new in zip(self.before, self.beats(), strict=True)]
        assert set(moved) == {known}, f"node is known: {known}, jobs are beaten: {moved}"
        return int(known)

    def after(self) -> None:
        assert self.look() == 1
        assert not self.lost
        self.world.finish(self.node, self.held)

    def verify(self) -> None:
        super().verify()
        self.world.store.nodes.remove(self.node)


class RemoveNode(Scene):
    def arrange(self) -> None:
        self.node = self.world.new_node()
        self.world.store.nodes.beat(NodeInfo(self.node, "host", 1, None, 1), [])

    def act(self, tm: Threadmill) -> None:
        tm.store.nodes.remove(self.node)

    def look(self) -> int:
        return int(self.node not in _nodes(self))

    def verify(self) -> None:
        assert not self.world.store.nodes.list()


class RemoveStaleNodes(RemoveNode):
    def act(self, tm: Threadmill) -> None:
        tm.store.nodes.remove_stale(silent_since=AFTER_ALL)


SCENES: tuple[type[Scene], ...] = (
    InsertOne,
    InsertMany,
    InsertLarge,
    Enqueue,
    EnqueueMany,
    Claim,
    ClaimFromQueues,
    ClaimForTheOnlyAttempt,
    Finish,
    FinishMixed,
    Release,
    FailWithRetry,
    Reclaim,
    Promote,
    DeleteJob,
    RemoveOld,
    FoldCounts,
    Heartbeat,
    RemoveNode,
    RemoveStaleNodes,
)


def _nodes(scene: Scene) -> set[NodeId]:
    return {node.id for node in scene.world.store.nodes.list()}


def _end(job: ClaimedJob, kind: OutcomeKind) -> AttemptOutcome:
    retry = 10.0 if kind is OutcomeKind.RETRY else None
    return AttemptOutcome(job.id, job.attempt_token, kind, failure.EXCEPTION, retry_seconds=retry)


def _told(kind: OutcomeKind) -> list[JobState]:
    """The moves that the history keeps of an attempt that ended so."""
    return {
        OutcomeKind.SUCCEEDED: [],
        OutcomeKind.RETRY: [JobState.FAILED, JobState.SCHEDULED],
        OutcomeKind.FAILED: [JobState.FAILED],
        OutcomeKind.QUARANTINED: [JobState.QUARANTINED],
        OutcomeKind.RELEASED: [JobState.FAILED, JobState.ENQUEUED],
    }[kind]
