"""Time-ordered ids (UUID version 7, RFC 9562), strictly increasing within one process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from threadmill_sa._util.forks import renew_in_child

_SEQUENCE_BITS = 42  # below version and variant: 12 bits of rand_a and the top 30 of rand_b
_RANDOM_BITS = 32


class Uuid7Source:
    """Makes ids whose order is the order of the calls, whatever the clock does.

    The 48-bit millisecond is followed by a 42-bit counter that starts at a random point in each
    new millisecond, so ids of one millisecond, and of a clock that steps back, still grow.
    """

    def __init__(self, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._entropy = entropy
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Go on without the parent's lock and counter."""
        self._lock = threading.Lock()
        self._millis = -1
        self._counter = 0
        self._pid = os.getpid()

    def __call__(self, now: datetime) -> UUID:
        """Return the next id, stamped with `now` (aware UTC)."""
        noise = int.from_bytes(self._entropy(8), "big")
        millis = int(now.timestamp() * 1000)
        with self._lock:
            if os.getpid() != self._pid:  # a forked child must not continue its parent's counter
                self._pid, self._millis = os.getpid(), -1
            if millis > self._millis:
                self._millis = millis
                # The top bit stays free, so 2**41 ids fit before the millisecond moves on.
                self._counter = noise & ((1 << (_SEQUENCE_BITS - 1)) - 1)
            else:
                self._counter += 1
                if self._counter >> _SEQUENCE_BITS:
                    self._millis, self._counter = self._millis + 1, 0
            stamp, counter = self._millis, self._counter
        return _assemble(stamp, counter, noise >> 32)


def _assemble(millis: int, counter: int, random: int) -> UUID:
    rand_a, high = counter >> 30, counter & ((1 << 30) - 1)
    value = (millis & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | rand_a << 64 | 0b10 << 62
    value |= high << _RANDOM_BITS | random & ((1 << _RANDOM_BITS) - 1)
    return UUID(int=value)
