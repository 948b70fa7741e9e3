"""The role `Jobs` on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import starmap
from typing import Any, Final

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import failure
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
from threadmill_sa.model.state import FINISHED, JobState
from threadmill_sa.spi.jobs import DecideOrphan
from threadmill_sa.stores.redis.gateway import Gateway, instant_text, pack, words
from threadmill_sa.stores.redis.hashes import Row, job_id, job_record, micros, outcome_record, span
from threadmill_sa.stores.redis.misfits import Misfit, Misfits
from threadmill_sa.stores.redis.once import Once

_PAGE: Final = 500  # ids that one script of a listing looks at
_ROUNDS_MAX: Final = 100  # scripts of one call that met misfits alone; the next call goes on


class RedisJobs:
    """Jobs in hashes and one ordered index; each call is one script but for `reclaim` and `list`.

    `reclaim` reads, decides and then writes what is still as it was read. `list` reads in pages.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._misfits = Misfits(gateway)
        self._once = Once()

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
        arguments = {
            "node": node_id.hex,
            "now": instant_text(now),
            "limit": limit,
            "handlers": pack(list(dict.fromkeys(handlers))),
            "queues": b"" if queues is None else pack(list(queues)),
        }
        for _ in range(_ROUNDS_MAX):
            taken, strayed = self._gateway.run("job_claim", **arguments)
            claimed, damaged = self._claimed(taken)
            self._misfits.set_aside([*starmap(Misfit, strayed), *damaged], now=now)
            if claimed or not (strayed or damaged):
                break
        return claimed

    def _claimed(self, taken: Sequence[bytes | None]) -> tuple[list[ClaimedJob], list[Misfit]]:
        claimed: list[ClaimedJob] = []
        damaged: list[Misfit] = []
        triples: Any = zip(taken[::3], taken[1::3], taken[2::3], strict=True)
        for identity, row, payload in triples:
            try:
                claimed.append(Row(identity, row).claimed(payload))
            except StoreInvariantError as error:  # told by who sets it aside
                damaged.append(Misfit(identity, row, wrong=error.message))
        return claimed, damaged

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
        for _ in range(_ROUNDS_MAX):
            promoted, strayed = self._gateway.run(
                "job_promote", now=instant_text(now), limit=limit
            )
            self._misfits.set_aside(starmap(Misfit, strayed), now=now)
            if promoted or not strayed:
                break
        return int(promoted)

    def reclaim(
        self,
        decide: DecideOrphan,
        *,
        silent_since: datetime,
        limit: int,
        now: datetime | None = None,
    ) -> list[tuple[OrphanedJob, AttemptOutcome]]:
        if limit < 1:
            return []
        found = self._gateway.run("job_orphans", since=micros(silent_since), limit=limit)
        orphans: list[tuple[OrphanedJob, str]] = []
        damaged: list[Misfit] = []
        for identity, row, beat in zip(found[::3], found[1::3], found[2::3], strict=True):
            held = row is not None and _held(identity, row)
            if held:
                orphans.append((held, beat.decode()))
            else:
                damaged.append(Misfit(identity, row))
        self._misfits.set_aside(damaged, now=now)
        # All are decided before the first write: a decision that raises leaves nothing behind.
        ended = [(orphan, decide(orphan)) for orphan, _ in orphans]
        if not ended:
            return []
        verdicts = self._gateway.run(
            "job_reclaim",
            now=instant_text(now),
            outcomes=pack([outcome_record(outcome) for _, outcome in ended]),
            beats=pack([beat for _, beat in orphans]),
        )
        return [
            end
            for end, word in zip(ended, words(verdicts), strict=True)
            if word == FinishVerdict.RECORDED
        ]

    def delete(self, job_id: JobId, *, now: datetime | None = None) -> DeleteVerdict:
        reply = self._gateway.run(
            "job_delete", id=job_id.hex, now=instant_text(now), reason=failure.DELETE
        )
        word = reply.decode()
        if word == "damaged":
            raise StoreInvariantError(
                f"job {job_id} has a damaged row in {self._gateway.key('rows')!r} and was not"
                " deleted: a hand edited it; remove its field there",
                job_id=job_id,
            )
        return DeleteVerdict(word)

    def remove_old(
        self,
        state: JobState,
        *,
        older_than_seconds: float,
        limit: int,
        now: datetime | None = None,
    ) -> int:
        if state not in FINISHED or limit < 1:
            return 0
        passed, strayed = self._gateway.run(
            "job_remove_old",
            state=state.value,
            now=instant_text(now),
            age=span(older_than_seconds),
            limit=limit,
        )
        self._misfits.set_aside(starmap(Misfit, strayed), now=now)
        return int(passed)

    def get(self, job_id: JobId) -> Job | None:
        found = self._gateway.run("job_get", id=job_id.hex)
        if not found:
            return None
        row, payload, beat, result, *history = found
        return Row(job_id.hex.encode(), row).whole(payload, beat, result, history)

    def counts(self) -> Mapping[JobState, int]:
        states = list(JobState)
        found = self._gateway.command("HMGET", "counters", *(f"s:{state}" for state in states))
        counted = {}
        for state, stored in zip(states, found, strict=True):
            number = self._number(f"s:{state}".encode(), stored, "counted by the index")
            counted[state] = self._count_by_index(state) if number is None else number
        return counted

    def _count_by_index(self, state: JobState) -> int:
        start = f"s\0{state}\0"
        return int(self._gateway.command("ZLEXCOUNT", "index", f"[{start}", f"({start}g"))

    def queue_depths(self) -> Mapping[str, int]:
        found = pairs(self._gateway.command("HGETALL", "counters"))
        depths = {}
        for field, stored in found.items():
            if field.startswith(b"q:"):
                number = self._number(field, stored, "left out")
                depths[field[2:].decode(errors="backslashreplace")] = number
        return {queue: number for queue, number in depths.items() if number is not None}

    def _number(self, field: bytes, stored: bytes | None, instead: str) -> int | None:
        """Return a counter, 0 where there is none, or None for what no script of ours wrote."""
        if stored is None or stored.isdigit():
            return int(stored or 0)
        self._once.warn(
            f"counter {field.decode(errors='backslashreplace')!r} in"
            f" {self._gateway.key('counters')!r} is no count: {stored!r}; {instead}"
        )
        return None

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
            gone = []
            for identity, row in zip(found[::2], found[1::2], strict=True):
                if row is None:
                    gone.append(Misfit(identity, None, task=task))
                elif (summary := self._summary(identity, row)) is not None:
                    listed.append(summary)
            self._misfits.set_aside(gone, now=None)
            if not before:
                break
        return listed[:limit]

    def _summary(self, identity: bytes, row: bytes) -> JobSummary | None:
        """Return the job, or None for one that cannot be read: all others are listed."""
        try:
            return Row(identity, row).summary()
        except StoreInvariantError as error:
            self._once.warn(f"left out of a listing: {error}")
            return None


def _held(identity: bytes, row: bytes) -> OrphanedJob | None:
    """Return the job when its row says, and can say, that somebody holds it."""
    try:
        stored = Row(identity, row)
        return stored.orphaned() if stored.summary().state is JobState.PROCESSING else None
    except StoreInvariantError:
        return None


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
