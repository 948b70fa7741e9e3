"""The contender as a pure state machine: events and instants in, actions out.

No I/O and no clock. Every event takes `now`, seconds of one local clock that never goes back and
goes on while the machine is suspended; what happens next happens at `wake_at` at the latest.
Drivers execute the actions in order and give every reply back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.model import limits
from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    LossReason,
    ReleaseVerdict,
    RenewVerdict,
)

NEVER = math.inf


class CallKind(Enum):
    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Call:
    """Make one call to the store and give its reply back, whenever it comes."""

    number: int
    kind: CallKind
    term: int  # 0 for ACQUIRE
    sent_at: float


@dataclass(frozen=True, slots=True)
class Began:
    """A term is ours, to be trusted until then."""

    term: int
    trusted_until: float


@dataclass(frozen=True, slots=True)
class Extended:
    """The term is to be trusted longer."""

    term: int
    trusted_until: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The term is over: nobody may act for it. Reply with `drained` once nobody does."""

    term: int
    reason: LossReason


@dataclass(frozen=True, slots=True)
class Saw:
    """Somebody else holds the name, or has just ended; or None: the store did not answer."""

    answer: AcquireAnswer | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more will be asked for."""

    released: bool  # False: nothing was held, or what is held runs out by itself


Action = Call | Began | Extended | Ended | Saw | Stopped
Reply = AcquireAnswer | RenewVerdict | ReleaseVerdict | None
"""What the store said; None when it did not answer, so that anything may have happened."""


class _State(Enum):
    ADOPTING = "adopting"  # ours, but the reply was lost: a renewal tells from when to count
    LEADING = "leading"
    DRAINING = "draining"  # ended here; renewed until the last one who acts for it is done
    RELEASING = "releasing"


@dataclass(slots=True)
class _Holding:
    term: int
    state: _State
    next_at: float  # of its next call
    trusted_until: float = -NEVER
    tries: int = 0


class Contender:
    """One start of one contender for one name; a restart is a new one with a new holder.

    It never begins a term twice, never two at once, and trusts a term only until the start of
    its last successful call + ttl - margin. A term that ended stays ended, whatever comes late.
    """

    def __init__(self, holder: str, timings: Timings, noise: Callable[[], float]) -> None:
        self._holder = holder
        self._noise = noise
        self._ttl = timings.seconds("ttl")
        self._trust = self._ttl - timings.seconds("margin")
        self._renew_every = timings.seconds("renew_every")
        self._patience = timings.seconds("call_timeout")
        self._cooldown = timings.seconds("cooldown")
        self._spread = timings.jitter * self._ttl
        self._retry_min, self._retry_max = timings.retry_min, timings.retry_max
        self._holding: _Holding | None = None
        self._call: Call | None = None  # the one whose reply is waited for
        self._numbers = 0
        self._failures = 0
        self._last_term = 0  # the latest that began or was given back
        self._undrained: int | None = None
        self._attempt_at = NEVER
        self._not_before = -NEVER
        self._gap_ends_at = -NEVER
        self._heard = False  # a hint came while an attempt was under way
        self._stopping = False
        self._released = False
        self.stopped = False

    @property
    def wake_at(self) -> float:
        """The instant at which `pass_time` must be called at the latest."""
        holding, call = self._holding, self._call
        due = NEVER
        if holding is not None and holding.state is _State.LEADING:
            due = holding.trusted_until
        if call is not None:
            return min(due, call.sent_at + self._patience)
        if holding is not None:
            return min(due, holding.next_at)
        return min(due, self._next_attempt) if self._campaigns else due

    @property
    def _next_attempt(self) -> float:
        return max(self._attempt_at, self._not_before, self._gap_ends_at)

    @property
    def _campaigns(self) -> bool:
        return self._undrained is None and not self._stopping and not self.stopped

    # Events ----------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        self._attempt_at = now
        return self._go_on(now)

    def pass_time(self, now: float) -> list[Action]:
        return self._go_on(now)

    def hint(self, now: float) -> list[Action]:
        """The name may have become free; spurious and lost ones do no harm."""
        self._heard = self._call is not None and self._call.kind is CallKind.ACQUIRE
        self._try_again(now, self._noise() * limits.LEASE_HINT_SPREAD_SECONDS, sooner=True)
        return self._go_on(now)

    def reply(self, call: Call, reply: Reply, now: float) -> list[Action]:
        """Take the reply of a call, in time or late, in any order."""
        actions = self._expire(now)
        in_time = call == self._call
        if in_time:
            self._call = None
        if reply is None:
            if in_time:
                actions += self._failed(call, now)
        else:
            if in_time:
                self._failures = 0
            if isinstance(reply, AcquireAnswer):
                actions += self._answered(call, reply, now, in_time=in_time)
            elif isinstance(reply, RenewVerdict):
                actions += self._renewed(call, reply, now)
            elif in_time:
                self._given_back(now, released=reply is ReleaseVerdict.RELEASED)
        return actions + self._go_on(now)

    def resign(
        self,
        now: float,
        *,
        reason: LossReason = LossReason.RESIGNED,
        cooldown: float | None = None,
    ) -> list[Action]:
        """End the term, give it back once drained, and try nothing for the cool-down."""
        actions = self._expire(now)
        pause = self._cooldown if cooldown is None else cooldown
        self._not_before = max(self._not_before, now + pause)
        return actions + self._give_up(reason) + self._go_on(now)

    def drained(self, term: int, now: float) -> list[Action]:
        """Nobody acts for the ended `term` any more."""
        actions = self._expire(now)
        if self._undrained == term:
            self._undrained = None
            self._try_again(now, 0.0)
            holding = self._holding
            if holding is not None and holding.state is _State.DRAINING:
                holding.state, holding.next_at = _State.RELEASING, now
        return actions + self._go_on(now)

    def stop(self, now: float) -> list[Action]:
        """End the term, give it back once drained, and then ask for nothing more."""
        actions = self._expire(now)
        self._stopping = True
        return actions + self._give_up(LossReason.RELEASED) + self._go_on(now)

    def give_up(self, now: float) -> list[Action]:
        """As `stop`, and what an attempt under way wins is given back when its reply comes."""
        if self._call is not None and self._call.kind is CallKind.ACQUIRE:
            self._call = None
        return self.stop(now)

    def abandon(self, now: float) -> list[Action]:
        """Ask for nothing more, at once: what is held runs out, so a successor waits for it."""
        actions = self._expire(now)
        self._stopping = True
        actions += self._give_up(LossReason.RELEASED)
        self._holding = self._call = None
        self._undrained = None
        return actions + self._go_on(now)

    # Replies ---------------------------------------------------------------------------------

    def _answered(
        self, call: Call, answer: AcquireAnswer, now: float, *, in_time: bool
    ) -> list[Action]:
        term = answer.lease.term
        mine = answer.lease.holder == self._holder
        if answer.verdict is AcquireVerdict.ACQUIRED:
            if self._holding is not None:
                return []  # late: this very term was adopted, or has run out long ago
            wanted = in_time and self._campaigns and term > self._last_term
            if wanted and now < call.sent_at + self._trust:
                return self._begin(_Holding(term, _State.ADOPTING, now), call)
            self._release(term, now)
            return []
        if not in_time:
            return []
        if mine and answer.remaining_seconds > 0:
            if term > self._last_term and self._campaigns:
                self._holding = _Holding(term, _State.ADOPTING, now)
            else:
                self._release(term, now)
            return []
        self._try_again(now, answer.remaining_seconds + self._noise() * self._spread)
        if self._heard:
            self._heard = False
            self._try_again(now, self._noise() * limits.LEASE_HINT_SPREAD_SECONDS, sooner=True)
        return [Saw(answer)]

    def _renewed(self, call: Call, verdict: RenewVerdict, now: float) -> list[Action]:
        holding = self._holding
        if holding is None or holding.term != call.term:
            return []
        if verdict is RenewVerdict.LOST:
            self._holding = None
            self._try_again(now, self._noise() * limits.LEASE_HINT_SPREAD_SECONDS)
            if holding.state is _State.LEADING:
                return [self._end(holding.term, LossReason.TAKEN_OVER)]
            return []
        trusted_until = call.sent_at + self._trust
        holding.next_at = call.sent_at + self._renew_every * (1 - self._noise() / 10)
        if holding.state is _State.ADOPTING:
            if now < trusted_until:
                return self._begin(holding, call)
            self._release(holding.term, now)
        elif holding.state is _State.LEADING and trusted_until > holding.trusted_until:
            holding.trusted_until = trusted_until
            return [Extended(holding.term, trusted_until)]
        return []

    def _given_back(self, now: float, *, released: bool) -> None:
        self._holding = None
        self._released = self._released or released
        self._try_again(now, limits.LEASE_ATTEMPT_GAP_SECONDS)

    def _failed(self, call: Call, now: float) -> list[Action]:
        self._failures += 1
        holding = self._holding
        if holding is not None and holding.term == call.term:
            holding.tries += 1
            holding.next_at = now + self._pause(self._retry_max)
            if holding.state is _State.RELEASING and holding.tries >= limits.LEASE_RELEASE_TRIES:
                self._given_back(now, released=False)
            return []
        self._try_again(now, self._pause(self._renew_every))
        return [Saw(None)] if call.kind is CallKind.ACQUIRE else []

    # Terms -----------------------------------------------------------------------------------

    def _begin(self, holding: _Holding, call: Call) -> list[Action]:
        self._holding = holding
        holding.state = _State.LEADING
        holding.trusted_until = call.sent_at + self._trust
        holding.next_at = call.sent_at + self._renew_every * (1 - self._noise() / 10)
        self._last_term = holding.term
        return [Began(holding.term, holding.trusted_until)]

    def _end(self, term: int, reason: LossReason) -> Ended:
        self._undrained = term
        return Ended(term, reason)

    def _give_up(self, reason: LossReason) -> list[Action]:
        holding = self._holding
        if holding is None:
            return []
        if holding.state is _State.LEADING:
            holding.state = _State.DRAINING
            return [self._end(holding.term, reason)]
        if holding.state is _State.ADOPTING:
            self._release(holding.term, holding.next_at)
        return []

    def _release(self, term: int, now: float) -> None:
        """Give back a term that nobody acts for; also one that began while its reply was late."""
        self._last_term = max(self._last_term, term)
        self._holding = _Holding(term, _State.RELEASING, now)

    def _expire(self, now: float) -> list[Action]:
        holding = self._holding
        if holding is None or holding.state is not _State.LEADING or now < holding.trusted_until:
            return []
        self._holding = None
        self._try_again(now, 0.0)
        return [self._end(holding.term, LossReason.EXPIRED)]

    # What to do next -------------------------------------------------------------------------

    def _go_on(self, now: float) -> list[Action]:
        actions = self._expire(now)
        call = self._call
        if call is not None and now >= call.sent_at + self._patience:
            self._call = None  # its reply may still come, and is then late
            actions += self._failed(call, now)
        if self._call is None:
            actions += self._next_call(now)
        if self._stopping and not self.stopped and self._is_idle:
            self.stopped = True
            actions.append(Stopped(self._released))
        return actions

    @property
    def _is_idle(self) -> bool:
        return self._holding is None and self._call is None and self._undrained is None

    def _next_call(self, now: float) -> list[Action]:
        holding = self._holding
        if holding is not None:
            if now < holding.next_at:
                return []
            renews = holding.state is not _State.RELEASING
            return [self._ask(CallKind.RENEW if renews else CallKind.RELEASE, holding.term, now)]
        if not self._campaigns or now < self._next_attempt:
            return []
        self._attempt_at = NEVER
        self._gap_ends_at = now + limits.LEASE_ATTEMPT_GAP_SECONDS
        self._heard = False
        return [self._ask(CallKind.ACQUIRE, 0, now)]

    def _ask(self, kind: CallKind, term: int, now: float) -> Call:
        self._numbers += 1
        self._call = Call(self._numbers, kind, term, now)
        return self._call

    def _try_again(self, now: float, pause: float, *, sooner: bool = False) -> None:
        """Plan the next attempt after `pause`; `sooner` only ever moves it forward."""
        at = now + pause
        self._attempt_at = min(self._attempt_at, at) if sooner else at

    def _pause(self, longest: float) -> float:
        pause: float = min(longest, self._retry_min * 2.0 ** min(self._failures - 1, 32))
        return pause * (0.5 + self._noise() / 2)
