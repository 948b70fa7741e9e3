"""The role that keeps leases: exclusive rights with an expiry and a growing term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from threadmill_sa.model.lease import (
    AcquireAnswer,
    Lease,
    LeaseView,
    ReleaseVerdict,
    RenewVerdict,
)


class Leases(Protocol):
    """Acquire, renew, release and watch leases; always by the store's own clock.

    The clock is read while the write happens, so waiting for a lock never shortens a lease. A
    term grows by one with each new holding, also when the same holder wins again, and is never
    reset: releasing keeps the number. Every call uses connections that the application cannot
    exhaust, changes at most one name, and raises StoreUnavailableError when it could not be
    answered within about `timeout_seconds`; then it may have happened or not.
    """

    def acquire(
        self, name: str, holder: str, *, ttl_seconds: float, timeout_seconds: float
    ) -> AcquireAnswer:
        """Begin a new term for `holder` when nobody holds `name`.

        Guarantee: of any number of callers at most one gets a term. A caller who finds the name
        held writes nothing. Whoever holds it is told HELD as well, with its own term. So is a
        caller whom a lock in the store keeps from a term that is free, such as that of a fence:
        with the latest holding, whose holder may be empty, and no time that remains.

        Args:
            holder: 1..limits.HOLDER_MAX_CHARS characters, never used by another contender.
            ttl_seconds: how long the term lasts without a renewal, > 0.
        Atomicity: one conditional write.
        """
        ...

    def renew(self, lease: Lease, *, ttl_seconds: float, timeout_seconds: float) -> RenewVerdict:
        """Let the term last `ttl_seconds` from now, when it has not ended.

        Name, holder and term must match, and the lease must not have run out.
        """
        ...

    def release(self, lease: Lease, *, timeout_seconds: float) -> ReleaseVerdict:
        """End the term and hint to those who wait. Name, holder and term must match."""
        ...

    def peek(self, name: str) -> LeaseView | None:
        """Return what is known of `name`, or None when it was never held."""
        ...

    def list(self) -> list[LeaseView]:
        """Return every name that was ever held, in order."""
        ...

    def watch(self, name: str, on_hint: Callable[[], None]) -> Callable[[], None]:
        """Call `on_hint` from any thread when `name` may have become free; returns what ends it.

        A hint may be late, repeated or lost: whoever waits for one also waits for the expiry.
        `on_hint` must return at once.
        """
        ...

    def close(self) -> None:
        """End connections and threads; the role can be used again afterwards."""
        ...
