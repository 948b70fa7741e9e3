"""Revisions drawn in blocks, so that an accept needs no answer from the server."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.model.limits import REVISION_BLOCK


class RevisionBlocks:
    """Hands out revisions one by one; draws the next block when the last one is used up.

    A revision is an identity, never an order. The lock is never held while SQL runs: two
    producers that draw at once each get a block, and one of the blocks is dropped.
    """

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A child must not go on with its parent's block."""
        self._lock = Lock()
        self._upcoming = self._end = 0

    def next(self, draw: Callable[[], int]) -> int:
        """Return a revision; `draw` gives the first of limits.REVISION_BLOCK new ones."""
        with self._lock:
            if self._upcoming < self._end:
                revision = self._upcoming
                self._upcoming += 1
                return revision
        first = draw()
        with self._lock:
            self._upcoming, self._end = first + 1, first + REVISION_BLOCK
        return first
