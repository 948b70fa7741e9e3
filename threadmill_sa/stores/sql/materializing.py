"""Turning fires and nudges into jobs: one transaction, in the one right order of statements."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import Any

from sqlalchemy.engine import Connection

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.spi.recurring import (
    NudgeAction,
    Plan,
    TaskOutcome,
    TaskPlan,
    TaskReading,
    TickResult,
)
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.prepared import Prepared
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import nudges as nudge_statements
from threadmill_sa.stores.sql.statements import recurring as statements
from threadmill_sa.stores.sql.unit import Database
from threadmill_sa.stores.sql.writing import ProducerWrites

_log = logging.getLogger(__name__)


class Materializing:
    """The commit of a tick.

    1. Lock the state rows, sorted, this table alone.
    2. Read definitions, state, unfinished jobs and nudges in a later statement: its snapshot is
       younger than the locks, so no edit, flip or finish is missed.
    3. Plan, purely.
    4. Delete the visible nudges, insert the jobs, write the states, commit.

    For one nudged task alone PostgreSQL does without 1: it reads, plans, and does 4 in a single
    statement that writes nothing unless the task is still the one that was read. If it is not,
    the lock is taken. Source: docs/decisions/0008-round-trips-of-a-wake.md.

    A crash at any point leaves all of it or nothing. A nudge that is not committed yet is not
    seen by the delete and survives for the next tick; one that is deleted was committed before
    the job's transaction, so the job's run comes after it.
    """

    def __init__(
        self, database: Database, schema: Schema, dialect: SqlDialect, writes: ProducerWrites
    ) -> None:
        self._told: set[str] = set()  # damaged ones whose fault is logged already
        self._database = database
        self._dialect = dialect
        self._writes = writes
        self._locks = {
            (wait, one): statements.lock_states(schema, dialect, wait=wait, one=one)
            for wait, one in product((False, True), repeat=2)
        }
        self._existing = statements.existing_states(schema, dialect)
        self._reads = {
            one: statements.read_tasks(schema, dialect, one=one) for one in (False, True)
        }
        self._write_state = statements.write_state(schema)
        self._consume = nudge_statements.consume_nudges(schema)
        self._consume_and_tell = nudge_statements.consume_and_tell(schema)
        self._insert_compacted = nudge_statements.insert_compacted(schema, dialect)
        if dialect.versions_rows:
            self._read_versioned = Prepared(statements.read_versioned(schema, dialect))
            self._commit_nudged = Prepared(statements.commit_nudged(schema, dialect))

    def commit(
        self, names: Sequence[str], plan: Plan, *, wait: bool, now: datetime | None
    ) -> list[TaskOutcome]:
        if not names:
            return []
        if len(names) == 1 and not wait and self._dialect.versions_rows:
            done = self._database.write_one(
                lambda connection: self._at_once(connection, names[0], plan, now)
            )
            if done is not None:
                return [done]
        return self._database.write(
            lambda connection: self._commit(connection, names, plan, wait, now)
        )

    def _at_once(
        self, connection: Connection, name: str, plan: Plan, now: datetime | None
    ) -> TaskOutcome | None:
        """Run a nudged task, or see that it needs nothing; None when the lock is needed."""
        binds: dict[str, Any] = {"name": name, "now": self._database.instant(now)}
        found = self._read_versioned.rows(connection, binds)
        if not found:
            return None
        reading = rows.task_reading(found[0])
        planned = plan(reading)
        if planned.writes_nothing:
            return _outcome(name, planned)
        if (
            planned.nudges is not NudgeAction.CONSUME
            or planned.state is None
            or len(planned.jobs) != 1
        ):
            return None
        binds |= {"epoch": reading.task.epoch, "version": found[0].version}
        binds |= rows.new_job_values(planned.jobs[0]) | rows.state_values(planned.state)
        written = self._commit_nudged.execute(connection, binds).rowcount
        return _outcome(name, planned) if written else None

    def _commit(
        self,
        connection: Connection,
        names: Sequence[str],
        plan: Plan,
        wait: bool,  # noqa: FBT001 - private, passed on as it came
        now: datetime | None,
    ) -> list[TaskOutcome]:
        lock = self._locks[wait, len(names) == 1]
        locked = set(connection.execute(lock, self._named(names)).scalars())
        plans: dict[str, tuple[TaskReading, TaskPlan]] = {}
        faults: dict[str, str] = {}
        if locked:
            instant = {"now": self._database.instant(now)}
            read = self._reads[len(locked) == 1]
            for row in connection.execute(read, self._named(sorted(locked)) | instant):
                try:
                    reading = rows.task_reading(row)
                except StoreInvariantError as error:
                    faults[row.name] = error.message
                    continue
                plans[reading.task.name] = reading, plan(reading)
        self._tell(locked, faults)
        self._write(connection, plans, now)
        return [
            *(_outcome(name, planned) for name, (_, planned) in plans.items()),
            *(TaskOutcome(name, TickResult.BROKEN, (), wrong) for name, wrong in faults.items()),
            *self._missing(connection, set(names), locked, {*plans, *faults}),
        ]

    def _tell(self, seen: set[str], faults: Mapping[str, str]) -> None:
        """Log what is wrong with damaged tasks, once for each as long as it lasts."""
        for name in faults.keys() - self._told:
            _log.warning("%s", faults[name])
        self._told = self._told - seen | faults.keys()

    def _named(self, names: Sequence[str]) -> dict[str, Any]:
        if len(names) == 1:
            return {"name": names[0]}
        return {"names": self._dialect.list_value(names)}

    def _write(
        self,
        connection: Connection,
        plans: dict[str, tuple[TaskReading, TaskPlan]],
        now: datetime | None,
    ) -> None:
        for reading, planned in plans.values():
            if planned.nudges is NudgeAction.CONSUME:
                connection.execute(self._consume, _registration(reading))
            elif planned.nudges is NudgeAction.COMPACT:
                self._compact(connection, reading)
        jobs = [job for _, planned in plans.values() for job in planned.jobs]
        if jobs:
            self._writes.insert_jobs(connection, jobs, now=now)
        # A compaction writes the state as it is: its version is that of the nudges as well.
        states = [
            rows.state_values(planned.state or reading.state)
            for reading, planned in plans.values()
            if planned.state is not None or planned.nudges is NudgeAction.COMPACT
        ]
        if states:
            connection.execute(self._write_state, states)

    def _compact(self, connection: Connection, reading: TaskReading) -> None:
        """Replace the visible nudges by one that keeps the earliest request."""
        registration = _registration(reading)
        requested = list(connection.execute(self._consume_and_tell, registration).scalars())
        if requested:
            earliest = registration | {"requested_at": min(requested)}
            connection.execute(self._insert_compacted, earliest)

    def _missing(
        self, connection: Connection, wanted: set[str], locked: set[str], read: set[str]
    ) -> list[TaskOutcome]:
        """Tell the tasks that somebody else holds from those that are gone."""
        unread = wanted - read
        if not unread:
            return []
        names = {"names": self._dialect.list_value(sorted(unread))}
        existing = set(connection.execute(self._existing, names).scalars()) - locked
        return [
            TaskOutcome(name, TickResult.BUSY if name in existing else TickResult.UNKNOWN_TASK)
            for name in sorted(unread)
        ]


def _registration(reading: TaskReading) -> dict[str, Any]:
    return {"name": reading.task.name, "epoch": reading.task.epoch}


def _outcome(name: str, planned: TaskPlan) -> TaskOutcome:
    reason = None if planned.state is None else planned.state.broken_reason
    return TaskOutcome(name, planned.result, planned.jobs, reason)
