"""The role that keeps recurring tasks, on SQL.

Every lifecycle call is one READ COMMITTED transaction that locks the state row first, and no
second task's. The order of statements is the protocol: see docs/decisions/0001-ledger-rule.md
and docs/decisions/0006-order-of-statements.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from threadmill_sa.errors import StoreInvariantError, StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.nudge import ClearOutcome, NudgeOutcome, NudgeVerdict
from threadmill_sa.model.records import SnapshotEvent
from threadmill_sa.model.recurring import (
    CronTask,
    CronTaskView,
    FlipOutcome,
    RegisterOutcome,
)
from threadmill_sa.model.timing import edited_state, first_state, flipped_state
from threadmill_sa.spi.recurring import MakeInstance, Plan, TaskOutcome
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.materializing import Materializing
from threadmill_sa.stores.sql.prepared import Prepared
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import nudges as nudge_statements
from threadmill_sa.stores.sql.statements import records as record_statements
from threadmill_sa.stores.sql.statements import recurring as statements
from threadmill_sa.stores.sql.unit import Database
from threadmill_sa.stores.sql.writing import ProducerWrites

_log = logging.getLogger(__name__)


class SqlRecurring:
    """`spi.Recurring` in transactions of our own."""

    def __init__(
        self, database: Database, schema: Schema, dialect: SqlDialect, writes: ProducerWrites
    ) -> None:
        self._database = database
        self._dialect = dialect
        self._writes = writes
        self._materializing = Materializing(database, schema, dialect, writes)
        self._lock = statements.lock_state(schema)
        self._now = statements.read_now(dialect)
        self._definition = statements.read_definition(schema)
        self._add_state = statements.add_state(schema, dialect)
        self._write_state = statements.write_state(schema)
        self._draw_epoch = statements.draw_epoch(schema, dialect)
        self._insert_definition = statements.insert_definition(schema)
        self._edit_definition = statements.edit_definition(schema)
        self._flip = statements.flip_enabled(schema)
        self._delete_definition = statements.delete_definition(schema)
        self._delete_state = statements.delete_state(schema)
        self._delete_nudges = nudge_statements.delete_nudges_of(schema)
        self._record_drop = record_statements.record_drop(schema, dialect)
        self._drop_nudges = dialect.with_one_snapshot(self._delete_nudges, self._record_drop)
        self._mark_triggered = statements.mark_triggered(schema, dialect)
        self._view = statements.read_views(schema, one=True)
        self._views = statements.read_views(schema, one=False)
        self._nominate = Prepared(statements.nominate_names(schema, dialect))
        self._clear = nudge_statements.clear_observed(schema, dialect)
        self._sweep = nudge_statements.sweep_dead(schema)

    def register(self, task: CronTask, *, now: datetime | None = None) -> RegisterOutcome:
        return self._database.write(lambda connection: self._register(connection, task, now))

    def _register(
        self, connection: Connection, task: CronTask, now: datetime | None
    ) -> RegisterOutcome:
        locked = None
        for _ in range(limits.STORE_TRIES):
            connection.execute(self._add_state, {"task": task.name})
            locked = connection.execute(self._lock, {"name": task.name}).one_or_none()
            if locked is not None:
                break
            # Deleted between the two statements: insert it again.
        if locked is None:
            raise StoreUnavailableError(
                f"recurring task {task.name!r} is deleted again and again while it is"
                " registered; try again later",
                task=task.name,
            )
        stamp = self._instant(connection, now)
        found = connection.execute(self._definition, {"task": task.name}).one_or_none()
        if found is None:
            return self._create(connection, task, stamp)
        try:
            state = rows.schedule_state(locked, task.name)
            rows.cron_task(found, fingerprint=state.timing_fingerprint)
        except StoreInvariantError as error:
            _log.warning("%s: it is replaced by what the code declares", error)
            return self._replace(connection, task, found, stamp)
        return self._edit(connection, task, state, found, stamp)

    def _replace(
        self, connection: Connection, task: CronTask, found: Any, now: datetime
    ) -> RegisterOutcome:
        """Write the whole of a damaged task anew; it stays paused when it was."""
        connection.execute(self._delete_definition, {"name": task.name})
        enabled = task.enabled and bool(found.enabled)
        self._create(connection, replace(task, enabled=enabled), now)
        return RegisterOutcome.UPDATED

    def _instant(self, connection: Connection, now: datetime | None) -> datetime:
        instant = self._database.instant(now)
        if instant is None:
            instant = connection.execute(self._now, {"now": None}).scalar_one()
        return instant

    def _create(self, connection: Connection, task: CronTask, now: datetime) -> RegisterOutcome:
        epoch = connection.execute(self._draw_epoch).scalar_one()
        values = rows.definition_values(task)
        values |= {"enabled": task.enabled, "epoch": epoch, "stamp": now}
        values["anchor_at"] = task.anchor_at or now
        connection.execute(self._insert_definition, values)
        state = first_state(task, now=now)
        connection.execute(self._write_state, rows.state_values(state))
        return RegisterOutcome.CREATED

    def _edit(
        self, connection: Connection, task: CronTask, state: Any, found: Any, now: datetime
    ) -> RegisterOutcome:
        stored = rows.cron_task(found, fingerprint=state.timing_fingerprint)
        kept = rows.with_operators_fields(task, stored)
        upcoming = edited_state(kept, state, now=now)
        if rows.definition_values(kept) == rows.definition_values(stored) and upcoming == state:
            return RegisterOutcome.UNCHANGED
        connection.execute(self._edit_definition, rows.definition_values(kept) | {"stamp": now})
        # Also where it stays as it is: the version of the state row is that of the whole task.
        connection.execute(self._write_state, rows.state_values(upcoming))
        return RegisterOutcome.UPDATED

    def set_enabled(self, name: str, *, enabled: bool, now: datetime | None = None) -> FlipOutcome:
        def work(connection: Connection) -> FlipOutcome:
            locked = connection.execute(self._lock, {"name": name}).one_or_none()
            if locked is None:
                return FlipOutcome.UNKNOWN_TASK
            stamp = self._instant(connection, now)
            flip = {"task": name, "wish": enabled, "stamp": stamp}
            flipped = connection.execute(self._flip, flip).one_or_none()
            if flipped is None:
                return FlipOutcome.UNCHANGED
            # A later statement, hence a later snapshot than the flip: what it sees committed
            # before the flip; a transaction still open commits later and counts.
            event = SnapshotEvent.ENABLED if enabled else SnapshotEvent.DISABLED
            drop = {"name": name, "happening": event.value, "now": stamp}
            for statement in self._drop_nudges:
                connection.execute(statement, drop)
            state = rows.schedule_state(locked, name)
            task = rows.cron_task(flipped, fingerprint=state.timing_fingerprint)
            moved = flipped_state(task, state, enabled=enabled, now=stamp)
            connection.execute(self._write_state, rows.state_values(moved))
            return FlipOutcome.CHANGED

        return self._database.write(work)

    def delete(self, name: str) -> bool:
        def work(connection: Connection) -> bool:
            if connection.execute(self._lock, {"name": name}).one_or_none() is None:
                return False
            for statement in (self._delete_definition, self._delete_state, self._delete_nudges):
                connection.execute(statement, {"name": name})
            return True

        return self._database.write(work)

    def trigger(
        self, name: str, make: MakeInstance, *, now: datetime | None = None
    ) -> NewJob | None:
        def work(connection: Connection) -> NewJob | None:
            locked = connection.execute(self._lock, {"name": name}).one_or_none()
            if locked is None:
                return None
            # Read under the lock: what another transaction read before may be replaced by now.
            found = connection.execute(self._definition, {"task": name}).one()
            job = make(rows.cron_task(found, fingerprint=locked.timing_fingerprint))
            self._writes.insert_jobs(connection, [job], now=now)
            mark = {"name": name, "id": job.id, "now": self._database.instant(now)}
            connection.execute(self._mark_triggered, mark)
            return job

        return self._database.write(work)

    def get(self, name: str) -> CronTaskView | None:
        found = self._database.read_one(
            lambda connection: connection.execute(self._view, {"task": name}).all()
        )
        return rows.task_view(found) if found else None

    def task_verdicts(self, names: Sequence[str]) -> Mapping[str, NudgeVerdict]:
        return self._database.read_one(
            lambda connection: self._writes.task_verdicts(connection, names)
        )

    def request_cron_nudge(self, name: str, *, now: datetime | None = None) -> NudgeOutcome:
        return self._database.write(
            lambda connection: self._writes.accept_nudge(connection, name, telling=True, now=now)
        )

    def clear_cron_nudge(self, name: str, observed: frozenset[int]) -> ClearOutcome:
        revisions = self._dialect.list_value(sorted(observed))

        def work(connection: Connection) -> ClearOutcome:
            connection.execute(self._lock, {"name": name})
            parameters = {"name": name, "revisions": revisions}
            cleared = connection.execute(self._clear, parameters).rowcount
            if cleared:
                drop = {"name": name, "happening": SnapshotEvent.CLEARED.value}
                connection.execute(self._record_drop, drop | {"now": self._database.instant(None)})
            return ClearOutcome.CLEARED if cleared else ClearOutcome.ABSENT

        return self._database.write(work)

    def nominate(self, *, after: str | None, limit: int, now: datetime | None = None) -> list[str]:
        parameters = {"after": after or "", "limit": limit, "now": self._database.instant(now)}
        return self._database.read_one(
            lambda connection: list(self._nominate.execute(connection, parameters).scalars())
        )

    def materialize(
        self,
        names: Sequence[str],
        plan: Plan,
        *,
        wait: bool = False,
        now: datetime | None = None,
    ) -> list[TaskOutcome]:
        return self._materializing.commit(names, plan, wait=wait, now=now)

    def sweep_nudges(self, *, limit: int) -> int:
        return self._database.write_one(
            lambda connection: len(connection.execute(self._sweep, {"limit": limit}).all())
        )

    def list(self) -> list[CronTaskView]:
        found = self._database.read_one(lambda connection: connection.execute(self._views).all())
        return sorted(rows.task_views(found), key=lambda view: view.name)
