"""What is recorded of nudges and runs, so that a test can check that none was lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from threadmill_sa.model.job import JobId

REFUSED_EPOCH = 0
"""In place of the epoch of an expected nudge whose write was refused: no registration has it."""


class SnapshotEvent(StrEnum):
    """At what a snapshot was recorded; all but RUN dropped the nudges that it shows."""

    RUN = "run"  # a handler was about to be called
    ENABLED = "enabled"
    DISABLED = "disabled"
    CLEARED = "cleared"  # by an operator


@dataclass(frozen=True, slots=True)
class RecordedNudge:
    """One acceptance."""

    task: str
    revision: int | None  # None: it was to be written after a commit that has happened
    transaction_id: int | None  # PostgreSQL
    requested_at: datetime


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The start of one attempt of an instance."""

    task: str
    job_id: JobId
    attempt: int
    seen: str  # PostgreSQL: its snapshot; elsewhere the last number of a record before it
    started_at: datetime


@dataclass(frozen=True, slots=True)
class RecordsAudit:
    """All records, judged by the store at one instant.

    A nudge is covered when a run of its task started with a snapshot that shows its commit. It
    is excused when its registration is gone or disabled by now, when its commit came before the
    end of a pause or before an operator's clear, or when its write after the commit was refused.
    """

    nudges: int
    runs: int
    covered: int
    excused: int
    examples: tuple[RecordedNudge, ...] = ()  # of those neither covered nor excused, oldest first
    latest_runs: tuple[RecordedRun, ...] = ()  # of the tasks of the examples, newest first

    @property
    def uncovered(self) -> int:
        return self.nudges - self.covered - self.excused
