"""Writes that run on whatever connection they are given: ours, or a caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.sql.base import Executable

from threadmill_sa.clock import SystemClock
from threadmill_sa.model import limits
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.lease import FenceVerdict, Lease
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import SqlDialect, record_text
from threadmill_sa.stores.sql.numbering import RevisionBlocks
from threadmill_sa.stores.sql.prepared import OWN_OPTIONS, Prepared
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import jobs as job_statements
from threadmill_sa.stores.sql.statements import leases as lease_statements
from threadmill_sa.stores.sql.statements import nudges as nudge_statements


class Instant(Protocol):
    def __call__(self, now: datetime | None) -> datetime | None: ...


class ProducerWrites:
    """The writes that can join a caller's transaction, as statements built once.

    The ledger rule: each only inserts rows that no other transaction updates, locks or
    references. Source: docs/decisions/0001-ledger-rule.md.
    """

    def __init__(self, schema: Schema, dialect: SqlDialect, instant: Instant) -> None:
        self._dialect = dialect
        self._instant = instant
        self._accepts = {
            telling: Prepared(nudge_statements.accept_nudge(schema, dialect, telling=telling))
            for telling in (False, True)
        }
        self.clause = self._accepts[False].statement
        self._draw = dialect.revision_block(schema.revision_sequence)
        self._revisions = RevisionBlocks()
        self._first_write = dialect.first_write(schema.cron_nudges)
        self._verdict = nudge_statements.read_verdict(schema)
        self._verdicts = nudge_statements.read_verdicts(schema, dialect)
        self._fence = lease_statements.fence_lease(schema, dialect)
        self._insert = Prepared(job_statements.insert_job(schema, dialect))
        self._insert_many = job_statements.insert_jobs(schema, dialect)

    def accept_nudge(
        self, connection: Connection, name: str, *, telling: bool, now: datetime | None = None
    ) -> NudgeOutcome:
        """Accept a nudge of `name`, or say why not, without an error of the database.

        Args:
            telling: whether the outcome must name the slot.
        """
        binds: dict[str, Any] = {"name": name, "now": self._instant(now)}
        if self._draw is not None:
            draw = self._draw
            binds["revision"] = self._revisions.next(
                lambda: execute(connection, draw, {}).scalar_one()
            )
        for _ in range(limits.NUDGE_ACCEPT_TRIES):
            accepted = self._accept(connection, binds, telling=telling)
            if accepted is not None:
                return accepted
            enabled = execute(connection, self._verdict, {"name": name}).scalar_one_or_none()
            if enabled is None:
                return NudgeOutcome(NudgeVerdict.UNKNOWN_TASK)
            if not enabled:
                break
            # Enabled between the two statements: try again rather than report a pause.
        return NudgeOutcome(NudgeVerdict.DISABLED)

    def _accept(
        self, connection: Connection, binds: Mapping[str, Any], *, telling: bool
    ) -> NudgeOutcome | None:
        if telling or self._draw is None:
            row = self._accepts[True].execute(connection, binds).one_or_none()
            accepted = row is not None
            revision, slot = (row.revision, row.slot) if row is not None else (None, None)
        else:
            accepted = self._accepts[False].execute(connection, binds).rowcount == 1
            revision, slot = binds["revision"], None
        return NudgeOutcome(NudgeVerdict.ACCEPTED, revision, slot) if accepted else None

    def expect_nudges(
        self, connection: Connection, names: Sequence[str], *, now: datetime | None = None
    ) -> Mapping[str, int]:
        """Record nothing: that is what RecordingWrites are for."""
        del connection, names, now
        return {}

    def task_verdicts(
        self, connection: Connection, names: Sequence[str], *, writing: bool = False
    ) -> Mapping[str, NudgeVerdict]:
        """Return the verdict for each name by the transaction's snapshot.

        Args:
            writing: a write follows, so where reading first would make it fail, write first.
        """
        if writing and self._first_write is not None:
            execute(connection, self._first_write, {})
        found = execute(connection, self._verdicts, {"names": self._dialect.list_value(names)})
        enabled = {row.name: row.enabled for row in found}
        return {name: _verdict(enabled.get(name)) for name in names}

    def fence(self, connection: Connection, lease: Lease) -> FenceVerdict:
        """Keep the lease's term until the transaction ends, when it has not ended."""
        binds: dict[str, Any] = {
            "lease_name": lease.name,
            "lease_holder": lease.holder,
            "lease_term": lease.term,
        }
        if not self._dialect.own_clock:
            binds["clock"] = SystemClock().now()  # never an injected one, as for the leases
        kept = execute(connection, self._fence, binds).one_or_none()
        return FenceVerdict.LOST if kept is None else FenceVerdict.HOLDS

    def insert_jobs(
        self, connection: Connection, jobs: Sequence[NewJob], *, now: datetime | None = None
    ) -> None:
        """Insert `jobs`, in statements of at most limits.INSERT_BATCH_MAX rows."""
        instant = self._instant(now)
        if len(jobs) == 1:
            self._insert.execute(connection, rows.new_job_values(jobs[0]) | {"now": instant})
            return
        for start in range(0, len(jobs), limits.INSERT_BATCH_MAX):
            batch = [
                rows.new_job_values(job) for job in jobs[start : start + limits.INSERT_BATCH_MAX]
            ]
            packed = record_text(self._dialect, batch)
            execute(connection, self._insert_many, {"rows": packed, "now": instant})


def execute(
    connection: Connection, statement: Executable, binds: Mapping[str, Any]
) -> CursorResult[Any]:
    """Run a statement of ours, whatever options a caller's connection has."""
    # They must be given here: those of the connection win over the statement's own.
    return connection.execute(statement, binds, execution_options=OWN_OPTIONS)


def _verdict(enabled: bool | None) -> NudgeVerdict:  # noqa: FBT001 - a column, not a flag
    if enabled is None:
        return NudgeVerdict.UNKNOWN_TASK
    return NudgeVerdict.ACCEPTED if enabled else NudgeVerdict.DISABLED
