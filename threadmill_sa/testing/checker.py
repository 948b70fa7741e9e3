"""The check that no nudge was lost, on what was recorded while the program ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model.names import check_name
from threadmill_sa.model.records import RecordedNudge, RecordedRun, RecordsAudit
from threadmill_sa.model.state import UNFINISHED
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.store import JobStore

_EXAMPLES = 5  # nudges named in a failure, and runs shown for each of their tasks


class HasStore(Protocol):
    """A `Threadmill`."""

    @property
    def store(self) -> JobStore: ...


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """What was checked: `nudges == covered + excused`."""

    nudges: int  # one that waits for the commit counts twice: when promised, and when written
    runs: int  # attempts of instances, whatever their origin
    covered: int  # shown by the snapshot of a later run
    excused: int  # paused, deleted or cleared by an operator before their run, or refused


def assert_every_nudge_covered(
    tm: HasStore, *, tasks: Iterable[str] | None = None
) -> CoverageReport:
    """Check that a run which could see it followed every recorded nudge.

    Call it when the program has come to rest: after `run_until_idle`, or when the nodes have
    nothing left to do. Every process that nudges or runs must have `record_nudges=True`. A nudge
    of a transaction that is still open is not looked at.

    Args:
        tasks: the recurring tasks to check, at least one; None is all of them.
    Returns: how much there was to check. Nothing recorded is no failure, so compare `nudges`
        with what the test did.
    Raises: AssertionError that names tasks, revisions, transactions, times and the runs that were
        considered; InvalidValueError when `tm` does not record.
    """
    records, names = _records_of(tm), _names(tasks)
    audit = records.audit(names, examples=_EXAMPLES)
    if audit.uncovered:
        # Looked for first: what was at rest before the second audit has all its runs in it.
        busy = list(_busy(tm.store, sorted({nudge.task for nudge in audit.examples})))
        audit = records.audit(names, examples=_EXAMPLES)
        if audit.uncovered:
            raise AssertionError("\n".join(_explained(audit, busy)))
    return CoverageReport(audit.nudges, audit.runs, audit.covered, audit.excused)


def clear_nudge_records(tm: HasStore) -> int:
    """Delete everything recorded so far and return how many nudges were among it.

    Nudges of open transactions are recorded when those commit. Raises: InvalidValueError when
    `tm` does not record.
    """
    return _records_of(tm).clear()


def _records_of(tm: HasStore) -> NudgeRecords:
    records = tm.store.records
    if records is None:
        raise InvalidValueError(
            "nudges are not recorded here: create Threadmill(engine, record_nudges=True), or"
            " Threadmill.in_memory(record_nudges=True), in every process of the test"
        )
    return records


def _names(tasks: Iterable[str] | None) -> Sequence[str] | None:
    if tasks is None:
        return None
    if isinstance(tasks, str) or not (names := list(tasks)):
        raise InvalidValueError(
            f"tasks must be a list of names with at least one, found {tasks!r:.200}", value=tasks
        )
    return [check_name(name, kind="recurring task") for name in names]


def _busy(store: JobStore, tasks: Sequence[str]) -> Iterator[str]:
    """Why a run of each task may still come."""
    for task in tasks:
        view = store.recurring.get(task)
        if view is not None and view.nudge_revisions:
            yield f"{task!r} has pending nudges"
        if any(store.jobs.list(task=task, state=state, limit=1) for state in UNFINISHED):
            yield f"{task!r} has an unfinished instance"


def _explained(audit: RecordsAudit, busy: Sequence[str]) -> Iterator[str]:
    total = f"{audit.uncovered} of {audit.nudges} recorded nudges"
    if busy:
        yield (
            f"{total} not yet covered: {', '.join(busy)}; run until idle first"
            " (tm.run_until_idle(), or wait until the nodes have nothing left to do)"
        )
    else:
        yield f"{total} dropped: no run of the task started with a snapshot that shows them"
    for nudge in audit.examples:
        yield f"  {_shown_nudge(nudge)}"
    if audit.uncovered > len(audit.examples):
        yield f"  and {audit.uncovered - len(audit.examples)} more"
    latest = ", the latest of these tasks:" if audit.latest_runs else ""
    yield f"runs considered: {audit.runs}{latest}"
    for run in audit.latest_runs:
        yield f"  {_shown_run(run)}"


def _shown_nudge(nudge: RecordedNudge) -> str:
    what = "promised, not written" if nudge.revision is None else f"revision {nudge.revision}"
    if nudge.transaction_id is not None:
        what += f", transaction {nudge.transaction_id}"
    return f"{nudge.task!r}: nudge of {nudge.requested_at.isoformat()} ({what})"


def _shown_run(run: RecordedRun) -> str:
    return (
        f"{run.task!r}: job {run.job_id}, attempt {run.attempt}, started"
        f" {run.started_at.isoformat()}, had seen {run.seen}"
    )
