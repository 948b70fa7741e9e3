"""The role `Jobs` on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    FinishVerdict,
    Job,
    JobId,
    JobSummary,
    NewJob,
    NodeId,
    OrphanedJob,
)
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.jobs import DecideOrphan
from threadmill_sa.stores.redis.gateway import Gateway, instant_text, pack, words
from threadmill_sa.stores.redis.hashes import Row, job_id, job_record, outcome_record, span

_PAGE: Final = 500  # ids that one script of a listing looks at


class RedisJobs:
    """Jobs in hashes and one ordered index; each call is one script but for `reclaim` and `list`.

    `reclaim` reads, decides and then writes what is still as it was read. `list` reads in pages.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def insert(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> None:
        if not jobs:
            return
        records = pack([job_record(job) for job in jobs])
        reply = self._gateway.run_durably("job_insert", now=instant_text(now), records=records)
        raise_if_taken(reply)

    def claim(
        self,
        node_id: NodeId,
        *,
        queues: Sequence[str] | None,
        handlers: Sequence[str],
        limit: int,
        now: datetime | None = None,
    ) -> list[ClaimedJob]:
        if limit < 1 or not handlers or (queues is not None and not queues):
            return []
        found = self._gateway.run(
            "job_claim",
            node=node_id.hex,
            now=instant_text(now),
            limit=limit,
            handlers=pack(list(dict.fromkeys(handlers))),
            queues=b"" if queues is None else pack(list(queues)),
        )
        return [
            Row(row).claimed(identity, payload)
            for identity, row, payload in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]

    def finish(
        self, node_id: NodeId, outcomes: Sequence[AttemptOutcome], *, now: datetime | None = None
    ) -> list[FinishVerdict]:
        if not outcomes:
            return []
        reply = self._gateway.run(
            "job_finish",
            node=node_id.hex,
            now=instant_text(now),
            outcomes=pack([outcome_record(each) for each in outcomes]),
        )
        return [FinishVerdict(word) for word in words(reply)]

    def promote(self, *, limit: int, now: datetime | None = None) -> int:
        if limit < 1:
            return 0
        return int(self._gateway.run("job_promote", now=instant_text(now), limit=limit))

    def reclaim(
        self,
        decide: DecideOrphan,
        *,
        timeout_seconds: float,
        limit: int,
        now: datetime | None = None,
    ) -> list[tuple[OrphanedJob, AttemptOutcome]]:
        if limit < 1:
            return []
        found = self._gateway.run("job_orphans", timeout=span(timeout_seconds), limit=limit)
        orphans = [
            Row(row).orphaned(identity)
            for identity, row in zip(found[::3], found[1::3], strict=True)
        ]
        # All are decided before the first write: a decision that raises leaves nothing behind.
        ended = [(orphan, decide(orphan)) for orphan in orphans]
        if not ended:
            return []
        verdicts = self._gateway.run(
            "job_reclaim",
            now=instant_text(now),
            outcomes=pack([outcome_record(outcome) for _, outcome in ended]),
            beats=pack([beat.decode() for beat in found[2::3]]),
        )
        return [
            end
            for end, word in zip(ended, words(verdicts), strict=True)
            if word == FinishVerdict.RECORDED
        ]

    def get(self, job_id: JobId) -> Job | None:
        found = self._gateway.run("job_get", id=job_id.hex)
        if not found:
            return None
        row, payload, beat, result, *history = found
        return Row(row).whole(job_id, payload, beat, result, history)

    def counts(self) -> Mapping[JobState, int]:
        states = list(JobState)
        found = self._gateway.command("HMGET", "counters", *(f"s:{state}" for state in states))
        return {state: int(count or 0) for state, count in zip(states, found, strict=True)}

    def queue_depths(self) -> Mapping[str, int]:
        found = pairs(self._gateway.command("HGETALL", "counters"))
        return {
            field[2:].decode(): int(count)
            for field, count in found.items()
            if field.startswith(b"q:")
        }

    def fold_counts(self, *, limit: int) -> int:
        del limit  # Counters are kept exact by each script, so no delta ever waits.
        return 0

    def list(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 50,
    ) -> list[JobSummary]:
        states = pack([each.value for each in (list(JobState) if state is None else [state])])
        listed: list[JobSummary] = []
        before = b""
        while len(listed) < limit:
            before, *found = self._gateway.run(
                "job_list",
                states=states,
                queue=queue or "",
                task=task or "",
                before=before,
                page=_PAGE,
            )
            listed += [
                Row(row).summary(identity)
                for identity, row in zip(found[::2], found[1::2], strict=True)
            ]
            if not before:
                break
        return listed[:limit]


def raise_if_taken(reply: Sequence[bytes]) -> None:
    """Raise StoreInvariantError when a script found an id that is stored already."""
    word, *rest = words(reply)
    if word == "taken":
        taken = job_id(rest[0])
        raise StoreInvariantError(
            f"job {taken} is already stored: nothing of this insert was written;"
            " give each job a new id",
            job_id=taken,
        )


def pairs(reply: Any) -> dict[bytes, bytes]:
    """Return a hash as the client read it: a map under RESP3, a flat list before."""
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))
