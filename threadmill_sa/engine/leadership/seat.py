"""What one contender has: its current term, and the one that is being wound up."""

from __future__ import annotations

import threading
from collections.abc import Callable

from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.engine.leadership.callbacks import Callbacks, OnAcquired, OnReleased
from threadmill_sa.engine.leadership.campaign import Campaign
from threadmill_sa.engine.leadership.grant import Fencing, Grant
from threadmill_sa.model.lease import AcquireAnswer, Lease, LossReason

Drain = Callable[[Grant, Callable[[], None]], None]
"""Winds up what acts for an ended term, at once or later, and then calls what it is given."""


class Seat:
    """The audience of a campaign: keeps the grant, tells those who wait, and drains ended terms.

    The order at a loss: the grant is lost, nobody leads, the work and `on_released` are told;
    only when both are done may the lease go to others.
    """

    def __init__(
        self,
        name: str,
        fencing: Fencing,
        on_acquired: OnAcquired | None,
        on_released: OnReleased | None,
        *,
        one_term: bool,
    ) -> None:
        self._name = name
        self._one_term = one_term
        self._fencing = fencing
        self._on_acquired = on_acquired
        self._on_released = on_released
        self.drain: Drain | None = None
        self.grant: Grant | None = None
        self._ending: Grant | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self.campaign: Campaign | None = None
        self.grant = self._ending = None
        self._owner: object = None
        self._parts = 0  # of the ending term's drain that are not done yet
        self.attempts = 0  # that had an answer, or none, since the start
        self.answer: AcquireAnswer | None = None
        self.error: Exception | None = None
        self.gave_back = False
        self._listeners: list[Callable[[], None]] = []
        self.callbacks = Callbacks(
            self._name,
            self._on_acquired,
            self._on_released,
            on_failed=self._callback_failed,
            on_done=self._part_done,
        )

    def after_fork(self) -> None:
        """Hold nothing: lease, threads and renewals stayed in the parent."""
        for grant in (self.grant, self._ending):
            if grant is not None:
                grant.disown()
        self._begin_anew()

    def occupy(self, make: Callable[[], Campaign], owner: object) -> Campaign | None:
        """Begin the campaign that `make` returns; None when there is one.

        `owner` lives as long as the campaign, so that whoever lists the owners can end it.
        """
        with self._changed:
            if self.campaign is not None:
                return None
            self._owner = owner
            self.gave_back = False
            self.attempts, self.answer, self.error = 0, None, None
            self.campaign = campaign = make()
            return campaign

    def wait_for(self, condition: Callable[[], object], timeout: float | None = None) -> bool:
        """Wait until `condition` holds, which is asked after every change."""
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout))

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Call `tell` after every change, from any thread; returns what ends it, once."""
        self._listeners.append(tell)
        return lambda: self._listeners.remove(tell)

    def resign(self, grant: Grant, reason: LossReason, cooldown: float | None) -> bool:
        """End `grant` at once and give its term back; False when it had ended already."""
        campaign = self.campaign
        return (
            campaign is not None
            and grant.end(reason)
            and campaign.post(
                lambda contender, now: contender.resign(now, reason=reason, cooldown=cooldown)
            )
        )

    def stop(self) -> Campaign | None:
        """End the term at once, and ask the campaign to end; None when there is none."""
        campaign, grant = self.campaign, self.grant
        if campaign is not None:
            campaign.post(lambda contender, now: contender.stop(now))
            if grant is not None:
                grant.end(LossReason.RELEASED)
        return campaign

    # What the driver tells -------------------------------------------------------------------

    def began(self, lease: Lease, trusted_until: float) -> None:
        grant = Grant(lease, trusted_until, now=suspend_proof_seconds, fencing=self._fencing)
        self.grant, self.answer, self.error = grant, None, None
        self.callbacks.acquired(grant)
        self._tell()

    def extended(self, term: int, trusted_until: float) -> None:
        grant = self.grant
        if grant is not None and grant.term == term:
            grant.extend(trusted_until)

    def ended(self, term: int, reason: LossReason) -> None:
        grant = self.grant
        if grant is None or grant.term != term:
            return
        grant.end(reason)
        if self._one_term and self.campaign is not None:
            self.campaign.post(lambda contender, now: contender.stop(now))
        drain = self.drain
        with self._changed:
            self.grant, self._ending = None, grant
            self._parts = 1 if drain is None else 2
        self._tell()
        self.callbacks.released(grant, grant.reason or reason)
        if drain is not None:
            drain(grant, lambda: self._part_done(grant))

    def saw(self, answer: AcquireAnswer | None, error: Exception | None) -> None:
        self.answer = answer or self.answer
        self.error = error if answer is None else None
        self.attempts += 1
        self._tell()

    def stopped(self, *, released: bool) -> None:
        with self._changed:
            self.gave_back = released
            self.campaign = self.grant = self._ending = self._owner = None
        self._tell()

    # The drain -------------------------------------------------------------------------------

    def _callback_failed(self, grant: Grant) -> None:
        if grant is self.grant:
            self.resign(grant, LossReason.CALLBACK_FAILED, None)

    def _part_done(self, grant: Grant) -> None:
        with self._changed:
            if grant is not self._ending:
                return
            self._parts -= 1
            if self._parts:
                return
            self._ending = None
            campaign = self.campaign
        if campaign is not None:
            campaign.post(lambda contender, now: contender.drained(grant.term, now))

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for tell in list(self._listeners):
            tell()
