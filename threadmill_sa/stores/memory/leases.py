"""The role `Leases` in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

from threadmill_sa._util.hints import HintBoard
from threadmill_sa.clock import Clock
from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    Lease,
    LeaseView,
    ReleaseVerdict,
    RenewVerdict,
)


@dataclass(slots=True)
class _Row:
    holder: str | None
    term: int
    acquired_at: datetime
    expires_at: datetime

    def remaining(self, now: datetime) -> float:
        return max(0.0, (self.expires_at - now).total_seconds()) if self.holder else 0.0

    def is_held_by(self, lease: Lease) -> bool:
        return self.holder == lease.holder and self.term == lease.term


class MemoryLeases:
    """Leases under a lock of their own, judged by the store's clock."""

    def __init__(self, clock: Clock) -> None:
        self._lock = Lock()
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._board = HintBoard()

    def acquire(
        self, name: str, holder: str, *, ttl_seconds: float, timeout_seconds: float
    ) -> AcquireAnswer:
        del timeout_seconds  # nothing here waits
        with self._lock:
            now = self._clock.now()
            row = self._rows.get(name)
            if row is not None and row.holder is not None and row.expires_at > now:
                held = Lease(name, row.holder, row.term)
                return AcquireAnswer(AcquireVerdict.HELD, held, row.remaining(now))
            term = 1 if row is None else row.term + 1
            self._rows[name] = _Row(holder, term, now, now + timedelta(seconds=ttl_seconds))
            lease = Lease(name, holder, term)
            return AcquireAnswer(AcquireVerdict.ACQUIRED, lease, ttl_seconds)

    def renew(self, lease: Lease, *, ttl_seconds: float, timeout_seconds: float) -> RenewVerdict:
        del timeout_seconds
        with self._lock:
            now = self._clock.now()
            row = self._rows.get(lease.name)
            if row is None or not row.is_held_by(lease) or row.expires_at <= now:
                return RenewVerdict.LOST
            row.expires_at = now + timedelta(seconds=ttl_seconds)
            return RenewVerdict.RENEWED

    def release(self, lease: Lease, *, timeout_seconds: float) -> ReleaseVerdict:
        del timeout_seconds
        with self._lock:
            row = self._rows.get(lease.name)
            if row is None or not row.is_held_by(lease):
                return ReleaseVerdict.NOT_HELD
            row.holder, row.expires_at = None, self._clock.now()
        self._board.hint(lease.name)
        return ReleaseVerdict.RELEASED

    def peek(self, name: str) -> LeaseView | None:
        with self._lock:
            row = self._rows.get(name)
            return None if row is None else _view(name, row, self._clock.now())

    def list(self) -> list[LeaseView]:
        with self._lock:
            now = self._clock.now()
            return [_view(name, row, now) for name, row in sorted(self._rows.items())]

    def watch(self, name: str, on_hint: Callable[[], None]) -> Callable[[], None]:
        return self._board.watch(name, on_hint)

    def close(self) -> None:
        """Do nothing: there is neither a connection nor a thread."""


def _view(name: str, row: _Row, now: datetime) -> LeaseView:
    remaining = row.remaining(now)
    holder = row.holder if remaining else None
    return LeaseView(name, holder, row.term, row.acquired_at, remaining)
