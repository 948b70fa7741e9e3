"""The housekeeping that every node does; correct without a leader, since each commit is atomic."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from threadmill_sa.engine.processing.failures import FailurePath
from threadmill_sa.engine.processing.handlers import HandlerRegistry
from threadmill_sa.engine.processing.outage import Outage
from threadmill_sa.engine.processing.retention import RetentionSweep
from threadmill_sa.engine.recurring.materializer import Materializer
from threadmill_sa.engine.service import Service
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import AttemptOutcome, NewJob, OrphanedJob
from threadmill_sa.spi.store import JobStore

_log = logging.getLogger(__name__)


class MaintenanceCycle(Service):
    """Ticks recurring tasks, promotes delayed jobs, takes back orphans and tidies up.

    A tick runs every `tick_seconds` +- 10 %, so several nodes do not tick together, and at once
    after a wake. Each activity is isolated: one that fails holds up no other.

    While `relieved` says that another node does the same, only wakes, the reclaim of orphans and
    what follows a failed tick stay as they are: of the other turns one is taken every
    limits.RELIEVED_TICK_SECONDS, or 10 % earlier. Wakes therefore cost no more than before, and
    neither a killed holder nor one that does nothing delays anything for longer.

    Args:
        relieved: whether another node is known to keep house; asked before each turn, no I/O.
        on_ready: called when jobs became ready that this node can run.
        on_ready_elsewhere: called when jobs became ready that other nodes may run.
        serves: whether this node runs jobs of that handler and queue.
        silent_since: the instant that a node silent for so many seconds has not beaten after, by
            the store's clock; None while the silence of others says nothing.
    """

    def __init__(
        self,
        name: str,
        store: JobStore,
        materializer: Materializer,
        failures: FailurePath,
        handlers: HandlerRegistry,
        *,
        retention: RetentionSweep,
        tick_seconds: float,
        heartbeat_timeout_seconds: float,
        instant: Callable[[], datetime | None],
        monotonic: Callable[[], float],
        noise: Callable[[], float],
        relieved: Callable[[], bool],
        serves: Callable[[NewJob], bool],
        silent_since: Callable[[float], datetime | None],
        on_ready: Callable[[], None],
        on_ready_elsewhere: Callable[[], None],
    ) -> None:
        super().__init__(name)
        self._store = store
        self._materializer = materializer
        self._failures = failures
        self._handlers = handlers
        self._retention = retention
        self._tick_every = tick_seconds
        self._timeout = heartbeat_timeout_seconds
        self._tidy_every = min(limits.HOUSEKEEPING_SECONDS, heartbeat_timeout_seconds / 4)
        self._instant = instant
        self._monotonic = monotonic
        self._noise = noise
        self._relieved = relieved
        self._serves = serves
        self._silent_since = silent_since
        self._on_ready = on_ready
        self._on_ready_elsewhere = on_ready_elsewhere
        self._woken = threading.Event()  # the next turn is taken, whoever else keeps house
        self._delayed = threading.Event()  # the next turn promotes as well
        self._inserted = threading.Event()  # the next turn lets the dispatcher look as well
        self._outages: dict[str, Outage] = {}

    def wake(self, *, delayed: bool = False, inserted: bool = False) -> None:
        """Tick at once; wakes during a tick cause one more.

        With `delayed` also promote; with `inserted` have the dispatcher look for jobs afterwards:
        both at once would only stand in each other's way.
        """
        if delayed:
            self._delayed.set()
        if inserted:
            self._inserted.set()
        self._woken.set()
        super().wake()

    def _run(self) -> None:
        tick_at = unrelieved_at = reclaim_at = tidy_at = self._monotonic()
        while not self._stopping.is_set():
            began, regular, well = self._monotonic(), False, True
            if began >= tick_at:
                tick_at = began + self._tick_every * (0.9 + 0.2 * self._noise())
                regular = began >= unrelieved_at or not self._relieved()
                if regular:
                    self._delayed.set()
                    longest = limits.RELIEVED_TICK_SECONDS * (0.9 + 0.1 * self._noise())
                    unrelieved_at = max(tick_at, began + longest)
                tick_at = min(tick_at, unrelieved_at)
            turn = regular or self._woken.is_set()
            if turn:
                well = self._tick_and_promote()
            if not well:
                unrelieved_at = tick_at
            if began >= reclaim_at:
                reclaim_at = began + self._tidy_every
                self._guarded("orphan reclaim", self._reclaim)
            if turn and began >= tidy_at:
                tidy_at = began + self._tidy_every
                self._tidy()
            worked = self._monotonic() - began
            self._guarded("removal of finished jobs", self._retire)
            self._breathe(worked, tick_at, well=well)

    def _tick_and_promote(self) -> bool:
        """Take what a turn begins with; False when the tick failed."""
        self._woken.clear()
        inserted = self._inserted.is_set()
        self._inserted.clear()
        well = self._guarded("tick", self._tick)
        if inserted:
            self._on_ready()
        if self._delayed.is_set():
            self._delayed.clear()
            self._guarded("promotion", self._promote)
        return well

    def _breathe(self, worked: float, tick_at: float, *, well: bool) -> None:
        now = self._monotonic()
        if not well:
            self._rest(tick_at - now)  # wakes would only hammer on a store that is out
            return
        # A stream of wakes must not occupy the store: as much rest as work, within bounds.
        gap = min(max(worked, limits.WAKE_GAP_MIN_SECONDS), limits.WAKE_GAP_MAX_SECONDS)
        self._rest(min(gap, tick_at - now))
        self._wait(tick_at - self._monotonic())

    def _guarded(self, activity: str, work: Callable[[], None]) -> bool:
        if self._stopping.is_set():
            return True
        outage = self._outages.setdefault(activity, Outage(activity))
        try:
            work()
        except Exception as error:  # noqa: BLE001  One activity must not end the others.
            outage.failed(error)
            return False
        outage.ended()
        return True

    def _tick(self) -> None:
        outcomes = self._materializer.tick(now=self._instant())
        ready = [job for outcome in outcomes for job in outcome.jobs]
        if not ready:
            return
        if any(self._serves(job) for job in ready):
            self._on_ready()
        if not all(self._serves(job) for job in ready):
            self._on_ready_elsewhere()

    def _promote(self) -> None:
        promoted = 0
        for _ in range(limits.PROMOTE_ROUNDS_MAX):
            count = self._store.jobs.promote(limit=limits.PROMOTE_BATCH, now=self._instant())
            promoted += count
            if count < limits.PROMOTE_BATCH or self._stopping.is_set():
                break
        if promoted:
            self._on_ready()
            self._on_ready_elsewhere()

    def _tidy(self) -> None:
        self._guarded("folding of counts", self._fold)
        self._guarded("sweep of nudges", self._sweep)
        self._guarded("removal of stale nodes", self._remove_stale)

    def _reclaim(self) -> None:
        silent_since = self._silent_since(self._timeout)
        if silent_since is None:
            return
        for _ in range(limits.RECLAIM_ROUNDS_MAX):
            ended = self._store.jobs.reclaim(
                self._decide_orphan,
                silent_since=silent_since,
                limit=limits.RECLAIM_BATCH,
                now=self._instant(),
            )
            for orphan, outcome in ended:
                _log.warning(
                    "attempt %d of %d of job %s (%s) ended as %s: node %s stopped beating",
                    orphan.attempt,
                    orphan.max_attempts,
                    orphan.id,
                    orphan.handler,
                    outcome.kind,
                    orphan.owner_node_id,
                )
            if ended:
                # Retries are due at once, and a task whose instance has failed may have a nudge
                # that was held back.
                self.wake(delayed=True)
            if len(ended) < limits.RECLAIM_BATCH or self._stopping.is_set():
                return

    def _decide_orphan(self, orphan: OrphanedJob) -> AttemptOutcome:
        return self._failures(
            orphan,
            self._handlers.find(orphan.handler),
            reason=failure.ORPHAN,
            message=f"worker lost: node {orphan.owner_node_id} stopped beating",
        )

    def _fold(self) -> None:
        for _ in range(limits.FOLD_ROUNDS_MAX):
            folded = self._store.jobs.fold_counts(limit=limits.FOLD_BATCH)
            if folded < limits.FOLD_BATCH or self._stopping.is_set():
                return

    def _sweep(self) -> None:
        dropped = self._store.recurring.sweep_nudges(limit=limits.SWEEP_BATCH)
        if dropped:
            _log.warning("%d nudges dropped: their task was deleted before they counted", dropped)

    def _retire(self) -> None:
        # A wake waits for one batch, and not for the turn.
        self._retention.turn(give_way=lambda: self._woken.is_set() or self._stopping.is_set())

    def _remove_stale(self) -> None:
        silent_since = self._silent_since(limits.NODE_STALE_SECONDS)
        if silent_since is not None:
            self._store.nodes.remove_stale(silent_since=silent_since)
