"""Records of nudges and runs, for the checker in `threadmill_sa.testing`.

A nudge leaves its record in the accepting transaction, so the two share one fate. The start of
a run leaves the snapshot it began with; what that shows, the handler can read. The end of a pause
leaves the snapshot of the statement that dropped the nudges, in that statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Row
from sqlalchemy.engine import Connection

from threadmill_sa.model.job import JobId
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict
from threadmill_sa.model.records import RecordedNudge, RecordedRun, RecordsAudit
from threadmill_sa.stores.sql.dialects import SqlDialect
from threadmill_sa.stores.sql.prepared import Prepared
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import records as statements
from threadmill_sa.stores.sql.unit import Database
from threadmill_sa.stores.sql.writing import Instant, ProducerWrites, execute


class RecordingWrites(ProducerWrites):
    """Producers' writes of which each accepted nudge leaves a record beside it."""

    def __init__(self, schema: Schema, dialect: SqlDialect, instant: Instant) -> None:
        super().__init__(schema, dialect, instant)
        accept, *self._then_record = statements.accept_and_record(schema, dialect)
        self._accept_first = Prepared(accept)
        self._expect = statements.record_expected(schema, dialect)

    def _accept(
        self, connection: Connection, binds: Mapping[str, Any], *, telling: bool
    ) -> NudgeOutcome | None:
        del telling
        row = self._accept_first.execute(connection, binds).one_or_none()
        if row is None:
            return None
        for statement in self._then_record:
            execute(connection, statement, binds)
        return NudgeOutcome(NudgeVerdict.ACCEPTED, row.revision, row.slot)

    def expect_nudges(
        self, connection: Connection, names: Sequence[str], *, now: datetime | None = None
    ) -> Mapping[str, int]:
        binds = {"names": self._dialect.list_value(names), "now": self._instant(now)}
        return {row.task_name: row.promise for row in execute(connection, self._expect, binds)}


class SqlRecords:
    """`spi.NudgeRecords` in transactions of our own.

    Args:
        schema: resolved at the first use, which may send SQL.
    """

    def __init__(
        self,
        database: Database,
        dialect: SqlDialect,
        schema: Callable[[], Schema],
        writes: Callable[[], ProducerWrites],
    ) -> None:
        self._database = database
        self._dialect = dialect
        self._schema = schema
        self._writes = writes

    def expect(self, names: Sequence[str], *, now: datetime | None = None) -> Mapping[str, int]:
        writes = self._writes()
        return self._database.write(
            lambda connection: writes.expect_nudges(connection, names, now=now)
        )

    def refuse(self, name: str, promise: int) -> None:
        binds = {"name": name, "promise": promise}
        self._database.write(lambda connection: connection.execute(self._refuse, binds))

    def record_run(
        self, task: str, job_id: JobId, attempt: int, *, now: datetime | None = None
    ) -> None:
        binds = {"name": task, "job": job_id, "tried": attempt}
        binds |= {"now": self._database.instant(now)}
        self._database.write(lambda connection: connection.execute(self._run, binds))

    def audit(self, tasks: Sequence[str] | None, *, examples: int) -> RecordsAudit:
        some = tasks is not None
        binds = {} if tasks is None else {"names": self._dialect.list_value(tasks)}

        def work(connection: Connection) -> RecordsAudit:
            found = connection.execute(self._audits[some], binds).all()
            missed = [row for row in found if row.id is not None]
            covered = [row for row in missed if row.covered]
            lost = [row for row in missed if not row.covered and not row.excused]
            shown = tuple(_nudge(row) for row in lost[:examples])
            return RecordsAudit(
                nudges=found[0].nudges,
                runs=found[0].runs,
                covered=found[0].nudges - len(missed) + len(covered),
                excused=len(missed) - len(covered) - len(lost),
                examples=shown,
                latest_runs=tuple(
                    _run(row)
                    for name in sorted({nudge.task for nudge in shown})
                    for row in connection.execute(
                        self._latest_runs, {"name": name, "limit": examples}
                    )
                ),
            )

        return self._database.read(work)

    def clear(self) -> int:
        def work(connection: Connection) -> int:
            # Runs first: a nudge that commits between the two goes, or stays with its run.
            connection.execute(self._clear_snapshots)
            return connection.execute(self._clear_nudges).rowcount

        return self._database.write(work)

    @cached_property
    def _refuse(self) -> Any:
        return statements.refuse_expected(self._schema())

    @cached_property
    def _run(self) -> Any:
        return statements.record_run(self._schema(), self._dialect)

    @cached_property
    def _audits(self) -> dict[bool, Any]:
        schema, dialect = self._schema(), self._dialect
        return {
            some: statements.audit_records(schema, dialect, some=some) for some in (False, True)
        }

    @cached_property
    def _latest_runs(self) -> Any:
        return statements.latest_runs(self._schema())

    @cached_property
    def _clear_snapshots(self) -> Any:
        return statements.clear_snapshots(self._schema())

    @cached_property
    def _clear_nudges(self) -> Any:
        return statements.clear_nudges(self._schema())


def _nudge(row: Row[Any]) -> RecordedNudge:
    # The slot is 0 where transactions have no id.
    return RecordedNudge(row.task_name, row.revision, row.slot or None, row.requested_at)


def _run(row: Row[Any]) -> RecordedRun:
    return RecordedRun(row.task_name, JobId(row.job_id), row.attempt, row.seen, row.recorded_at)
