"""What was committed, and in which order: read from the gates, never from revisions.

The driver opens one gate at a time, so the place of a commit's gate in the history is its place
in the order of commits, and a statement sees what was committed before its own gate was opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from tests.races.driver import Step
from tests.races.stages import HANDLERS, PUMP
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import FlipOutcome, RegisterOutcome

_DEFINES = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) \S*threadmill_cron_tasks\b")
_ACCEPTS = re.compile(
    r"INSERT(?: OR REPLACE)? INTO \S*threadmill_cron_nudges\b.*FROM \S*threadmill_cron_tasks",
    re.DOTALL,
)
_COLUMNS = re.compile(r"INSERT INTO \S+ \(([^)]+)\) VALUES \(")
_CREATES = re.compile(r"INSERT INTO \S*threadmill_jobs\b")
_CLEARS = re.compile(r"DELETE FROM \S*threadmill_cron_nudges\b")

BEFORE = -1  # the place of what the scene had
AFTER = 10**9  # the place of what the drain does


class What(StrEnum):
    REGISTERED = "registered"
    EDITED = "edited"
    PAUSED = "paused"
    RESUMED = "resumed"
    DELETED = "deleted"
    NUDGED = "nudged"
    CREATED = "created"  # a job


@dataclass(frozen=True, slots=True)
class Fact:
    """One committed change; `seen` is the place of the snapshot that it was decided on."""

    what: What
    actor: int
    seen: float
    committed: float = BEFORE
    handler: str | None = None
    job: UUID | None = None
    task: str | None = None
    origin: str | None = None
    cleared: float = BEFORE  # a flip's or a tick's: the snapshot of its deletion of nudges


@dataclass(frozen=True, slots=True)
class Registration:
    """The pump as one place of the history sees it."""

    epoch: float  # the place where it was registered
    enabled: bool
    handler: str


class Facts:
    """Everything that was committed, in the order of the commits."""

    def __init__(self, found: Iterable[Fact]) -> None:
        self.all = sorted(found, key=lambda fact: fact.committed)

    def of(self, *kinds: What) -> list[Fact]:
        return [fact for fact in self.all if fact.what in kinds]

    def registration(self, place: float) -> Registration | None:
        """The pump for a snapshot taken at `place`."""
        found: Registration | None = None
        for fact in self.all:
            if fact.committed >= place:
                break
            if fact.what is What.REGISTERED:
                found = Registration(fact.committed, enabled=True, handler=fact.handler or "")
            elif fact.what is What.DELETED:
                found = None
            elif found is not None and fact.what is What.EDITED:
                found = replace(found, handler=fact.handler or "")
            elif found is not None and fact.what in {What.PAUSED, What.RESUMED}:
                found = replace(found, enabled=fact.what is What.RESUMED)
        return found

    def pause_end(self, place: float) -> float:
        """The snapshot that ended the last pause before `place`."""
        ends = [f.cleared for f in self.of(What.RESUMED) if f.committed < place]
        return max(ends, default=BEFORE - 1)


def scene(nudges: int) -> list[Fact]:
    """What is committed before a schedule begins."""
    registered = Fact(What.REGISTERED, BEFORE, BEFORE - 1, BEFORE - 1, HANDLERS[0])
    return [registered, *[Fact(What.NUDGED, BEFORE, BEFORE, BEFORE)] * nudges]


@dataclass
class _Open:
    """The transaction of one actor so far."""

    began: int | None = None
    facts: list[Fact] = field(default_factory=list)
    cleared: float | None = None  # the snapshot of its deletion of nudges
    savepoints: list[int] = field(default_factory=list)  # how many facts there were at each

    def savepoint(self, statement: str) -> None:
        """Begin or end the innermost savepoint; a rollback takes its facts away."""
        if statement.startswith("SAVEPOINT"):
            self.savepoints.append(len(self.facts))
            return
        kept = self.savepoints.pop()
        if statement.startswith("ROLLBACK"):
            del self.facts[kept:]


def read(history: Sequence[Step], repeatable: frozenset[int], nudges: int) -> Facts:
    """Read the facts of a history.

    Args:
        repeatable: actors whose transaction sees what its first statement saw.
        nudges: how many were pending before.
    """
    found = scene(nudges)
    transactions: dict[int, _Open] = {}
    for step in history:
        current = transactions.setdefault(step.actor, _Open())
        if step.kind == "call":
            found += [
                replace(f, seen=step.place, committed=step.place, cleared=step.place)
                for f in _called(step)
            ]
        elif step.kind == "statement":
            if current.began is None:
                current.began = step.seq
            seen = current.began if step.actor in repeatable else step.seq
            if _CLEARS.search(step.text) and _binds(step).get("name", PUMP) == PUMP:
                current.cleared = step.seq
            said = list(_said(step, seen))
            if "SAVEPOINT" in step.text[:30]:
                current.savepoint(step.text)
            elif step.alone:
                found += [_committed(fact, step.place, current.cleared) for fact in said]
                transactions[step.actor] = _Open()
            else:
                current.facts += said
        else:
            if step.kind == "commit":
                found += [_committed(fact, step.seq, current.cleared) for fact in current.facts]
            transactions[step.actor] = _Open()
    return Facts(found)


def _committed(fact: Fact, place: float, cleared: float | None) -> Fact:
    if cleared is None:  # whoever deletes nothing has ended or begun something all the same
        cleared = fact.seen if fact.what is What.CREATED else place
    return replace(fact, committed=place, cleared=cleared)


def _binds(step: Step) -> dict[str, Any]:
    if isinstance(step.binds, dict):
        return step.binds
    if isinstance(step.binds, tuple) and (inserted := _COLUMNS.search(step.text)):
        # Sent as text to a driver that counts: the first columns take one bind each.
        return dict(zip(inserted[1].split(", "), step.binds, strict=False))
    return {}


def accepts(step: Step) -> bool:
    """Whether `step` asks for the acceptance of a nudge; a compacted one has no source."""
    return bool(_ACCEPTS.search(step.text))


def _said(step: Step, seen: float) -> Iterator[Fact]:
    """The facts of one statement, should its transaction commit."""
    binds = _binds(step)
    if step.count == 0:
        return
    defines = _DEFINES.search(step.text)
    if defines is not None:
        handler = binds.get("handler")
        if defines[1] == "INSERT INTO":
            yield Fact(What.REGISTERED, step.actor, seen, handler=handler)
        elif defines[1] == "DELETE FROM":
            yield Fact(What.DELETED, step.actor, seen)
        elif handler is not None:
            yield Fact(What.EDITED, step.actor, seen, handler=handler)
        elif "wish" in binds:
            what = What.RESUMED if binds["wish"] else What.PAUSED
            yield Fact(what, step.actor, seen)
    elif accepts(step):
        yield Fact(What.NUDGED, step.actor, seen)
    elif _CREATES.search(step.text):
        for job in json.loads(binds["rows"]) if "rows" in binds else [binds]:
            yield _created(step, seen, job)


def _created(step: Step, seen: float, job: Any) -> Fact:
    return Fact(
        What.CREATED,
        step.actor,
        seen,
        handler=job["handler"],
        job=UUID(str(job["id"])),
        task=job["cron_task_name"],
        origin=job["cron_origin"],
    )


def _called(step: Step) -> Iterator[Fact]:
    """The facts of one call of a store, which is one atomic step."""
    operation, result, actor, seen = step.text, step.result, step.actor, step.seq
    if operation == "recurring.register" and result is not None:
        created = result is RegisterOutcome.CREATED
        what = What.REGISTERED if created else What.EDITED
        yield Fact(what, actor, seen, handler=step.binds[0][0].handler)
    elif operation == "recurring.set_enabled" and result is FlipOutcome.CHANGED:
        what = What.RESUMED if step.binds[1]["enabled"] else What.PAUSED
        yield Fact(what, actor, seen)
    elif operation == "recurring.delete" and result:
        yield Fact(What.DELETED, actor, seen)
    elif operation == "recurring.request_cron_nudge" and result is not None:
        if result.verdict is NudgeVerdict.ACCEPTED:
            yield Fact(What.NUDGED, actor, seen)
    elif operation == "jobs.insert":
        yield from (_job(step, job) for job in step.binds[0][0])
    elif operation == "recurring.trigger" and result is not None:
        yield _job(step, result)
    elif operation == "recurring.materialize" and result is not None:
        yield from (_job(step, job) for outcome in result for job in outcome.jobs)


def _job(step: Step, job: Any) -> Fact:
    return Fact(
        What.CREATED,
        step.actor,
        step.seq,
        handler=job.handler,
        job=job.id,
        task=job.cron_task_name,
        origin=job.cron_origin,
    )


def later(jobs: Iterable[tuple[UUID, str, str | None, str | None]]) -> list[Fact]:
    """Jobs that the drain has made: (id, handler, task, origin)."""
    return [
        Fact(What.CREATED, BEFORE, AFTER, AFTER + 1, handler, job, task, origin, AFTER)
        for job, handler, task, origin in jobs
        if task in {PUMP, None}
    ]
