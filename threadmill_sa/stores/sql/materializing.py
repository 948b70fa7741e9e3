"""Turning fires and nudges into jobs: one transaction, in the one right order of statements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import Any

from sqlalchemy.engine import Connection

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
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import nudges as nudge_statements
from threadmill_sa.stores.sql.statements import recurring as statements
from threadmill_sa.stores.sql.unit import Database
from threadmill_sa.stores.sql.writing import ProducerWrites


class Materializing:
    """The commit of a tick.

    1. Lock the state rows, sorted, this table alone.
    2. Read definitions, state, unfinished jobs and nudges in a later statement: its snapshot is
       younger than the locks, so no edit, flip or finish is missed.
    3. Plan, purely.
    4. Delete the visible nudges, insert the jobs, write the states, commit.

    A crash at any point leaves all of it or nothing. A nudge that is not committed yet is not
    seen by the delete and survives for the next tick; one that is deleted was committed before
    the job's transaction, so the job's run comes after it.
    """

    def __init__(
        self, database: Database, schema: Schema, dialect: SqlDialect, writes: ProducerWrites
    ) -> None:
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
        self._commit_nudged = statements.commit_nudged(schema, dialect)

    def commit(
        self, names: Sequence[str], plan: Plan, *, wait: bool, now: datetime | None
    ) -> list[TaskOutcome]:
        if not names:
            return []
        return self._database.write(
            lambda connection: self._commit(connection, names, plan, wait, now)
        )

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
        if locked:
            instant = {"now": self._database.instant(now)}
            read = self._reads[len(locked) == 1]
            for row in connection.execute(read, self._named(sorted(locked)) | instant):
                reading = rows.task_reading(row)
                plans[reading.task.name] = reading, plan(reading)
        self._write(connection, plans, now)
        return [
            *(_outcome(name, planned) for name, (_, planned) in plans.items()),
            *self._missing(connection, set(names), locked, set(plans)),
        ]

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
        if len(plans) == 1 and self._wrote_nudged(connection, *next(iter(plans.values())), now):
            return
        for reading, planned in plans.values():
            if planned.nudges is NudgeAction.CONSUME:
                connection.execute(self._consume, _registration(reading))
            elif planned.nudges is NudgeAction.COMPACT:
                self._compact(connection, reading)
        jobs = [job for _, planned in plans.values() for job in planned.jobs]
        if jobs:
            self._writes.insert_jobs(connection.execute, jobs, now=now)
        states = [
            rows.state_values(planned.state)
            for _, planned in plans.values()
            if planned.state is not None
        ]
        if states:
            connection.execute(self._write_state, states)

    def _wrote_nudged(
        self, connection: Connection, reading: TaskReading, planned: TaskPlan, now: datetime | None
    ) -> bool:
        """Write the plan that somebody waits for, one nudged task alone, in one round trip."""
        if (
            not self._dialect.writes_together
            or planned.nudges is not NudgeAction.CONSUME
            or planned.state is None
            or len(planned.jobs) != 1
        ):
            return False
        binds = rows.new_job_values(planned.jobs[0]) | rows.state_values(planned.state)
        instant = {"now": self._database.instant(now)}
        connection.execute(self._commit_nudged, binds | _registration(reading) | instant)
        return True

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
