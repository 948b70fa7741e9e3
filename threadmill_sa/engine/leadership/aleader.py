"""`AsyncLeader`: the leader as an event loop sees it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import wait
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from threadmill_sa._util.callables import check_body
from threadmill_sa.engine.leadership.campaign import Campaign, drive_in_loop, drive_in_thread
from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.engine.leadership.leader import Leader, StopReport, drain_seconds
from threadmill_sa.engine.leadership.waiting import wait_for_change
from threadmill_sa.model import limits

_LOOK_SECONDS = 1.0  # whether the loop that runs a callback is still there

MakeLeader = Callable[..., Leader]


class AsyncLeader:
    """As `Leader`, with awaitable methods; callbacks may be coroutine functions.

    By default the heartbeat is a thread, so that code which blocks the event loop costs no
    lease. With `heartbeat="task"` it is a task of the loop: a loop that stands still then loses
    the lease, as a process that hangs should. Either way `grant` is judged by time, so a loop
    that thaws does not act on a term that has passed.

    Callbacks run on the loop that called `start`, one after another. When that loop is closed
    without a `stop`, nothing is renewed any more: the term ends at the next heartbeat, nobody is
    told, and the lease runs out.

    Raises: DeclarationError for a callback that cannot be called, or is a generator.
    """

    def __init__(
        self,
        make: MakeLeader,
        *,
        on_acquired: Callable[..., Any] | None,
        on_released: Callable[..., Any] | None,
        in_loop: bool,
    ) -> None:
        for callback, what in ((on_acquired, "on_acquired"), (on_released, "on_released")):
            if callback is not None:
                check_body(callback, what)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat: asyncio.Task[None] | None = None
        self._calling: asyncio.Task[Any] | None = None  # runs a callback
        self._leader = make(
            on_acquired=self._bridged(on_acquired),
            on_released=self._bridged(on_released),
            drive=self._drive_in_loop if in_loop else self._drive_in_thread,
        )

    @property
    def name(self) -> str:
        return self._leader.name

    @property
    def running(self) -> bool:
        """True from `start` until the campaign has ended after a `stop`."""
        return self._leader.running

    @property
    def is_leader(self) -> bool:
        """True while this process may act as the leader; reads a clock and does no I/O."""
        return self._leader.is_leader

    @property
    def grant(self) -> Grant | None:
        """The grant of the current term, or None; no I/O."""
        return self._leader.grant

    async def start(self) -> Self:
        """Begin to campaign, as a holder that never was before; nothing when it runs already."""
        leader = self._leader
        if leader.running and self._is_closed():
            leader.abandon()  # what the loop before has left behind
            await wait_for_change(leader, lambda: not leader.running, None)
        self._loop = asyncio.get_running_loop()
        leader.start()
        return self

    async def stop(self, *, drain: float | timedelta | None = limits.DRAIN_SECONDS) -> StopReport:
        """As `Leader.stop`."""
        seconds = drain_seconds(drain)
        campaign = self._leader.ask_to_stop()  # first: the next line may be cancelled
        if asyncio.current_task() is self._calling:
            return self._leader.wait_stopped(campaign, seconds, by_callback=True)
        return await asyncio.to_thread(self._leader.wait_stopped, campaign, seconds)

    async def resign(self, *, cooldown: float | timedelta | None = None) -> bool:
        """As `Leader.resign`."""
        return self._leader.resign(cooldown=cooldown)

    async def wait_leader(self, timeout: float | None = None) -> Grant | None:  # noqa: ASYNC109
        """Return the grant once this process leads; None after `timeout` seconds or a stop."""
        leader = self._leader
        await wait_for_change(leader, lambda: leader.is_leader or not leader.running, timeout)
        return leader.grant

    async def terms(self) -> AsyncIterator[Grant]:
        """Yield each term in turn, until the leader is stopped; one that has passed is skipped."""
        leader, last = self._leader, 0
        while True:
            await wait_for_change(
                leader,
                lambda: leader.next_term(last) or not leader.running,  # noqa: B023
                None,
            )
            grant = leader.next_term(last)
            if grant is not None:
                last = grant.term
                yield grant
            elif not leader.running:
                return

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _drive_in_thread(self, campaign: Campaign) -> None:
        drive_in_thread(campaign, wanted=lambda: not self._is_closed())

    def _is_closed(self) -> bool:
        return self._loop is None or self._loop.is_closed()

    def _drive_in_loop(self, campaign: Campaign) -> None:
        async def beat() -> None:
            try:
                await drive_in_loop(campaign)
            except asyncio.CancelledError:
                # Nobody renews any more: end what is held and let it run out.
                campaign.abandon()
                campaign.turn()
                raise

        self._beat = asyncio.get_running_loop().create_task(beat())

    def _bridged(self, callback: Callable[..., Any] | None) -> Callable[..., None] | None:
        if callback is None:
            return None

        async def call(*args: Any) -> None:
            self._calling = asyncio.current_task()
            try:
                result = callback(*args)
                if inspect.isawaitable(result):
                    await result
            finally:
                self._calling = None

        def on_loop(*args: Any) -> None:
            if self._loop is None or self._loop.is_closed():
                return  # nobody is there to be told
            calling = call(*args)
            told = asyncio.run_coroutine_threadsafe(calling, self._loop)
            while wait([told], _LOOK_SECONDS).not_done:
                if self._is_closed():  # before it came to that, or in the middle of it
                    calling.close()
                    return
            told.result()

        return on_loop
