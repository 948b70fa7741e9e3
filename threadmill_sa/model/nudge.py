"""The nudge as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class NudgeVerdict(StrEnum):
    ACCEPTED = "accepted"
    UNKNOWN_TASK = "unknown_task"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class NudgeOutcome:
    """The store's answer to one request."""

    verdict: NudgeVerdict
    revision: int | None = None  # identity of the acceptance, never an order
    slot: int | None = None  # PostgreSQL: the transaction id that carries it


@dataclass(frozen=True, slots=True)
class PendingNudges:
    """The acceptances that wait for a run, as one tick sees them."""

    count: int
    requested_at: datetime  # the earliest


class ClearOutcome(StrEnum):
    CLEARED = "cleared"  # every observed acceptance that was still pending is gone
    ABSENT = "absent"  # none of the observed ones was pending


class EnqueueMode(StrEnum):
    """When a write happens that was asked for with a session."""

    JOIN_TRANSACTION = "join_transaction"  # in the caller's transaction
    AFTER_COMMIT = "after_commit"  # after the outermost transaction has really committed
    IMMEDIATE = "immediate"  # now, in a transaction of its own


@dataclass(frozen=True, slots=True)
class NudgeReceipt:
    """What `nudge` returns."""

    task: str
    mode: EnqueueMode
    revision: int | None  # None while the write waits for the commit
