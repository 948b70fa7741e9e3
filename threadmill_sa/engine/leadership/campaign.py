"""One start of one contender: the state machine, its calls to the store, and what it tells.

Everything that happens is posted and then taken in turns by one driver: a thread of its own, or
a task of an event loop. A driver waits for `ring` or the time that `turn` names.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from threadmill_sa.engine.leadership import contender as machine
from threadmill_sa.engine.leadership.calls import CallRunner
from threadmill_sa.engine.leadership.contender import Call, CallKind, Contender, Reply
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.model.lease import AcquireAnswer, AcquireVerdict, Lease, LossReason
from threadmill_sa.spi.leases import Leases

_log = logging.getLogger(__name__)

_AFTER_A_BUG_SECONDS = 0.1

Event = Callable[[Contender, float], list[machine.Action]]


class Audience(Protocol):
    """Who is told, by the driver; every method must return at once and not raise."""

    def began(self, lease: Lease, trusted_until: float) -> None: ...

    def extended(self, term: int, trusted_until: float) -> None: ...

    def ended(self, term: int, reason: LossReason) -> None: ...

    def saw(self, answer: AcquireAnswer | None, error: Exception | None) -> None: ...

    def stopped(self, *, released: bool) -> None: ...


class Campaign:
    """Drives a `Contender`: turns actions into calls and news, and replies into events."""

    def __init__(
        self,
        name: str,
        holder: str,
        leases: Leases,
        timings: Timings,
        audience: Audience,
        *,
        now: Callable[[], float],
        noise: Callable[[], float],
    ) -> None:
        self._name = name
        self._holder = holder
        self._leases = leases
        self._ttl = timings.seconds("ttl")
        self._timeout = timings.seconds("call_timeout")
        self._audience = audience
        self._now = now
        self._contender = Contender(holder, timings, noise)
        self._events: deque[Event] = deque()
        self._guard = threading.Lock()
        self._over = False
        self._calls = CallRunner(f"threadmill-lease-call-{name}", most=limits.LEASE_CALLS_MAX)
        self._error: Exception | None = None
        self._unwatch: Callable[[], None] | None = None
        self._ring: Callable[[], None] = lambda: None
        self.post(lambda contender, now: contender.start(now))

    def post(self, event: Event) -> bool:
        """Let the driver take `event` in its next turn; False when the campaign is over."""
        with self._guard:
            if self._over:
                return False
            self._events.append(event)
        self._ring()
        return True

    def abandon(self) -> None:
        """Ask for nothing more: what is held runs out."""
        self.post(lambda contender, now: contender.abandon(now))

    def call_up(self, ring: Callable[[], None]) -> None:
        """Name what wakes the driver; it must be safe to call from any thread."""
        self._ring = ring

    def turn(self) -> float | None:
        """Take what has happened; return the seconds until the next turn, None at the end."""
        while True:
            with self._guard:
                event = self._events.popleft() if self._events else None
            now = self._now()
            if event is None:
                self._do_all(self._contender.pass_time(now))
                break
            self._do_all(event(self._contender, now))
        with self._guard:
            if self._events:
                return 0.0
            self._over = self._contender.stopped
        if self._over:
            self._finish()
            return None
        return max(0.0, self._contender.wake_at - self._now())

    def _finish(self) -> None:
        self._calls.close()
        if self._unwatch is not None:
            self._unwatch()

    def _do_all(self, actions: list[machine.Action]) -> None:
        for action in actions:
            self._do(action)

    def _do(self, action: machine.Action) -> None:
        match action:
            case Call():
                self._send(action)
            case machine.Began(term, trusted_until):
                self._audience.began(Lease(self._name, self._holder, term), trusted_until)
            case machine.Extended(term, trusted_until):
                self._audience.extended(term, trusted_until)
            case machine.Ended(term, reason):
                _log.info("term %d of lease %r ended: %s", term, self._name, reason)
                self._audience.ended(term, reason)
            case machine.Saw(answer):
                if answer is not None:
                    self._watch()
                self._audience.saw(answer, self._error or self._unanswered())
            case machine.Stopped(released):
                self._audience.stopped(released=released)

    def _unanswered(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"lease {self._name!r}: the store gave no answer within {self._timeout:g} s"
        )

    def _watch(self) -> None:
        if self._unwatch is None:
            self._unwatch = self._leases.watch(self._name, self._hint)
            self._hint()  # for what happened before

    def _hint(self) -> None:
        self.post(lambda contender, now: contender.hint(now))

    # Calls, on threads of their own ----------------------------------------------------------

    def _send(self, call: Call) -> None:
        if not self._calls.submit(lambda: self._make(call)):
            self._reply(call, None)  # every earlier call hangs

    def _make(self, call: Call) -> None:
        try:
            reply = self._ask(call)
        except Exception as error:  # noqa: BLE001  Nothing of it may end the heartbeat.
            if self._error is None:  # only the first of an outage is logged
                _log.warning("%s of lease %r failed: %s", call.kind.value, self._name, error)
            self._error = error
            self._reply(call, None)
            return
        self._error = None
        self._reply(call, reply)

    def _ask(self, call: Call) -> Reply:
        lease = Lease(self._name, self._holder, call.term)
        match call.kind:
            case CallKind.ACQUIRE:
                return self._leases.acquire(
                    self._name,
                    self._holder,
                    ttl_seconds=self._ttl,
                    timeout_seconds=self._timeout,
                )
            case CallKind.RENEW:
                return self._leases.renew(
                    lease, ttl_seconds=self._ttl, timeout_seconds=self._timeout
                )
            case CallKind.RELEASE:
                return self._leases.release(lease, timeout_seconds=self._timeout)

    def _reply(self, call: Call, reply: Reply) -> None:
        heard = self.post(lambda contender, now: contender.reply(call, reply, now))
        won = isinstance(reply, AcquireAnswer) and reply.verdict is AcquireVerdict.ACQUIRED
        if not heard and won:  # after the end: give back what nobody will renew
            self._give_back(reply)

    def _give_back(self, answer: Reply) -> None:
        assert isinstance(answer, AcquireAnswer)  # noqa: S101
        try:
            self._leases.release(answer.lease, timeout_seconds=self._timeout)
        except Exception as error:  # noqa: BLE001  It runs out by itself.
            _log.info("lease %r was won after the stop and runs out: %s", self._name, error)


def _turn(campaign: Campaign) -> float | None:
    try:
        return campaign.turn()
    except Exception:  # noqa: BLE001  A bug must be seen, and the heartbeat must go on.
        _log.exception("a turn of a lease's heartbeat failed")
        return _AFTER_A_BUG_SECONDS


def drive_in_thread(
    campaign: Campaign, *, wanted: Callable[[], bool] = lambda: True
) -> threading.Thread:
    """Take the turns on a new daemon thread, until the campaign is over.

    Args:
        wanted: asked before each turn; False abandons the campaign.
    """
    signal = threading.Event()
    campaign.call_up(signal.set)

    def main() -> None:
        while True:
            signal.clear()
            if not wanted():
                campaign.abandon()
            seconds = _turn(campaign)
            if seconds is None:
                return
            signal.wait(min(seconds, limits.WAIT_MAX_SECONDS))

    thread = threading.Thread(target=main, name="threadmill-lease", daemon=True)
    thread.start()
    return thread


async def drive_in_loop(campaign: Campaign) -> None:
    """Take the turns on the running event loop, until the campaign is over.

    Whatever blocks the loop delays the renewals: then the term ends, as it does for others.
    """
    loop = asyncio.get_running_loop()
    signal = asyncio.Event()
    left_alone = threading.Lock()

    def ring() -> None:
        try:
            loop.call_soon_threadsafe(signal.set)
        except (
            RuntimeError
        ):  # the loop is closed: another driver takes the last turns, and one only
            if left_alone.acquire(blocking=False):
                drive_in_thread(campaign, wanted=lambda: False)

    campaign.call_up(ring)
    while True:
        signal.clear()
        seconds = _turn(campaign)
        if seconds is None:
            return
        try:
            async with asyncio.timeout(min(seconds, limits.WAIT_MAX_SECONDS)):
                await signal.wait()
        except TimeoutError:
            continue
