"""Tells the store that this node lives, and hears which of its jobs it has lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

from threadmill_sa.engine.processing.attempts import Attempt, AttemptBook
from threadmill_sa.engine.processing.outage import Outage
from threadmill_sa.engine.service import Service
from threadmill_sa.model import limits
from threadmill_sa.model.node import NodeInfo
from threadmill_sa.spi.nodes import Nodes

_log = logging.getLogger(__name__)


class Heartbeats(Service):
    """A thread of its own, so that no other work delays a beat; it ends last in a drain.

    The first beat happens inside `start`, so a node that cannot reach its store does not start.
    """

    def __init__(
        self,
        name: str,
        nodes: Nodes,
        node: NodeInfo,
        book: AttemptBook,
        *,
        every_seconds: float,
        timeout_seconds: float,
        monotonic: Callable[[], float],
        on_lost: Callable[[Attempt], None],
    ) -> None:
        super().__init__(name)
        self._nodes = nodes
        self._node = node
        self._book = book
        self._every = every_seconds
        self._timeout = timeout_seconds
        self._monotonic = monotonic
        self._on_lost = on_lost
        self._last_seen = self._in_touch_since = float("-inf")
        self._outage = Outage(
            "heartbeat", longest_seconds=min(every_seconds, limits.OUTAGE_PAUSE_MAX_SECONDS)
        )

    def healthy(self) -> bool:
        """False once beats have failed for half of the timeout: others may soon take our jobs."""
        return self._monotonic() - self._last_seen <= self._timeout / 2

    def may_judge(self) -> bool:
        """True once this node has been in touch with the store for half of the timeout.

        Before, the silence of others proves nothing: the store may have been out for them as
        well, or this process stood still. They all beat again within that time.
        """
        in_touch = self._monotonic() - self._in_touch_since
        return self.healthy() and in_touch >= self._timeout / 2

    def _open(self) -> None:
        self._beat()

    def _run(self) -> None:
        due = self._monotonic() + self._every
        while True:
            self._rest(due - self._monotonic())
            if self._stopping.is_set():
                return
            if self._monotonic() < due:
                continue  # the wait was cut at its maximum
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001  Beats go on through every outage.
                due = self._monotonic() + self._outage.failed(error)
                continue
            self._outage.ended()
            # On a grid, so a slow store does not stretch the interval; a beat that was missed
            # altogether is not repeated.
            due = max(due + self._every, self._monotonic())

    def _beat(self) -> None:
        # Before the call: a beat that takes long proves life at its start only.
        asked = self._monotonic()
        held = self._book.holds()
        lost = self._nodes.beat(self._node, held)
        if asked - self._last_seen > self._timeout / 2:
            self._in_touch_since = asked
        self._last_seen = asked
        for attempt in self._book.mark_lost(held, lost):
            self._on_lost(attempt)
