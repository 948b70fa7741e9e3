"""The lease by which one node keeps house for the others. It saves work, and decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.engine.leadership.campaign import Campaign, drive_in_thread
from threadmill_sa.engine.leadership.leader import new_holder
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.model.lease import MAINTENANCE_LEASE, AcquireAnswer, Lease, LossReason
from threadmill_sa.spi.leases import Leases

_TURN_SECONDS = 1.0  # after a stop has waited in vain: time for the driver's last turn


class MaintenanceLease:
    """Campaigns for the engine's lease and tells whether another node is known to hold it.

    A node is relieved by an answer of the store alone, and only for as long as the holder that
    it names may go without being asked about again. Whatever else is so (nothing is known yet, no
    answer came, the lease is its own), the node does all the work itself.

    Args:
        on_alone: called by the lease's thread when a node that was relieved no longer is.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        noise: Callable[[], float],
        on_alone: Callable[[], None],
        timings: Timings | None = None,
    ) -> None:
        timings = timings or Timings()
        self._holder = new_holder()
        self._campaign = Campaign(
            MAINTENANCE_LEASE,
            self._holder,
            leases,
            timings,
            self,
            now=suspend_proof_seconds,
            noise=noise,
        )
        # The next attempt comes an instant and a jitter after the lease could have run out.
        self._allowance = timings.jitter * timings.seconds("ttl") + timings.seconds("call_timeout")
        self._on_alone = on_alone
        self._relieved_until = float("-inf")
        self._thread: threading.Thread | None = None

    @property
    def relieved(self) -> bool:
        """True while another node is known to keep house; reads a clock and does no I/O."""
        return suspend_proof_seconds() < self._relieved_until

    def start(self) -> None:
        """Begin to campaign; the store is asked by other threads."""
        self._thread = drive_in_thread(self._campaign)

    def ask_to_stop(self) -> None:
        """Give the lease back, so that the next node begins at once; returns at once."""
        self._campaign.post(lambda contender, now: contender.stop(now))

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until the lease is given back; then it runs out."""
        self.ask_to_stop()
        if self._thread is None:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._campaign.abandon()
            self._thread.join(_TURN_SECONDS)

    # What the campaign tells -----------------------------------------------------------------

    def began(self, lease: Lease, trusted_until: float) -> None:
        del lease, trusted_until
        self._rely_on_nobody()

    def extended(self, term: int, trusted_until: float) -> None:
        """Nothing: who holds the lease does as who holds none."""

    def ended(self, term: int, reason: LossReason) -> None:
        del reason
        # Nobody acts for a term: two nodes that keep house at once do no harm.
        self._campaign.post(lambda contender, now: contender.drained(term, now))

    def saw(self, answer: AcquireAnswer | None, error: Exception | None) -> None:
        del error
        if answer is None or answer.remaining_seconds <= 0 or answer.lease.holder == self._holder:
            self._rely_on_nobody()
            return
        left = answer.remaining_seconds + self._allowance
        self._relieved_until = suspend_proof_seconds() + left

    def stopped(self, *, released: bool) -> None:
        del released
        self._relieved_until = float("-inf")

    def _rely_on_nobody(self) -> None:
        relieved = self.relieved
        self._relieved_until = float("-inf")
        if relieved:
            self._on_alone()
