"""Tells the store that this node lives, and hears which of its jobs it has lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from threadmill_sa.clock import suspend_proof_seconds
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

    Args:
        on_forgotten: called when the store has lost the node's registration though nobody had
            reason to take it away: it was emptied, and may have lost everything else as well.
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
        on_forgotten: Callable[[], None],
    ) -> None:
        super().__init__(name)
        self._nodes = nodes
        self._node = node
        self._book = book
        self._every = every_seconds
        self._timeout = timeout_seconds
        self._monotonic = monotonic
        self._on_lost = on_lost
        self._on_forgotten = on_forgotten
        self._registered_at: datetime | None = None  # by the store's clock
        self._confirmed_at = float("-inf")  # when that was last seen; goes on in a suspension
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
        self._look_for_oblivion()

    def _look_for_oblivion(self) -> None:
        """Notice that this beat has registered the node anew, by the start that the store tells.

        A node that was silent for so long that others sweep it away learns nothing by that.
        """
        found = (node.started_at for node in self._nodes.list() if node.id == self._node.id)
        registered_at, now = next(found, None), suspend_proof_seconds()
        silence = now - self._confirmed_at
        if self._registered_at not in {None, registered_at}:
            if silence < limits.NODE_STALE_SECONDS / 2:
                _log.warning("the store was emptied or restored: it lost node %s", self._node.id)
                self._on_forgotten()
            else:
                _log.warning(
                    "node %s was forgotten in %.0f s of silence; if the store was emptied or"
                    " restored meanwhile, start it again or call register()",
                    self._node.id,
                    silence,
                )
        self._registered_at, self._confirmed_at = registered_at, now
