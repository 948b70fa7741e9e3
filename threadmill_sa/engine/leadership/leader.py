"""`Leader`: campaigns for a mutex until it is stopped, term after term."""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from threadmill_sa._util.callables import check_body
from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.engine.leadership.callbacks import OnAcquired, OnReleased
from threadmill_sa.engine.leadership.campaign import Campaign, drive_in_thread
from threadmill_sa.engine.leadership.grant import Fencing, Grant
from threadmill_sa.engine.leadership.seat import Drain, Seat
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.model import limits
from threadmill_sa.model.lease import AcquireAnswer, LossReason
from threadmill_sa.model.names import check_seconds
from threadmill_sa.spi.leases import Leases

_HOST_CHARS = 100  # of a holder's text
_TURN_SECONDS = 5.0  # after the drain is given up: time for the driver's last turn


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop went."""

    released: bool  # the lease was given back; else nothing was held, or it runs out by itself
    stragglers: tuple[str, ...] = ()  # what still acted for the term when the drain was over


class Leader:
    """Campaigns for one mutex from `start` to `stop`; losing a term is an event, not an error.

    A heartbeat thread renews the lease and runs no code of yours. Leading is judged by the
    clock of this process, so a process that was paused does not take itself for the leader.

    Args:
        on_acquired: called with the `Grant` of each new term. When it raises, the term is given
            back and nothing is tried for a cool-down.
        on_released: called with the grant and the `LossReason`, once for each `on_acquired`. The
            lease is kept from others until it has returned, when it was not lost anyway.
        one_term: stop as soon as a term has ended, instead of campaigning for the next.
    Raises: DeclarationError for a callback that cannot be called, or whose body runs later.
    """

    def __init__(
        self,
        name: str,
        leases: Leases,
        fencing: Fencing,
        *,
        timings: Timings,
        on_acquired: OnAcquired | None = None,
        on_released: OnReleased | None = None,
        drive: Callable[[Campaign], object] = drive_in_thread,
        one_term: bool = False,
    ) -> None:
        for callback, what in ((on_acquired, "on_acquired"), (on_released, "on_released")):
            if callback is not None:
                check_body(callback, what, instead="use aleader, on an event loop")
        self._name = name
        self._leases = leases
        self._timings = timings
        self._drive = drive
        self._seat = Seat(name, fencing, on_acquired, on_released, one_term=one_term)
        renew_in_child(self._seat)

    @property
    def name(self) -> str:
        return self._name

    @property
    def running(self) -> bool:
        """True from `start` until the campaign has ended after a `stop`."""
        return self._seat.campaign is not None

    @property
    def is_leader(self) -> bool:
        """True while this process may act as the leader; reads a clock and does no I/O."""
        return self.grant is not None

    @property
    def grant(self) -> Grant | None:
        """The grant of the current term, or None; no I/O."""
        return self._seat.grant or None

    @property
    def observed(self) -> AcquireAnswer | None:
        """What the latest attempt found when somebody else held the mutex, or None."""
        return self._seat.answer

    def start(self) -> Self:
        """Begin to campaign, as a holder that never was before; nothing when it runs already."""
        campaign = self._seat.occupy(
            lambda: Campaign(
                self._name,
                new_holder(),
                self._leases,
                self._timings,
                self._seat,
                now=suspend_proof_seconds,
                noise=random.random,
            ),
            self,
        )
        if campaign is not None:
            self._drive(campaign)
        return self

    def stop(self, *, drain: float | timedelta | None = limits.DRAIN_SECONDS) -> StopReport:
        """End the term, wait until nobody acts for it any more, give the lease back.

        When the wait is over first, the lease is left to run out: a successor waits for that.
        Called by a callback it returns at once, and the lease is given back after that one.
        Again, or before a start, it does nothing.

        Args:
            drain: seconds to wait; None waits for ever.
        """
        seconds = drain_seconds(drain)
        return self.wait_stopped(self.ask_to_stop(), seconds)

    def resign(self, *, cooldown: float | timedelta | None = None) -> bool:
        """Give the term up and let others try first; False when this process did not lead.

        Args:
            cooldown: seconds without an attempt; None is that of the timings.
        """
        pause = None if cooldown is None else drain_seconds(cooldown)
        grant = self.grant
        return grant is not None and self._seat.resign(grant, LossReason.RESIGNED, pause)

    def wait_leader(self, timeout: float | None = None) -> Grant | None:
        """Return the grant once this process leads; None after `timeout` seconds or a stop."""
        self._seat.wait_for(lambda: self.is_leader or not self.running, timeout)
        return self.grant

    def terms(self) -> Iterator[Grant]:
        """Yield each term in turn, until the leader is stopped; one that has passed is skipped."""
        last = 0
        while True:
            self._seat.wait_for(lambda last=last: self.next_term(last) or not self.running)  # type: ignore[misc]
            grant = self.next_term(last)
            if grant is None:
                if not self.running:
                    return
                continue
            last = grant.term
            yield grant

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # What the package's own parts call -------------------------------------------------------

    def next_term(self, last: int) -> Grant | None:
        """Return the grant of a term after `last`, or None."""
        grant = self.grant
        return grant if grant is not None and grant.term > last else None

    @property
    def error(self) -> Exception | None:
        """Why the latest attempt had no answer, or None."""
        return self._seat.error

    @property
    def attempts(self) -> int:
        """How many attempts of this start found the mutex held, or the store silent."""
        return self._seat.attempts

    def wait_for(self, condition: Callable[[], object], timeout: float | None) -> bool:
        """Wait until `condition` holds, which is asked after every change."""
        return self._seat.wait_for(condition, timeout)

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Call `tell` after every change, from any thread; returns what ends it, once."""
        return self._seat.listen(tell)

    def drain_with(self, drain: Drain) -> None:
        """Keep an ended term from others until `drain` has called what it is given."""
        self._seat.drain = drain

    def ask_to_stop(self) -> Campaign | None:
        """End the term and return at once; None when there is no campaign."""
        return self._seat.stop()

    def wait_stopped(
        self, campaign: Campaign | None, drain: float | None, *, by_callback: bool = False
    ) -> StopReport:
        """Wait for the end of a campaign that was asked to stop, as `stop` does."""
        if campaign is None:
            return StopReport(released=False)
        if by_callback or self._seat.callbacks.calling:
            # It would wait for itself; the end comes after it.
            return StopReport(released=False, stragglers=(self._seat.callbacks.running,))
        if self._seat.wait_for(lambda: self._seat.campaign is not campaign, drain):
            return StopReport(released=self._seat.gave_back)
        running = self._seat.callbacks.running
        campaign.abandon()
        self._seat.wait_for(lambda: self._seat.campaign is not campaign, _TURN_SECONDS)
        return StopReport(released=self._seat.gave_back, stragglers=(running,) if running else ())

    def give_up(self) -> None:
        """End without waiting for an attempt that is under way; what it wins is given back."""
        campaign = self._seat.campaign
        if campaign is not None:
            campaign.post(lambda contender, now: contender.give_up(now))
            self._seat.wait_for(lambda: self._seat.campaign is not campaign, _TURN_SECONDS)

    def abandon(self) -> None:
        """End at once and leave the lease to run out."""
        campaign = self._seat.campaign
        if campaign is not None:
            campaign.abandon()


def new_holder() -> str:
    """Return who campaigns: host and process for people to read, and a part that is random.

    Names of hosts and numbers of processes come again, in containers at once; the rest does not.
    """
    return f"{socket.gethostname()[:_HOST_CHARS]}:{os.getpid()}:{secrets.token_hex(12)}"


def drain_seconds(value: float | timedelta | None) -> float | None:
    """Return the seconds of a wait; None is without end. Raises: InvalidValueError."""
    if value is None:
        return None
    return check_seconds(value, what="drain", minimum=0.0, maximum=limits.DRAIN_MAX_SECONDS)
