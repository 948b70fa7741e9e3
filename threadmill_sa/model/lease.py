"""The lease as values: an exclusive right with an expiry, numbered by terms."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from threadmill_sa.errors import InvalidNameError
from threadmill_sa.model.names import check_name

ENGINE_PREFIX = "threadmill:"  # names of the engine's own leases
MAINTENANCE_LEASE = f"{ENGINE_PREFIX}maintenance"


@dataclass(frozen=True, slots=True)
class Lease:
    """One holding of a name. The term is a fencing token: each new holding has a larger one."""

    name: str
    holder: str  # random per start, 1..limits.HOLDER_MAX_CHARS characters
    term: int  # from 1; the same from the acquisition to the end, renewals included


class AcquireVerdict(StrEnum):
    ACQUIRED = "acquired"  # by this call, with a term of its own
    HELD = "held"  # by the holder that the answer names, perhaps the caller itself


@dataclass(frozen=True, slots=True)
class AcquireAnswer:
    """What an attempt found. Times are seconds that remain by the store's clock."""

    verdict: AcquireVerdict
    lease: Lease
    remaining_seconds: float  # >= 0


class RenewVerdict(StrEnum):
    RENEWED = "renewed"
    LOST = "lost"  # released, run out, or another term began: never to be had back


class ReleaseVerdict(StrEnum):
    RELEASED = "released"
    NOT_HELD = "not_held"  # nothing was changed


class FenceVerdict(StrEnum):
    HOLDS = "holds"  # and no other term can begin before the transaction has ended
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One name as operators see it."""

    name: str
    holder: str | None  # None: free, or run out
    term: int  # of the latest holding
    acquired_at: datetime  # of the latest holding
    remaining_seconds: float  # 0 when nobody holds it


class LossReason(StrEnum):
    """Why a term has ended for the one who held it."""

    RELEASED = "released"  # stopped, or the block of a lock was left
    RESIGNED = "resigned"
    TAKEN_OVER = "taken_over"  # the store says that the term is over
    EXPIRED = "expired"  # not renewed in time, so no longer trusted
    CALLBACK_FAILED = "callback_failed"  # on_acquired raised
    FORKED = "forked"  # this process is a child of the one that holds it


def check_mutex(name: object) -> str:
    """Return `name` when users may hold it. Raises: InvalidNameError."""
    checked = check_name(name, kind="mutex")
    if checked.startswith(ENGINE_PREFIX):
        raise InvalidNameError(
            f"mutex name {checked!r} begins with {ENGINE_PREFIX!r}, which is kept for the engine:"
            " use another name",
            name=name,
        )
    return checked
