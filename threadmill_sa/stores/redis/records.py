"""The role `NudgeRecords` on Redis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from threadmill_sa.model.job import JobId
from threadmill_sa.model.records import (
    REFUSED_EPOCH,
    RecordedNudge,
    RecordedRun,
    RecordsAudit,
    SnapshotEvent,
)
from threadmill_sa.stores.redis.gateway import Gateway, instant_text, pack
from threadmill_sa.stores.redis.hashes import job_id, moment
from threadmill_sa.stores.redis.jobs import pairs


@dataclass(frozen=True, slots=True)
class _Nudge:
    revision: int  # one script at a time: their order is that of the commits
    epoch: int
    view: RecordedNudge


@dataclass(frozen=True, slots=True)
class _Snapshot:
    task: str
    seen: int  # the last revision drawn before
    run: RecordedRun | None


class RedisRecords:
    """Records beside the tasks, written by the scripts that change these; judged here."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def expect(self, names: Sequence[str], *, now: datetime | None = None) -> Mapping[str, int]:
        if not names:
            return {}
        found = self._gateway.run("nudge_expect", now=instant_text(now), names=pack(list(names)))
        return {
            name.decode(): promise for name, promise in zip(found[::2], found[1::2], strict=True)
        }

    def refuse(self, name: str, promise: int) -> None:
        self._gateway.run("nudge_refuse", name=name, promise=promise, epoch=REFUSED_EPOCH)

    def record_run(
        self, task: str, job_id: JobId, attempt: int, *, now: datetime | None = None
    ) -> None:
        self._gateway.run(
            "run_record", task=task, job=job_id.hex, attempt=attempt, now=instant_text(now)
        )

    def audit(self, tasks: Sequence[str] | None, *, examples: int) -> RecordsAudit:
        recorded, noted, gates = self._gateway.run("records_read")
        wanted = None if tasks is None else set(tasks)
        nudges = [
            each
            for each in sorted(_nudges(recorded), key=lambda each: each.revision)
            if wanted is None or each.view.task in wanted
        ]
        snapshots = [
            each for each in map(_snapshot, noted) if wanted is None or each.task in wanted
        ]
        runs = [each.run for each in snapshots if each.run is not None]
        ran, dropped = _latest(snapshots, run=True), _latest(snapshots, run=False)
        living = _living(gates)
        pending = [each for each in nudges if each.revision > ran.get(each.view.task, -1)]
        uncovered = [
            each.view
            for each in pending
            if each.revision > dropped.get(each.view.task, -1)
            and living.get(each.view.task) == each.epoch
        ]
        shown = tuple(uncovered[:examples])
        return RecordsAudit(
            nudges=len(nudges),
            runs=len(runs),
            covered=len(nudges) - len(pending),
            excused=len(pending) - len(uncovered),
            examples=shown,
            latest_runs=_newest(runs, {each.task for each in shown}, examples),
        )

    def clear(self) -> int:
        return int(self._gateway.run("records_clear"))


def _nudges(recorded: Any) -> Iterable[_Nudge]:
    for field, packed in pairs(recorded).items():
        task, epoch, at, promised = msgspec.msgpack.decode(packed)
        revision = int(field)
        view = RecordedNudge(task, None if promised else revision, None, moment(at))
        yield _Nudge(revision, int(epoch), view)


def _snapshot(packed: bytes) -> _Snapshot:
    task, event, seen, at, job, attempt = msgspec.msgpack.decode(packed)
    run = None
    if event == SnapshotEvent.RUN:
        run = RecordedRun(task, job_id(job), attempt, seen, moment(at))
    return _Snapshot(task, int(seen), run)


def _living(gates: Sequence[bytes | None]) -> dict[str, int]:
    """The epochs of the enabled ones, by task."""
    living: dict[str, int] = {}
    for name, gate in zip(gates[::2], gates[1::2], strict=True):
        if name is not None and gate is not None and gate.startswith(b"1:"):
            living[name.decode()] = int(gate[2:])
    return living


def _latest(snapshots: Sequence[_Snapshot], *, run: bool) -> dict[str, int]:
    """The highest revision seen, by task: what one snapshot shows every later one shows."""
    return {each.task: each.seen for each in snapshots if (each.run is not None) == run}


def _newest(runs: Sequence[RecordedRun], tasks: set[str], count: int) -> tuple[RecordedRun, ...]:
    newest: list[RecordedRun] = []
    for task in sorted(tasks):
        of_task = [run for run in runs if run.task == task]
        newest += reversed(of_task[-count:])
    return tuple(newest)
