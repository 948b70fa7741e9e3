"""Writes that run on whatever connection they are given: ours, or a caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy.engine import CursorResult
from sqlalchemy.sql.base import Executable

from threadmill_sa.clock import SystemClock
from threadmill_sa.model import limits
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.lease import FenceVerdict, Lease
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import SqlDialect, record_text
from threadmill_sa.stores.sql.numbering import RevisionBlocks
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import jobs as job_statements
from threadmill_sa.stores.sql.statements import leases as lease_statements
from threadmill_sa.stores.sql.statements import nudges as nudge_statements

Execute = Callable[[Executable, Mapping[str, Any]], CursorResult[Any]]
"""Runs one statement with its binds."""


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
        self.accept = nudge_statements.accept_nudge(schema, dialect, telling=False)
        self._accept_telling = nudge_statements.accept_nudge(schema, dialect, telling=True)
        self._draw = dialect.revision_block(schema.revision_sequence)
        self._revisions = RevisionBlocks()
        self._verdict = nudge_statements.read_verdict(schema)
        self._verdicts = nudge_statements.read_verdicts(schema, dialect)
        self._fence = lease_statements.fence_lease(schema, dialect)
        self._insert = job_statements.insert_job(schema, dialect)
        self._insert_many = job_statements.insert_jobs(schema, dialect)

    def accept_nudge(
        self, execute: Execute, name: str, *, telling: bool, now: datetime | None = None
    ) -> NudgeOutcome:
        """Accept a nudge of `name`, or say why not, without an error of the database.

        Args:
            telling: whether the outcome must name the slot.
        """
        binds: dict[str, Any] = {"name": name, "now": self._instant(now)}
        if self._draw is not None:
            draw = self._draw
            binds["revision"] = self._revisions.next(lambda: execute(draw, {}).scalar_one())
        for _ in range(limits.NUDGE_ACCEPT_TRIES):
            accepted = self._accept(execute, binds, telling=telling)
            if accepted is not None:
                return accepted
            enabled = execute(self._verdict, {"name": name}).scalar_one_or_none()
            if enabled is None:
                return NudgeOutcome(NudgeVerdict.UNKNOWN_TASK)
            if not enabled:
                break
            # Enabled between the two statements: try again rather than report a pause.
        return NudgeOutcome(NudgeVerdict.DISABLED)

    def _accept(
        self, execute: Execute, binds: Mapping[str, Any], *, telling: bool
    ) -> NudgeOutcome | None:
        if telling or self._draw is None:
            row = execute(self._accept_telling, binds).one_or_none()
            accepted = row is not None
            revision, slot = (row.revision, row.slot) if row is not None else (None, None)
        else:
            accepted = execute(self.accept, binds).rowcount == 1
            revision, slot = binds["revision"], None
        return NudgeOutcome(NudgeVerdict.ACCEPTED, revision, slot) if accepted else None

    def expect_nudges(
        self, execute: Execute, names: Sequence[str], *, now: datetime | None = None
    ) -> Mapping[str, int]:
        """Record nothing: that is what RecordingWrites are for."""
        del execute, names, now
        return {}

    def task_verdicts(self, execute: Execute, names: Sequence[str]) -> Mapping[str, NudgeVerdict]:
        """Return the verdict for each name by the transaction's snapshot."""
        found = execute(self._verdicts, {"names": self._dialect.list_value(names)})
        enabled = {row.name: row.enabled for row in found}
        return {name: _verdict(enabled.get(name)) for name in names}

    def fence(self, execute: Execute, lease: Lease) -> FenceVerdict:
        """Keep the lease's term until the transaction ends, when it has not ended."""
        binds: dict[str, Any] = {
            "lease_name": lease.name,
            "lease_holder": lease.holder,
            "lease_term": lease.term,
        }
        if not self._dialect.own_clock:
            binds["clock"] = SystemClock().now()  # never an injected one, as for the leases
        kept = execute(self._fence, binds).one_or_none()
        return FenceVerdict.LOST if kept is None else FenceVerdict.HOLDS

    def insert_jobs(
        self, execute: Execute, jobs: Sequence[NewJob], *, now: datetime | None = None
    ) -> None:
        """Insert `jobs`, in statements of at most limits.INSERT_BATCH_MAX rows."""
        instant = self._instant(now)
        if len(jobs) == 1:
            execute(self._insert, rows.new_job_values(jobs[0]) | {"now": instant})
            return
        for start in range(0, len(jobs), limits.INSERT_BATCH_MAX):
            batch = [
                rows.new_job_values(job) for job in jobs[start : start + limits.INSERT_BATCH_MAX]
            ]
            packed = record_text(self._dialect, batch)
            execute(self._insert_many, {"rows": packed, "now": instant})


def _verdict(enabled: bool | None) -> NudgeVerdict:  # noqa: FBT001 - a column, not a flag
    if enabled is None:
        return NudgeVerdict.UNKNOWN_TASK
    return NudgeVerdict.ACCEPTED if enabled else NudgeVerdict.DISABLED
