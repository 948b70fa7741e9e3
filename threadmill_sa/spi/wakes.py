"""Latency hints between processes. They may be lost, repeated or absent: never correctness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class WakeChannel(Protocol):
    """Tells other processes of the same store that something may be ready."""

    def notify(self) -> None:
        """Ask for a wake of every listener; returns at once, never raises, coalesces bursts."""
        ...

    def notify_when_committed(self, slot: int) -> None:
        """Ask for a wake once the transaction with this slot has committed."""
        ...

    def listen(self, on_wake: Callable[[], None]) -> None:
        """Call `on_wake` from a background thread for each wake, until `close`."""
        ...

    def close(self) -> None:
        """End background threads and connections; the channel can be used again afterwards."""
        ...
