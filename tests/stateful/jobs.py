"""Rules for jobs: claims, their ends, and everything that can come between."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.stateful.base import NODES, WorldMachine
from tests.stateful.world import HANDLERS, Node
from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    DeleteVerdict,
    FinishVerdict,
    JobId,
    OrphanedJob,
    OutcomeKind,
    delete_verdict,
)
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import FINISHED, JobState
from threadmill_sa.testing.suite.tools import AFTER_ALL

RETRY_SECONDS = 60.0
KINDS = st.sampled_from(
    (
        OutcomeKind.SUCCEEDED,
        OutcomeKind.SUCCEEDED,
        OutcomeKind.RETRY,
        OutcomeKind.RETRY,
        OutcomeKind.FAILED,
        OutcomeKind.RELEASED,
        OutcomeKind.QUARANTINED,
    )
)
PICKS = st.dictionaries(st.integers(0, 3), KINDS, min_size=1, max_size=4)
_REASONS = {
    OutcomeKind.SUCCEEDED: failure.SUCCESS,
    OutcomeKind.RETRY: failure.EXCEPTION,
    OutcomeKind.FAILED: failure.EXCEPTION,
    OutcomeKind.QUARANTINED: failure.QUARANTINE,
    OutcomeKind.RELEASED: failure.SHUTDOWN,
}
_NO_PAUSE = {OutcomeKind.RETRY: 0.0}


def outcome_of(job_id: JobId, token: int, kind: OutcomeKind) -> AttemptOutcome:
    pause = RETRY_SECONDS if kind is OutcomeKind.RETRY else None
    return AttemptOutcome(job_id, token, kind, _REASONS[kind], retry_seconds=pause)


class JobRules(WorldMachine):
    @precondition(lambda self: self.free)
    @rule(
        number=NODES,
        queues=st.sampled_from((None, None, ("default",), ("bulk", "default"))),
        handlers=st.sampled_from((HANDLERS, HANDLERS, HANDLERS[:1])),
        limit=st.sampled_from((1, 2, 10)),
    )
    def claim(
        self, number: int, queues: tuple[str, ...] | None, handlers: tuple[str, ...], limit: int
    ) -> None:
        node = self.nodes[number]
        expected = self.model.claimable(queues=queues, handlers=handlers, limit=limit)
        claimed = node.store.jobs.claim(
            node.id, queues=queues, handlers=handlers, limit=limit, now=self.now
        )
        assert [job.id for job in claimed] == [run.id for run in expected]
        self.model.claim(expected, node.id)
        found = [(job.attempt, job.attempt_token) for job in claimed]
        assert found == [(run.attempt, run.token) for run in expected]
        node.claims += claimed
        self.count("claims", len(claimed))

    @precondition(lambda self: self.free)
    @rule(number=NODES, rounds=st.lists(PICKS, min_size=1, max_size=3))
    def finish(self, number: int, rounds: list[dict[int, OutcomeKind]]) -> None:
        """The newest claims of a process end, those that it has lost meanwhile included.

        Before each round it claims what is ready, so an attempt that was given back may end
        beside the next one of its job.
        """
        node = self.nodes[number]
        for picks in rounds:
            self.claim(number=number, queues=None, handlers=HANDLERS, limit=2)
            recent = node.claims[-4:]
            chosen = {index % len(recent): kind for index, kind in picks.items()} if recent else {}
            self._finish(
                node,
                [
                    outcome_of(recent[index].id, recent[index].attempt_token, kind)
                    for index, kind in chosen.items()
                ],
            )

    def _finish(self, node: Node, outcomes: list[AttemptOutcome]) -> None:
        verdicts = node.store.jobs.finish(node.id, outcomes, now=self.now)
        expected = []
        for outcome in outcomes:
            held = self.model.holds(outcome.job_id, node.id, outcome.attempt_token)
            expected.append(FinishVerdict.RECORDED if held else FinishVerdict.LOST)
            if held:
                self._end(outcome)
            self.count("finished" if held else "late finishes refused")
        assert verdicts == expected, "verdicts of a batch"

    @precondition(lambda self: self.free)
    @rule(number=NODES)
    def run(self, number: int) -> None:
        """Everything that is ready is run to its end."""
        self.run_everything(number)

    def finish_everything(self, number: int) -> None:
        """Every claim that is still held succeeds, so that tasks are free for their next run."""
        node = self.nodes[number]
        held = [job for job in node.claims if self._holds(node, job)]
        self._finish(
            node, [outcome_of(job.id, job.attempt_token, OutcomeKind.SUCCEEDED) for job in held]
        )

    @precondition(lambda self: self.free)
    @rule(number=NODES, limit=st.sampled_from((1, 10)), dies=st.booleans())
    def reclaim(self, number: int, limit: int, *, dies: bool) -> None:
        """Claims are lost: with no patience at all every running job is an orphan."""
        kind = OutcomeKind.FAILED if dies else OutcomeKind.RETRY

        def decide(orphan: OrphanedJob) -> AttemptOutcome:
            pause = _NO_PAUSE.get(kind)
            return AttemptOutcome(
                orphan.id, orphan.attempt_token, kind, failure.ORPHAN, retry_seconds=pause
            )

        expected = self.model.processing()[:limit]
        ended = self.nodes[number].store.jobs.reclaim(
            decide, silent_since=AFTER_ALL, limit=limit, now=self.now
        )
        found = [(orphan.id, orphan.attempt_token, orphan.owner_node_id) for orphan, _ in ended]
        assert found == [(run.id, run.token, run.owner) for run in expected]
        for _, outcome in ended:
            self._end(outcome)
        self.count("claims lost", len(ended))

    @precondition(lambda self: self.free)
    @rule(number=NODES, what=st.sampled_from(("beat", "promote", "fold", "sweep")))
    def keep_house(self, number: int, what: str) -> None:
        store = self.nodes[number].store
        if what == "beat":
            self._beat(self.nodes[number])
        elif what == "promote":
            self.promote(number, limit=1)
        elif what == "fold":
            assert 0 <= store.jobs.fold_counts(limit=3) <= 3
        else:
            self.count("dead nudges swept", store.recurring.sweep_nudges(limit=100))

    @precondition(lambda self: self.free and self.model.runs)
    @rule(number=NODES, newest=st.integers(0, 9))
    def delete_job(self, number: int, newest: int) -> None:
        """An operator takes a job away: one that waits, has ended, runs, or is gone."""
        run = self.model.runs[-1 - newest % len(self.model.runs)]
        verdict = self.nodes[number].store.jobs.delete(JobId(run.id), now=self.now)
        expected = delete_verdict(None if run.removed else run.state)
        assert verdict is expected, f"delete of {run}"
        if verdict is DeleteVerdict.DELETED:
            self.model.delete_job(run, self.now)
        self.count(f"deletes: {verdict}")

    @precondition(lambda self: self.free)
    @rule(
        number=NODES,
        state=st.sampled_from(FINISHED),
        age=st.sampled_from((0.0, 600.0, 86_400.0)),
        limit=st.sampled_from((1, 100)),
    )
    def remove_old(self, number: int, state: JobState, age: float, limit: int) -> None:
        expected = self.model.removable(state, self.now - timedelta(seconds=age), limit)
        removed = self.nodes[number].store.jobs.remove_old(
            state, older_than_seconds=age, limit=limit, now=self.now
        )
        assert removed == len(expected), f"removed of {state}"
        for run in expected:
            run.removed = True
        self.count("finished jobs removed", removed)

    def promote(self, number: int, *, limit: int) -> None:
        due = self.model.promotable(self.now, limit)
        assert self.nodes[number].store.jobs.promote(limit=limit, now=self.now) == len(due)
        self.model.promote(due)

    def _beat(self, node: Node) -> None:
        """A heartbeat tells which of the newest claims are lost."""
        newest = {job.id: job.attempt_token for job in node.claims}
        held = [HeldJob(job_id, token) for job_id, token in newest.items()]
        lost = node.store.nodes.beat(NodeInfo(node.id, "host", 1, None, 2), held)
        assert lost == {
            job_id
            for job_id, token in newest.items()
            if not self.model.holds(job_id, node.id, token)
        }

    def run_everything(self, number: int) -> bool:
        """Promote, claim and succeed all that is ready; whether there was anything."""
        node = self.nodes[number]
        self.promote(number, limit=100)
        before = len(node.claims)
        self.claim(number=number, queues=None, handlers=HANDLERS, limit=1000)
        self.finish_everything(number)
        return len(node.claims) > before

    def _holds(self, node: Node, job: ClaimedJob) -> bool:
        return self.model.holds(job.id, node.id, job.attempt_token)

    def _end(self, outcome: AttemptOutcome) -> None:
        self.model.end(
            outcome.job_id, outcome.kind, now=self.now, retry_seconds=outcome.retry_seconds
        )
