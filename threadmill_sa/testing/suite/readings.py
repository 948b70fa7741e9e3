"""What ticks and manual runs act on while others change it: all of it as it is under the lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.nudge import ClearOutcome
from threadmill_sa.model.recurring import CronOrigin, CronTask
from threadmill_sa.spi.recurring import Plan
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    EDITED,
    T0,
    WithPump,
    ids_of,
    new_job,
    new_task,
    nudge,
    run_all,
    seconds,
    tick,
    together,
)

ROUNDS = 10  # of each pair; what was read too early shows in few
EDITS, MAKES = 6, 3  # of one round, at the same time


class ReadingSuite(WithPump):
    """Whoever reads before the lock, or beside it, acts on what somebody else has replaced."""

    def test_no_tick_after_an_edit_uses_the_older_definition(
        self, store: JobStore, plan: Plan
    ) -> None:
        def by_tick() -> list[NewJob]:
            nudge(store)
            made = tick(store, plan, wait=True).jobs
            run_all(store)
            return list(made)

        self._edit_beside(store, by_tick)

    def test_no_trigger_after_an_edit_uses_the_older_definition(self, store: JobStore) -> None:
        def by_hand(task: CronTask) -> NewJob:
            fields = {"cron_task_name": task.name, "cron_origin": CronOrigin.MANUAL}
            return new_job(payload=task.payload, **fields)

        def by_trigger() -> list[NewJob]:
            made = store.recurring.trigger("pump", by_hand, now=T0)
            assert made is not None
            return [made]

        self._edit_beside(store, by_trigger)

    def test_ticks_of_several_fires_at_once_leave_one_unfinished_instance(
        self, store: JobStore, plan: Plan
    ) -> None:
        fires = 3
        for turn in range(ROUNDS):
            first = T0 + seconds(600 * (1 + turn * fires))
            instants = [first + seconds(600 * late) for late in range(fires)]

            done = together(*(partial(tick, store, plan, at, wait=True) for at in instants))

            made = [job.id for each in done for job in each.jobs]
            assert len(made) == 1, "an unfinished instance holds back the next fire"
            run_all(store)
            tick(store, plan, instants[-1])  # The fires that were held back are no round's.
            run_all(store)

    def test_a_nudge_is_run_by_a_tick_or_taken_by_a_clear(
        self, store: JobStore, plan: Plan
    ) -> None:
        for _ in range(ROUNDS):
            observed = frozenset({nudge(store)})

            cleared, done = together(
                partial(store.recurring.clear_cron_nudge, "pump", observed),
                partial(tick, store, plan, wait=True),
            )

            expected = 0 if cleared is ClearOutcome.CLEARED else 1
            assert len(done.jobs) == expected, "only a nudge that is still pending gives a run"
            run_all(store)

    @staticmethod
    def _edit_beside(store: JobStore, make: Callable[[], list[NewJob]]) -> None:
        """An instance that is not stored yet after an edit was made after it."""
        edits: list[tuple[int, list[JobId]]] = []

        def edit() -> None:
            for _ in range(EDITS):
                number = len(edits) + 1
                store.recurring.register(new_task(payload=str(number)), now=T0)
                edits.append((number, ids_of(store.jobs.list(task="pump", limit=500))))

        for _ in range(ROUNDS):
            before = len(edits)

            _, made = together(edit, lambda: [job for _ in range(MAKES) for job in make()])

            for job in made:
                later = [number for number, stored in edits[before:] if job.id not in stored]
                newest = max(later, default=0)
                assert int(job.payload or 0) >= newest, EDITED
