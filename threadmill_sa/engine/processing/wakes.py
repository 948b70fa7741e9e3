"""One listener per wake channel, however many nodes of this process want to hear it."""

from __future__ import annotations

import os
from collections.abc import Callable

from threadmill_sa._util.forks import ChildLock
from threadmill_sa.spi.wakes import WakeChannel

Listener = Callable[[], None]

_lock = ChildLock()
_ears: dict[tuple[int, int], _Ears] = {}  # by process and channel


class _Ears:
    def __init__(self, channel: WakeChannel) -> None:
        self.channel = channel  # kept, so its id stays its own
        self.listeners: tuple[Listener, ...] = ()

    def hear(self) -> None:
        for listener in self.listeners:
            listener()


def subscribe(channel: WakeChannel, listener: Listener) -> None:
    """Call `listener` for each wake of `channel`; the first one starts the listening."""
    with _lock:
        key = os.getpid(), id(channel)
        ears = _ears.get(key)
        if ears is None:
            ears = _Ears(channel)
            channel.listen(ears.hear)
            _ears[key] = ears
        ears.listeners = (*ears.listeners, listener)


def unsubscribe(channel: WakeChannel, listener: Listener) -> None:
    """Undo `subscribe`; the last one closes the channel, which producers open again."""
    with _lock:
        key = os.getpid(), id(channel)
        ears = _ears.get(key)
        if ears is None:
            return
        ears.listeners = tuple(each for each in ears.listeners if each != listener)
        if not ears.listeners:
            del _ears[key]
            channel.close()
