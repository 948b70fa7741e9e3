"""One pass over what is due or nudged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.errors import StoreInvariantError, StoreUnavailableError
from threadmill_sa.model.limits import MATERIALIZE_BATCH, TICK_PAGE
from threadmill_sa.spi.recurring import Recurring, TaskOutcome, TickResult

_log = logging.getLogger("threadmill_sa.recurring")


class Materializer:
    """Turns fires and nudges into jobs.

    Any number may tick at once, in any number of processes: each commit reads again under the
    task's lock.
    """

    def __init__(self, recurring: Recurring, ids: Callable[[datetime], UUID]) -> None:
        self._recurring = recurring
        self._plan = Planner(ids)
        self._failing: frozenset[str] = frozenset()  # names whose failure is logged already

    def tick(self, *, now: datetime | None = None, wait: bool = False) -> list[TaskOutcome]:
        """Look once at every task that is due or nudged.

        Args:
            now: the instant of the pass; None for the store's clock.
            wait: wait for tasks that are locked instead of leaving them to the next pass.
        Returns: what was done, by name; tasks with nothing to do are left out.
        Raises: StoreUnavailableError; StoreInvariantError when the store names tasks again that
            it has named. What was committed before it stays.
        """
        outcomes: list[TaskOutcome] = []
        failing: set[str] = set()
        for batch in self._batches(now):
            try:
                done = self._recurring.materialize(batch, self._plan, wait=wait, now=now)
            except StoreUnavailableError:
                raise  # No task is at fault, and the next would only wait as long again.
            except Exception:  # noqa: BLE001  One bad task must not stop the others.
                done = self._one_by_one(batch, failing, now=now, wait=wait)
            outcomes += done
        self._failing = frozenset(failing)
        return [outcome for outcome in outcomes if outcome.result is not TickResult.IDLE]

    def _batches(self, now: datetime | None) -> Iterator[Sequence[str]]:
        """Every nominated name once. A page of held tasks is passed over like any other."""
        after: str | None = None
        while True:
            page = self._recurring.nominate(after=after, limit=TICK_PAGE, now=now)
            if page and after is not None and page[-1] <= after:
                # It would go on for ever, and nobody else would be served.
                raise StoreInvariantError(
                    f"the store was asked for due tasks after {after!r} and named"
                    f" {page[-1]!r} last: `nominate` must give names greater than `after`, in the"
                    " order of their code points",
                    task=page[-1],
                )
            for start in range(0, len(page), MATERIALIZE_BATCH):
                yield page[start : start + MATERIALIZE_BATCH]
            if len(page) < TICK_PAGE:
                return
            after = page[-1]

    def _one_by_one(
        self, names: Sequence[str], failing: set[str], *, now: datetime | None, wait: bool
    ) -> list[TaskOutcome]:
        """Do the tasks of a failed batch alone, so that only the culprits are left behind.

        A culprit is not marked broken: a fault of the database passes, and it is tried again by
        the next pass.
        """
        done: list[TaskOutcome] = []
        for name in names:
            try:
                done += self._recurring.materialize([name], self._plan, wait=wait, now=now)
            except StoreUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001  As above.
                failing.add(name)
                if name not in self._failing:
                    _log.error("recurring.materialize_failed task=%r", name, exc_info=error)
        return done
