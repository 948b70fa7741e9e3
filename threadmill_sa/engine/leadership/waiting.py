"""Waiting on an event loop for what a leader's threads change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from threadmill_sa.engine.leadership.leader import Leader


async def wait_for_change(
    leader: Leader,
    condition: Callable[[], object],
    timeout: float | None,  # noqa: ASYNC109
) -> bool:
    """Wait until `condition` holds, which is asked after every change; False after `timeout`."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    stop_listening = leader.listen(lambda: call_soon(loop, changed.set))
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await changed.wait()
                changed.clear()
    except TimeoutError:
        return bool(condition())
    finally:
        stop_listening()
    return True


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call `function` on the loop from any thread; nothing when the loop has ended."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return  # closed: nobody waits there any more
