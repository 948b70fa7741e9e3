"""The role that keeps jobs, on SQL."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.engine import Connection

from threadmill_sa.clock import SystemClock
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import failure, limits
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
    OutcomeKind,
    delete_verdict,
)
from threadmill_sa.model.state import FINISHED, JobState
from threadmill_sa.spi.jobs import DecideOrphan
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import SqlDialect, record_text
from threadmill_sa.stores.sql.prepared import Prepared
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import jobs as statements
from threadmill_sa.stores.sql.statements import retention
from threadmill_sa.stores.sql.unit import Database
from threadmill_sa.stores.sql.writing import ProducerWrites

T = TypeVar("T")
Damaged = dict[Any, str]  # the stored id, whatever it is, and what is wrong

_log = logging.getLogger(__name__)


class SqlJobs:
    """`spi.Jobs` in transactions of our own."""

    def __init__(
        self, database: Database, schema: Schema, dialect: SqlDialect, writes: ProducerWrites
    ) -> None:
        self._database = database
        self._dialect = dialect
        self._writes = writes
        self._claim_queue = Prepared(statements.claim_ready(schema, dialect, one_queue=True))
        self._claim_any = Prepared(statements.claim_ready(schema, dialect, one_queue=False))
        self._finish = statements.finish_attempts(schema, dialect)
        self._history = statements.insert_history(schema)
        self._quarantine = statements.quarantine_damaged(schema, dialect)
        self._promote = statements.promote_due(schema, dialect)
        self._orphans = statements.lock_orphans(schema)
        self._lock_job = retention.lock_job(schema)
        self._delete = retention.delete_job(schema, dialect)
        self._remove_old = {
            state: retention.remove_old(schema, dialect, state) for state in FINISHED
        }
        self._remove_history = retention.remove_history(schema, dialect)
        self._get = statements.get_job(schema)
        self._get_history = statements.get_history(schema)
        self._lists = {
            (state, queue, task): statements.list_jobs(schema, state=state, queue=queue, task=task)
            for state, queue, task in product((False, True), repeat=3)
        }
        self._count_states = statements.count_states(schema)
        self._count_queues = statements.count_queues(schema)
        self._take_deltas = statements.take_deltas(schema, dialect)
        self._fold_state = statements.fold_state_count(schema, dialect)
        self._fold_queue = statements.fold_queue_count(schema, dialect)

    def insert(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> None:
        if not jobs:
            return
        one = len(jobs) <= limits.INSERT_BATCH_MAX
        write = self._database.write_one if one else self._database.write
        write(lambda connection: self._writes.insert_jobs(connection, jobs, now=now))

    def claim(
        self,
        node_id: NodeId,
        *,
        queues: Sequence[str] | None,
        handlers: Sequence[str],
        limit: int,
        now: datetime | None = None,
    ) -> list[ClaimedJob]:
        limit = min(limit, limits.CLAIM_BATCH_MAX)
        if limit <= 0 or not handlers or (queues is not None and not queues):
            return []
        parameters = {
            "node_id": node_id,
            "handlers": self._dialect.list_value(handlers),
            "now": self._database.instant(now),
            "clock": SystemClock().now(),
        }

        def work(connection: Connection) -> tuple[list[ClaimedJob], Damaged]:
            claimed: list[ClaimedJob] = []
            damaged: Damaged = {}
            for queue in queues or (None,):
                statement = self._claim_any if queue is None else self._claim_queue
                wanted = parameters | {"from_queue": queue, "limit": limit - len(claimed)}
                found = _sound(rows.claimed_job, statement.rows(connection, wanted), damaged)
                # RETURNING has no order of its own.
                claimed += sorted(found, key=lambda job: (-job.priority, job.id))
                if len(claimed) >= limit:
                    break
            return claimed, damaged

        # In one statement there is nothing between two claims that could fail.
        one = queues is None or len(queues) == 1
        while True:  # Each turn takes at least one damaged job away for good.
            claimed, damaged = (self._database.write_one if one else self._database.write)(work)
            self._set_aside(damaged, now)
            if claimed or not damaged:
                return claimed

    def _set_aside(self, damaged: Damaged, now: datetime | None) -> None:
        """Quarantine held jobs whose rows a hand has damaged, so that all others go on."""

        def work(connection: Connection) -> None:
            instant = {"now": self._database.instant(now)}
            for key, wrong in damaged.items():
                stored = {"key": key.hex if isinstance(key, UUID) else key}
                row = connection.execute(self._quarantine, stored | instant).one_or_none()
                if row is not None and isinstance(row.id, UUID):
                    connection.execute(self._history, [_quarantining(row, wrong)])

        if damaged:
            self._database.write(work)
        for key, wrong in damaged.items():
            _log.warning("job %s is quarantined: %s", key, wrong)

    def finish(
        self, node_id: NodeId, outcomes: Sequence[AttemptOutcome], *, now: datetime | None = None
    ) -> list[FinishVerdict]:
        if not outcomes:
            return []
        silent = all(outcome.kind is OutcomeKind.SUCCEEDED for outcome in outcomes)
        write = self._database.write_one if silent else self._database.write  # no history, or some
        recorded = write(lambda connection: self._end_attempts(connection, node_id, outcomes, now))
        return [
            FinishVerdict.RECORDED if number in recorded else FinishVerdict.LOST
            for number in range(len(outcomes))
        ]

    def _end_attempts(
        self,
        connection: Connection,
        node_id: NodeId | None,
        outcomes: Sequence[AttemptOutcome],
        now: datetime | None,
    ) -> set[int]:
        """End attempts and append what the job rows can no longer tell.

        A job may be ended twice in one batch: by an attempt that was lost and by its newest, or
        twice by the same, of which the first counts.
        Returns: the positions of the outcomes that were recorded.
        """
        firsts: dict[tuple[JobId, int], int] = {}
        for number, outcome in enumerate(outcomes):
            firsts.setdefault((outcome.job_id, outcome.attempt_token), number)
        # By id, as a heartbeat's: the order in which a batch locks its rows is that of its keys.
        sent = sorted(
            (outcomes[number] for number in firsts.values()), key=lambda each: each.job_id
        )
        packed = record_text(self._dialect, [rows.outcome_record(each) for each in sent])
        ended = connection.execute(
            self._finish,
            {
                "ids": self._dialect.list_value(each.job_id for each in sent),
                "rows": packed,
                "node_id": node_id,
                "now": self._database.instant(now),
            },
        )
        recorded = {firsts[JobId(row.id), row.attempt_token]: row for row in ended}
        history = [
            entry
            for number, row in sorted(recorded.items())
            for entry in _history(outcomes[number], row)
        ]
        if history:
            connection.execute(self._history, history)
        return set(recorded)

    def promote(self, *, limit: int, now: datetime | None = None) -> int:
        parameters = {"limit": limit, "now": self._database.instant(now)}
        return self._database.write_one(
            lambda connection: connection.execute(self._promote, parameters).rowcount
        )

    def reclaim(
        self,
        decide: DecideOrphan,
        *,
        silent_since: datetime,
        limit: int,
        now: datetime | None = None,
    ) -> list[tuple[OrphanedJob, AttemptOutcome]]:
        parameters = {"silent_since": silent_since, "limit": limit}
        damaged: Damaged = {}

        def work(connection: Connection) -> list[tuple[OrphanedJob, AttemptOutcome]]:
            damaged.clear()
            found = connection.execute(self._orphans, parameters)
            orphans = _sound(rows.orphaned_job, found, damaged)
            decided = [(orphan, decide(orphan)) for orphan in orphans]
            if decided:
                outcomes = [outcome for _, outcome in decided]
                recorded = self._end_attempts(connection, None, outcomes, now)
                if len(recorded) != len(decided):
                    raise StoreInvariantError(
                        f"{len(decided) - len(recorded)} locked orphans changed under their lock",
                        ids=tuple(orphan.id for orphan, _ in decided),
                    )
            return decided

        decided = self._database.write(work)
        self._set_aside(damaged, now)
        return decided

    def delete(self, job_id: JobId, *, now: datetime | None = None) -> DeleteVerdict:
        parameters = {"job_id": job_id, "now": self._database.instant(now)}

        def work(connection: Connection) -> DeleteVerdict:
            state = connection.execute(self._lock_job, parameters).scalar_one_or_none()
            verdict = delete_verdict(None if state is None else JobState(state))
            if verdict is DeleteVerdict.DELETED:
                row = connection.execute(self._delete, parameters).one()
                connection.execute(self._history, [_deletion(row)])
            return verdict

        return self._database.write(work)

    def remove_old(
        self,
        state: JobState,
        *,
        older_than_seconds: float,
        limit: int,
        now: datetime | None = None,
    ) -> int:
        statement = self._remove_old.get(state)
        if statement is None or limit < 1:
            return 0
        parameters = {
            "older_than_seconds": older_than_seconds,
            "limit": limit,
            "now": self._database.instant(now),
        }

        def work(connection: Connection) -> int:
            removed = connection.execute(statement, parameters).scalars().all()
            if removed:
                # What is no id was written by a hand, and has no history.
                ids = [{"id": each} for each in removed if isinstance(each, UUID)]
                gone = record_text(self._dialect, ids)
                connection.execute(self._remove_history, {"rows": gone})
            return len(removed)

        return self._database.write(work)

    def get(self, job_id: JobId) -> Job | None:
        def work(connection: Connection) -> Job | None:
            row = connection.execute(self._get, {"id": job_id}).one_or_none()
            if row is None:
                return None
            return rows.whole_job(row, connection.execute(self._get_history, {"id": job_id}))

        return self._database.read(work)

    def counts(self) -> Mapping[JobState, int]:
        found = self._database.read_one(
            lambda connection: {
                row.state: int(row.n) for row in connection.execute(self._count_states)
            }
        )
        return {state: found.get(state.value, 0) for state in JobState}

    def queue_depths(self) -> Mapping[str, int]:
        return self._database.read_one(
            lambda connection: {
                row.queue: int(row.n) for row in connection.execute(self._count_queues)
            }
        )

    def fold_counts(self, *, limit: int) -> int:
        def work(connection: Connection) -> int:
            taken = connection.execute(self._take_deltas, {"limit": limit}).all()
            states: Counter[str] = Counter()
            queues: Counter[str] = Counter()
            for row in taken:
                states[row.state] += row.n
                if row.state == JobState.ENQUEUED:
                    queues[row.queue] += row.n
            # Sorted, so that two foldings wait for each other and never deadlock.
            for state, n in sorted(states.items()):
                connection.execute(self._fold_state, {"state": state, "n": n})
            for queue, n in sorted(queues.items()):
                connection.execute(self._fold_queue, {"queue": queue, "n": n})
            return len(taken)

        return self._database.write(work)

    def list(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = limits.LIST_DEFAULT,
    ) -> list[JobSummary]:
        statement = self._lists[state is not None, queue is not None, task is not None]
        parameters: dict[str, Any] = {"queue": queue, "task": task, "limit": limit}
        parameters["state"] = None if state is None else state.value
        return self._database.read_one(
            lambda connection: list(
                rows.readable(rows.job_summary, connection.execute(statement, parameters))
            )
        )


def _sound(read: Callable[[Any], T], found: Iterable[Any], damaged: Damaged) -> list[T]:
    """Return what can be read; what cannot is added to `damaged`."""
    sound = []
    for row in found:
        try:
            sound.append(read(row))
        except StoreInvariantError as error:
            damaged[row.id] = error.message
    return sound


def _quarantining(row: Any, wrong: str) -> dict[str, Any]:
    return {
        "job_id": row.id,
        "state": JobState.QUARANTINED.value,
        "at": row.state_at,
        "attempt": row.attempt if isinstance(row.attempt, int) else 0,
        "reason": failure.QUARANTINE,
        "message": wrong,
    }


def _deletion(row: Any) -> dict[str, Any]:
    return {
        "job_id": row.id,
        "state": JobState.DELETED.value,
        "at": row.state_at,
        "attempt": row.attempt,
        "reason": failure.DELETE,
        "message": None,
    }


def _history(outcome: AttemptOutcome, row: Any) -> list[dict[str, Any]]:
    """Return the moves that the job row cannot tell later; a success has none."""
    given_back = int(outcome.kind is OutcomeKind.RELEASED)
    entry = {
        "job_id": row.id,
        "at": row.state_at,
        "attempt": row.attempt + given_back,
        "reason": outcome.reason,
        "message": outcome.message,
    }
    failed = entry | {"state": JobState.FAILED.value}
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return []
        case OutcomeKind.RETRY:
            again = {"state": JobState.SCHEDULED.value, "reason": failure.RETRY, "message": None}
            return [failed, entry | again]
        case OutcomeKind.RELEASED:
            again = {"state": JobState.ENQUEUED.value, "message": None}
            return [failed, entry | again]
        case OutcomeKind.QUARANTINED:
            return [entry | {"state": JobState.QUARANTINED.value}]
        case OutcomeKind.FAILED:
            return [failed]
