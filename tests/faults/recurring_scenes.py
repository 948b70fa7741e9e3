"""Recurring tasks: lifecycle, nudges in transactions of our own, and ticks."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from tests.faults.scenes import Scene
from tests.faults.world import declaring
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import UnknownTaskError
from threadmill_sa.model.nudge import ClearOutcome
from threadmill_sa.model.recurring import CronOrigin, CronTaskView
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import TickResult

HOUR = timedelta(hours=1)


class _Task(Scene):
    """One task, every hour; deleted at the end, so that the world stays small."""

    def arrange(self) -> None:
        self.name = self.world.task()
        self.registered = self.view

    @property
    def view(self) -> CronTaskView:
        view = self.world.store.recurring.get(self.name)
        assert view is not None, "the task is lost"
        return view

    @property
    def grid(self) -> datetime:
        next_run_at = self.registered.next_run_at
        assert next_run_at is not None
        return next_run_at

    def verify(self) -> None:
        self.verify_task()
        if self.world.store.recurring.get(self.name) is not None:
            self.world.tm.delete_recurring(self.name)

    def verify_task(self) -> None:
        raise NotImplementedError

    def ran(self, count: int, origin: CronOrigin) -> None:
        """The task has exactly `count` instances, and each ran once."""
        jobs = self.world.instances(self.name)
        assert [job.cron_origin for job in jobs] == [origin] * count
        assert {job.state for job in jobs} <= {JobState.SUCCEEDED}
        assert [self.world.claims[job.id] for job in jobs] == [1] * count

    def unmoved(self) -> None:
        """N4: the schedule is where it was."""
        assert self.view.next_run_at == self.grid
        assert self.view.epoch == self.registered.epoch


class RegisterNew(_Task):
    def arrange(self) -> None:
        self.name = self.world.name()

    def act(self, tm: Threadmill) -> None:
        declaring(tm.store, self.name).register()

    def look(self) -> int:
        view = self.world.store.recurring.get(self.name)
        if view is None:
            assert _rows(self, "cron_task_state", self.name) == 0, "a state without definition"
            return 0
        assert view.next_run_at is not None
        return 1

    def after(self) -> None:
        self.registered = self.view
        self.world.tm.nudge(self.name)

    def verify_task(self) -> None:
        self.ran(1, CronOrigin.NUDGE)
        self.unmoved()


class RegisterEdit(_Task):
    """The timing changes; a pending nudge stays and the grid is not left."""

    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)

    def act(self, tm: Threadmill) -> None:
        declaring(tm.store, self.name, trigger=Every(minutes=7)).register()

    def look(self) -> int:
        view, old = self.view, self.registered
        assert view.nudge_revisions
        assert view.epoch == old.epoch
        edited = view.trigger_value != old.trigger_value
        assert (view.next_run_at != old.next_run_at) is edited
        return int(edited)

    def verify_task(self) -> None:
        self.ran(1, CronOrigin.NUDGE)
        assert self.view.next_run_at == self.registered.anchor_at + timedelta(minutes=7)


class RegisterAgain(_Task):
    """What every process does at its start."""

    def act(self, tm: Threadmill) -> None:
        declaring(tm.store, self.name).register()

    def verify_task(self) -> None:
        assert self.view == self.registered


class Disable(_Task):
    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)

    def act(self, tm: Threadmill) -> None:
        tm.set_enabled(self.name, False)

    def look(self) -> int:
        view = self.view
        assert bool(view.nudge_revisions) is view.enabled
        assert (view.next_run_at is not None) is view.enabled
        return int(not view.enabled)

    def after(self) -> None:
        assert self.look() == 1

    def verify_task(self) -> None:
        self.world.tm.set_enabled(self.name, True)
        self.world.settle()
        self.ran(0, CronOrigin.NUDGE)  # N5: not even after the pause
        self.unmoved()


class Enable(_Task):
    def arrange(self) -> None:
        super().arrange()
        self.world.tm.set_enabled(self.name, False)

    def act(self, tm: Threadmill) -> None:
        tm.set_enabled(self.name, True)

    def look(self) -> int:
        view = self.view
        assert (view.next_run_at is not None) is view.enabled
        return int(view.enabled)

    def after(self) -> None:
        self.world.tm.nudge(self.name)

    def verify_task(self) -> None:
        self.ran(1, CronOrigin.NUDGE)
        self.unmoved()


class Delete(_Task):
    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)

    def act(self, tm: Threadmill) -> None:
        tm.delete_recurring(self.name)

    def look(self) -> int:
        view = self.world.store.recurring.get(self.name)
        if view is not None:
            assert view.nudge_revisions
            self.unmoved()
            return 0
        assert [_rows(self, table, self.name) for table in ("cron_task_state", "cron_nudges")] == [
            0,
            0,
        ]
        return 1

    def again(self, tm: Threadmill) -> None:
        if not self.had:
            self.act(tm)
            return
        with pytest.raises(UnknownTaskError):
            self.act(tm)

    def verify_task(self) -> None:
        self.world.task(self.name)  # N6: the nudge is not the new registration's
        self.world.settle()
        self.ran(0, CronOrigin.NUDGE)
        assert self.view.epoch != self.registered.epoch


class Trigger(_Task):
    """An operator who gets an error triggers again."""

    atomic = False  # the call reads the task before

    def act(self, tm: Threadmill) -> None:
        tm.trigger(self.name)

    def look(self) -> int:
        instances = self.world.instances(self.name)
        marked = self.view.last_run_job_id
        assert marked == (instances[-1].id if instances else None)
        return len(instances)

    def verify_task(self) -> None:
        self.ran(self.done, CronOrigin.MANUAL)
        self.unmoved()


class Nudge(_Task):
    """Any number of acceptances before a tick are one run: N2."""

    def act(self, tm: Threadmill) -> None:
        _forget_block(tm)
        tm.nudge(self.name)

    def look(self) -> int:
        return len(self.view.nudge_revisions)

    def verify_task(self) -> None:
        self.ran(1, CronOrigin.NUDGE)
        self.unmoved()


class RequestNudge(Nudge):
    def act(self, tm: Threadmill) -> None:
        _forget_block(tm)
        tm.store.recurring.request_cron_nudge(self.name)


class NudgeMany(_Task):
    """Each in a transaction of its own: those before the failing one are accepted."""

    atomic = False

    def arrange(self) -> None:
        self.names = [self.world.task() for _ in range(3)]

    def act(self, tm: Threadmill) -> None:
        tm.nudge_many(self.names)

    def verify(self) -> None:
        for name in self.names:
            self.name = name
            self.ran(1, CronOrigin.NUDGE)
            self.world.tm.delete_recurring(name)


class ClearNudge(_Task):
    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)
        self.observed = self.view.nudge_revisions

    def act(self, tm: Threadmill) -> None:
        self.outcome = tm.store.recurring.clear_cron_nudge(self.name, self.observed)

    def look(self) -> int:
        return int(not self.view.nudge_revisions)

    def again(self, tm: Threadmill) -> None:
        self.act(tm)
        assert self.outcome is (ClearOutcome.ABSENT if self.had else ClearOutcome.CLEARED)

    def verify_task(self) -> None:
        self.ran(0, CronOrigin.NUDGE)
        self.unmoved()


class TickOfANudge(_Task):
    """Nominate and materialize: the job is there exactly when the nudge is gone."""

    atomic = False  # a pass reads first, and tries a failed batch again one by one
    retried = False

    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)

    def act(self, tm: Threadmill) -> None:
        tm.tick()

    def look(self) -> int:
        created = len(self.world.instances(self.name))
        assert bool(self.view.nudge_revisions) is (created == 0), "half a tick"
        assert created <= 1
        return created

    def verify_task(self) -> None:
        self.ran(1, CronOrigin.NUDGE)
        self.unmoved()


class TickOfAFire(TickOfANudge):
    """The schedule moves exactly when the jobs are there."""

    count = 1
    policy = "drop"

    def arrange(self) -> None:
        self.name = self.world.task(missed=self.policy)
        self.registered = self.view
        self.now = self.grid + HOUR * (self.count - 1) + HOUR / 2

    def act(self, tm: Threadmill) -> None:
        tm.tick(now=self.now)

    def look(self) -> int:
        created = len(self.world.instances(self.name))
        assert created in {0, self.count}, f"{created} of {self.count} fires"
        moved = self.view.next_run_at != self.grid
        assert moved is (created > 0), "half a tick"
        return int(created > 0)

    def verify_task(self) -> None:
        self.ran(self.count, CronOrigin.SCHEDULE)
        fires = [job.fire_time for job in self.world.instances(self.name)]
        assert fires == [self.grid + HOUR * number for number in range(self.count)]
        assert self.view.next_run_at == self.grid + HOUR * self.count


class TickOfMissedFires(TickOfAFire):
    count = 3
    policy = "catch_up"


class TickThatCompacts(_Task):
    """While an instance runs, the pending nudges become one that is as old as the first."""

    atomic = False
    retried = False

    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)
        self.world.tm.tick()
        self.node = self.world.new_node()
        self.running = self.world.claim(self.node)
        for _ in range(3):
            self.world.tm.nudge(self.name)
        self.pending = self.view

    def act(self, tm: Threadmill) -> None:
        outcomes = tm.tick()
        assert {outcome.result for outcome in outcomes} <= {TickResult.HELD}

    def look(self) -> int | None:
        assert self.view.nudge_requested_at == self.pending.nudge_requested_at
        assert len(self.world.instances(self.name)) == 1
        if len(self.pending.nudge_revisions) == 1:
            return None  # kept as one by the store
        return int(len(self.view.nudge_revisions) == 1)

    def after(self) -> None:
        self.world.finish(self.node, self.running)

    def verify_task(self) -> None:
        self.ran(2, CronOrigin.NUDGE)
        self.unmoved()


class TickOfThreeTasks(NudgeMany):
    retried = False

    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge_many(self.names)

    def act(self, tm: Threadmill) -> None:
        tm.tick()

    def look(self) -> None:
        for name in self.names:
            pending = bool(self.world.pending(name))
            assert pending is not bool(self.world.instances(name)), "half a tick"


class SweepDeadNudges(_Task):
    """Nudges of a registration that is gone."""

    def arrange(self) -> None:
        super().arrange()
        if self.world.sql is None:
            return  # memory drops them with their task
        self.world.tm.nudge(self.name)
        with self.world.sql.begin() as connection:
            connection.execute(
                text("UPDATE threadmill_cron_nudges SET epoch = -1 WHERE task_name = :name"),
                {"name": self.name},
            )

    def act(self, tm: Threadmill) -> None:
        tm.store.recurring.sweep_nudges(limit=100)

    def look(self) -> int | None:
        if self.world.sql is None:
            return None
        return int(_rows(self, "cron_nudges", self.name) == 0)

    def verify_task(self) -> None:
        assert _rows(self, "cron_nudges", self.name) == 0
        self.ran(0, CronOrigin.NUDGE)


class RunUntilIdle(_Task):
    """The whole engine in one call, its preparation included."""

    step = 4
    atomic = False
    retried = False

    def arrange(self) -> None:
        super().arrange()
        self.world.tm.nudge(self.name)
        self.queue = self.world.name("queue")
        self.jobs = self.world.stored_jobs(3, queue=self.queue)
        self.world.victim.tm._prepared = False

    def act(self, tm: Threadmill) -> None:
        tm.run_until_idle()

    def verify_task(self) -> None:
        instances = self.world.instances(self.name)
        assert len(instances) == 1
        for job in [*instances, *map(self.world.job, (job.id for job in self.jobs))]:
            assert job.state is JobState.SUCCEEDED
            assert job.attempt <= 2  # an attempt whose end was not heard of is one more
        self.unmoved()


SCENES: tuple[type[Scene], ...] = (
    RegisterNew,
    RegisterEdit,
    RegisterAgain,
    Disable,
    Enable,
    Delete,
    Trigger,
    Nudge,
    RequestNudge,
    NudgeMany,
    ClearNudge,
    TickOfANudge,
    TickOfAFire,
    TickOfMissedFires,
    TickThatCompacts,
    TickOfThreeTasks,
    SweepDeadNudges,
    RunUntilIdle,
)


def _rows(scene: Scene, table: str, task: str) -> int:
    """The rows of a task that stand in a table, whatever a view shows; none in memory."""
    if scene.world.sql is None:
        return 0
    with scene.world.sql.connect() as connection:
        found = connection.scalar(
            text(f"SELECT count(*) FROM threadmill_{table} WHERE task_name = :name"),
            {"name": task},
        )
    return int(found or 0)


def _forget_block(tm: Threadmill) -> None:
    """Draw the next block of revisions with this nudge, where the store draws blocks."""
    writes = getattr(tm.store, "_writes", None)
    if writes is not None:
        writes._revisions.after_fork()
