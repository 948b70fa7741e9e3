"""What the end of an attempt writes; the same rows as on every store."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, HistoryEntry, OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.memory.rows import JobRow
from threadmill_sa.stores.memory.table import JobTable

TRUNCATED_RESULT: Final = "threadmill.truncated.result"

_STATE_AFTER: Final = {
    OutcomeKind.SUCCEEDED: JobState.SUCCEEDED,
    OutcomeKind.RETRY: JobState.SCHEDULED,
    OutcomeKind.FAILED: JobState.FAILED,
    OutcomeKind.QUARANTINED: JobState.QUARANTINED,
    OutcomeKind.RELEASED: JobState.ENQUEUED,
}


def end_attempt(table: JobTable, row: JobRow, outcome: AttemptOutcome, now: datetime) -> None:
    """Write `outcome` to a PROCESSING row: state, history, result and free the owner."""
    row.history += _entries(row.attempt, outcome, now)
    row.owner_node_id, row.heartbeat_at = None, None
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            row.result = outcome.result
            if outcome.result_note is not None:
                row.metadata[TRUNCATED_RESULT] = outcome.result_note
        case OutcomeKind.RETRY:
            row.scheduled_at = now + timedelta(seconds=outcome.retry_seconds or 0.0)
        case OutcomeKind.RELEASED:
            row.attempt -= 1  # The token keeps growing, so the released attempt cannot finish.
        case OutcomeKind.FAILED | OutcomeKind.QUARANTINED:
            pass
    table.move(row, _STATE_AFTER[outcome.kind], now)


def _entries(attempt: int, outcome: AttemptOutcome, now: datetime) -> list[HistoryEntry]:
    """What enters the history; a plain success enters nothing (decision 0005)."""

    def entry(state: JobState, reason: str, message: str | None = None) -> HistoryEntry:
        return HistoryEntry(state, now, attempt, reason, message)

    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return []
        case OutcomeKind.RETRY:
            return [
                entry(JobState.FAILED, outcome.reason, outcome.message),
                entry(JobState.SCHEDULED, failure.RETRY),
            ]
        case OutcomeKind.FAILED:
            return [entry(JobState.FAILED, outcome.reason, outcome.message)]
        case OutcomeKind.QUARANTINED:
            return [entry(JobState.QUARANTINED, outcome.reason, outcome.message)]
        case OutcomeKind.RELEASED:
            return [
                entry(JobState.FAILED, outcome.reason, outcome.message),
                entry(JobState.ENQUEUED, outcome.reason),
            ]
