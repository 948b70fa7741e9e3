"""The only reader of time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where instants and elapsed time come from."""

    @property
    def injected(self) -> bool:
        """True when the store must use this clock's instants instead of its own."""
        ...

    def now(self) -> datetime:
        """The current instant, aware UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The process's clock. Stores with a clock of their own (PostgreSQL, Redis) prefer theirs."""

    injected = False

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def suspend_proof_seconds() -> float:
    """Seconds from an arbitrary start that go on while the machine is suspended, where it can.

    What trusts a lease must notice that a night has passed; `monotonic` stands still in it.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)
