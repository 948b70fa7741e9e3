"""Finished jobs go when their time has passed; every node sees to it, and none needs another."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime

from threadmill_sa.model import limits
from threadmill_sa.model.retention import Retention
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.jobs import Jobs

_log = logging.getLogger(__name__)


class RetentionSweep:
    """Removes what `retention` no longer keeps, in small transactions and short turns.

    A sweep begins every limits.RETENTION_SECONDS +- 10 %, the first one soon after the start. It
    goes round the states batch by batch, so a crowd in one state holds up no other. A turn ends
    after limits.RETENTION_ROUNDS_MAX batches or limits.RETENTION_TURN_SECONDS, whichever comes
    first; the next one carries on a tick later. It also ends when something else waits, and then
    goes on right after that. Sweeps of several nodes pass each other by.
    """

    def __init__(
        self,
        jobs: Jobs,
        retention: Retention,
        *,
        instant: Callable[[], datetime | None],
        monotonic: Callable[[], float],
        noise: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._kept_seconds = retention.seconds
        self._instant = instant
        self._monotonic = monotonic
        self._noise = noise
        self._left: deque[JobState] = deque()  # states that may have more to give in this sweep
        self._removed: Counter[JobState] = Counter()  # and not yet told
        self._due_at = monotonic() + limits.RETENTION_FIRST_SECONDS * noise()

    def turn(self, *, give_way: Callable[[], bool] = lambda: False) -> None:
        """Take a turn when one is due; called often, and cheap when none is.

        Args:
            give_way: asked after each batch whether something else waits for this thread; then
                the turn ends, and the next call carries on.
        """
        began = self._monotonic()
        if began < self._due_at:
            return
        self._left = self._left or deque(self._kept_seconds)
        # Set before the work: after an error the sweep goes on a tick later, and hammers nobody.
        self._due_at = began + limits.TICK_SECONDS
        gave_way = False
        try:
            gave_way = self._remove(began + limits.RETENTION_TURN_SECONDS, give_way)
        finally:
            if not gave_way:
                self._tell()
        if not self._left:
            self._due_at = began + limits.RETENTION_SECONDS * (0.9 + 0.2 * self._noise())
        elif gave_way:
            self._due_at = began

    def _tell(self) -> None:
        if self._removed:
            told = ", ".join(f"{n} {state.value.lower()}" for state, n in self._removed.items())
            _log.info("finished jobs removed, their time has passed: %s", told)
        self._removed.clear()

    def _remove(self, until: float, give_way: Callable[[], bool]) -> bool:
        """Remove batches; True when there may be more and something else is to go first."""
        for _ in range(limits.RETENTION_ROUNDS_MAX):
            if not self._left or self._monotonic() >= until:
                return False
            state = self._left[0]
            count = self._jobs.remove_old(
                state,
                older_than_seconds=self._kept_seconds[state],
                limit=limits.RETENTION_BATCH,
                now=self._instant(),
            )
            self._left.popleft()
            if count == limits.RETENTION_BATCH:
                self._left.append(state)
            if count:
                self._removed[state] += count
            if self._left and give_way():
                return True
        return False
