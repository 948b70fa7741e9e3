"""Tells the store that this node lives, and hears which of its jobs it has lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from threadmill_sa.engine.processing.attempts import Attempt, AttemptBook
from threadmill_sa.engine.processing.outage import Outage
from threadmill_sa.engine.service import Service
from threadmill_sa.model import limits
from threadmill_sa.model.node import NodeInfo
from threadmill_sa.spi.nodes import Nodes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _StoreTime:
    """An instant of the store's clock, and this process's seconds when it was known."""

    instant: datetime
    known_at: float

    def at(self, seconds: float) -> datetime:
        """Return the store's instant when this process's clock shows `seconds`."""
        return self.instant + timedelta(seconds=seconds - self.known_at)


class Heartbeats(Service):
    """A thread of its own, so that no other work delays a beat; it ends last in a drain.

    The first beat happens inside `start`, so a node that cannot reach its store does not start.

    Args:
        elapsed: seconds that go on while the machine is suspended: a node that slept must notice.
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
        elapsed: Callable[[], float],
        on_lost: Callable[[Attempt], None],
        on_forgotten: Callable[[], None],
    ) -> None:
        super().__init__(name)
        self._nodes = nodes
        self._node = node
        self._book = book
        self._every = every_seconds
        self._timeout = timeout_seconds
        self._elapsed = elapsed
        self._on_lost = on_lost
        self._on_forgotten = on_forgotten
        self._registered_at: datetime | None = None  # by the store's clock
        self._confirmed_at = float("-inf")  # when that was last seen
        self._store_time: _StoreTime | None = None
        self._last_seen = self._in_touch_since = float("-inf")
        self._outage = Outage(
            "heartbeat", longest_seconds=min(every_seconds, limits.OUTAGE_PAUSE_MAX_SECONDS)
        )

    def healthy(self) -> bool:
        """False once beats have failed for half of the timeout: others may soon take our jobs."""
        return self._elapsed() - self._last_seen <= self._timeout / 2

    def silent_since(self, seconds: float) -> datetime | None:
        """Return the instant that a node silent for so long has not beaten after, if known.

        None until this node has been in touch with the store for half of the timeout: before, the
        silence of others proves nothing. The store may have been out for them as well, its clock
        may have jumped, or this process stood still. They all beat again within that time.

        The store's clock is taken as the last beat has met it, and goes on by this process's: a
        jump since then makes nobody silent.
        """
        known, now = self._store_time, self._elapsed()
        if known is None or not self.healthy() or now - self._in_touch_since < self._timeout / 2:
            return None
        return known.at(now) - timedelta(seconds=seconds)

    def _open(self) -> None:
        self._beat()

    def _run(self) -> None:
        due = self._elapsed() + self._every
        while True:
            self._rest(due - self._elapsed())
            if self._stopping.is_set():
                return
            if self._elapsed() < due:
                continue  # the wait was cut at its maximum
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001  Beats go on through every outage.
                due = self._elapsed() + self._outage.failed(error)
                continue
            self._outage.ended()
            # On a grid, so a slow store does not stretch the interval; a beat that was missed
            # altogether is not repeated.
            due = max(due + self._every, self._elapsed())

    def _beat(self) -> None:
        # Before the call: a beat that takes long proves life at its start only.
        asked = self._elapsed()
        held = self._book.holds()
        lost = self._nodes.beat(self._node, held)
        if asked - self._last_seen > self._timeout / 2:
            self._in_touch_since = asked
        self._last_seen = asked
        for attempt in self._book.mark_lost(held, lost):
            self._on_lost(attempt)
        found = next((node for node in self._nodes.list() if node.id == self._node.id), None)
        now = self._elapsed()
        self._read_the_clock(None if found is None else found.heartbeat_at, now)
        self._look_for_oblivion(None if found is None else found.started_at, now)

    def _read_the_clock(self, beaten_at: datetime | None, now: float) -> None:
        """Learn the store's time, and whether its clock has jumped since the last beat."""
        known, self._store_time = self._store_time, None
        if beaten_at is None:
            return
        jump = 0.0 if known is None else (beaten_at - known.at(now)).total_seconds()
        if abs(jump) > self._timeout / 2:
            _log.warning(
                "the store's clock moved by %+.0f s against this process's: no job is taken back"
                " from a silent node for %.0f s",
                jump,
                self._timeout / 2,
            )
            self._in_touch_since = now
        self._store_time = _StoreTime(beaten_at, now)

    def _look_for_oblivion(self, registered_at: datetime | None, now: float) -> None:
        """Notice that this beat has registered the node anew, by the start that the store tells.

        A node that was silent for so long that others sweep it away learns nothing by that.
        """
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
