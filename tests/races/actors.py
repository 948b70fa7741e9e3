"""What can happen at the same time: each actor is a call or two of one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement

from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.races.stages import (
    ALL_HANDLERS,
    FINISHER,
    HANDLERS,
    MAIL,
    PUMP,
    Seat,
    Stage,
    definition,
    success,
)
from threadmill_sa.errors import JobRunningError, TaskDisabledError, UnknownTaskError
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, JobId, OrphanedJob, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import FINISHED
from threadmill_sa.testing.suite.tools import AFTER_ALL

Act = Callable[[Seat, Stage], None]


@dataclass(frozen=True)
class Kind:
    """One of the things that happen.

    Args:
        needs: what the scene must hold so that there is something to do; see `Stage.build`.
        producer: it runs in a caller's transaction, which waits for nobody and holds up nobody.
        patient: it may wait for another actor; the others may not.
    """

    name: str
    act: Act
    needs: frozenset[str] = frozenset()
    producer: bool = False
    patient: bool = False
    isolation: str | None = None

    def __str__(self) -> str:
        return self.name


def _nudge(kind: str, isolation: str | None = None) -> Act:
    def act(seat: Seat, stage: Stage) -> None:
        del stage
        engine = seat.engine
        if isolation is not None:
            engine = engine.execution_options(isolation_level=isolation)
        with Session(engine) as session:
            session.execute(text("INSERT INTO orders VALUES ('nudge')"))
            try:
                seat.tm.nudge(PUMP, session)
                seat.told.append(("accepted", kind))
            except (UnknownTaskError, TaskDisabledError) as error:
                seat.told.append(("refused", error))
            if kind == "commit":
                session.commit()
                seat.told.append(("order", 1))
            else:
                session.rollback()

    return act


def _after_commit(seat: Seat, stage: Stage) -> None:
    del stage
    with Session(seat.engine) as session:
        session.execute(text("INSERT INTO orders VALUES ('after')"))
        try:
            seat.tm.nudge(PUMP, session, mode="after_commit")
        except (UnknownTaskError, TaskDisabledError) as error:
            seat.told.append(("refused", error))
        session.commit()
        seat.told.append(("order", 1))


def _enqueue(seat: Seat, stage: Stage) -> None:
    del stage
    with Session(seat.engine) as session:
        session.execute(text("INSERT INTO orders VALUES ('mail')"))
        seat.told.append(("job", seat.tm.enqueue(MAIL, 2, session=session)))
        session.commit()
        seat.told.append(("order", 1))


def _nudge_now(seat: Seat, stage: Stage) -> None:
    del stage
    try:
        seat.tm.nudge(PUMP)
        seat.told.append(("accepted", "now"))
    except (UnknownTaskError, TaskDisabledError) as error:
        seat.told.append(("refused", error))


def _tick(seat: Seat, stage: Stage) -> None:
    del stage
    seat.told.append(("ticked", seat.tm.tick()))


def _flip(seat: Seat, stage: Stage) -> None:
    del stage
    for enabled in (False, True):
        try:
            seat.tm.set_enabled(PUMP, enabled)
        except UnknownTaskError as error:
            seat.told.append(("unknown", error))


def _delete(seat: Seat, stage: Stage) -> None:
    del stage
    try:
        seat.tm.delete_recurring(PUMP)
    except UnknownTaskError as error:
        seat.told.append(("unknown", error))


def _edit(seat: Seat, stage: Stage) -> None:
    del stage
    seat.tm.store.recurring.register(definition(HANDLERS[1]))


def _renew(seat: Seat, stage: Stage) -> None:
    _delete(seat, stage)
    seat.tm.store.recurring.register(definition(HANDLERS[2]))


def _trigger(seat: Seat, stage: Stage) -> None:
    del stage
    try:
        seat.told.append(("job", seat.tm.trigger(PUMP)))
    except UnknownTaskError as error:
        seat.told.append(("unknown", error))


def _claim(seat: Seat, stage: Stage) -> None:
    del stage
    jobs = seat.tm.store.jobs.claim(seat.node, queues=None, handlers=ALL_HANDLERS, limit=9)
    seat.told.append(("claimed", jobs))


def _finish(seat: Seat, stage: Stage) -> None:
    ends = [success(job) for job in stage.running]
    verdicts = seat.tm.store.jobs.finish(FINISHER, ends)
    seat.told.append(("ended", list(zip(ends, verdicts, strict=True))))


def _reclaim(seat: Seat, stage: Stage) -> None:
    del stage

    def decide(orphan: OrphanedJob) -> AttemptOutcome:
        return AttemptOutcome(
            orphan.id,
            orphan.attempt_token,
            OutcomeKind.RETRY,
            failure.ORPHAN,
            retry_seconds=0.0,
        )

    ended = seat.tm.store.jobs.reclaim(decide, silent_since=AFTER_ALL, limit=9)
    seat.told.append(("reclaimed", [outcome for _, outcome in ended]))


def _fold(seat: Seat, stage: Stage) -> None:
    del stage
    seat.tm.store.jobs.fold_counts(limit=1000)


def _sweep(seat: Seat, stage: Stage) -> None:
    del stage
    seat.tm.store.recurring.sweep_nudges(limit=1000)


def _promote(seat: Seat, stage: Stage) -> None:
    del stage
    seat.tm.store.jobs.promote(limit=100)


def _delete_job(seat: Seat, stage: Stage) -> None:
    for job_id in sorted(stage.scene_jobs):
        try:
            if seat.tm.delete_job(JobId(job_id)):
                seat.told.append(("taken away", job_id))
        except JobRunningError:
            pass


def _remove_old(seat: Seat, stage: Stage) -> None:
    del stage
    for state in FINISHED:
        seat.tm.store.jobs.remove_old(state, older_than_seconds=0.0, limit=100)


def _beat(seat: Seat, stage: Stage) -> None:
    node = NodeInfo(FINISHER, "host", 1, None, 1)
    held = [HeldJob(job.id, job.attempt_token) for job in stage.running]
    seat.told.append(("beaten", seat.tm.store.nodes.beat(node, held)))


def _waiting_tick(seat: Seat, stage: Stage) -> None:
    """As `run_until_idle` ticks: it waits for a task that somebody holds."""
    del stage
    seat.told.append(("ticked", seat.tm._materializer.tick(wait=True)))


def _savepoints(seat: Seat, stage: Stage) -> None:
    """One nudge in a savepoint that is kept, one in another that is rolled back."""
    del stage
    with Session(seat.engine) as session:
        session.execute(text("INSERT INTO orders VALUES ('savepoints')"))
        for keep in (True, False):
            savepoint = session.begin_nested()
            try:
                seat.tm.nudge(PUMP, session)
            except (UnknownTaskError, TaskDisabledError) as error:
                seat.told.append(("refused", error))
            if keep:
                savepoint.commit()
            else:
                savepoint.rollback()
        session.commit()
        seat.told.append(("order", 1))


REPEATABLE, SERIALIZABLE = "REPEATABLE READ", "SERIALIZABLE"
_NUDGED, _RUNNING = frozenset({"nudged"}), frozenset({"running"})

JOINED_NUDGE = Kind("nudge+commit", _nudge("commit"), producer=True)
TICK = Kind("tick", _tick, _NUDGED)
FLIP = Kind("disable+enable", _flip, patient=True)
DELETE = Kind("delete", _delete, patient=True)
EDIT = Kind("edit", _edit, patient=True)
RENEW = Kind("renew", _renew, patient=True)
TRIGGER = Kind("trigger", _trigger, patient=True)

CALLERS = (
    JOINED_NUDGE,
    Kind("nudge+rollback", _nudge("rollback"), producer=True),
    Kind("nudge+commit-rr", _nudge("commit", REPEATABLE), producer=True, isolation=REPEATABLE),
    Kind("nudge+rollback-rr", _nudge("rollback", REPEATABLE), producer=True, isolation=REPEATABLE),
    Kind("enqueue", _enqueue, producer=True),
)
OTHERS = (
    Kind("nudge-now", _nudge_now, producer=True),
    TICK,
    FLIP,
    DELETE,
    EDIT,
    RENEW,
    TRIGGER,
    Kind("claim", _claim, frozenset({"mail"})),
    Kind("finish", _finish, _RUNNING, patient=True),
    Kind("reclaim", _reclaim, _RUNNING),
)
# Not of the everyday dozen, hence paired with it in the long run alone.
FURTHER = (
    Kind("fold", _fold, patient=True),
    Kind("sweep", _sweep, patient=True),
    Kind("promote", _promote),
    Kind("delete-job", _delete_job, frozenset({"mail"}), patient=True),
    Kind("remove-old", _remove_old),
    Kind("beat", _beat, _RUNNING, patient=True),
    Kind("waiting-tick", _waiting_tick, _NUDGED, patient=True),
    Kind("nudge+savepoints", _savepoints, producer=True),
    Kind("nudge-after-commit", _after_commit, producer=True),
    Kind(
        "nudge+commit-serializable",
        _nudge("commit", SERIALIZABLE),
        producer=True,
        isolation=SERIALIZABLE,
    ),
)
KINDS = (*CALLERS, *OTHERS)

PAIRS = tuple(combinations_with_replacement(KINDS, 2))


def named(name: str) -> Kind:
    return next(kind for kind in (*KINDS, *FURTHER) if kind.name == name)
