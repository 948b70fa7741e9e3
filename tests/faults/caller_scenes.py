"""Callers: what rides on their transactions, or waits for them."""

from __future__ import annotations

import itertools
from contextlib import suppress

from sqlalchemy import text

from tests.faults.recurring_scenes import _forget_block
from tests.faults.scenes import SMALL_BATCHES, Scene
from tests.faults.world import RELAY
from threadmill_sa import Threadmill
from threadmill_sa.model.state import JobState


class _Caller(Scene):
    """The caller's row and what was asked with it are both there, or neither is."""

    joins = True
    callers = True
    retried = False
    tasks = 1
    jobs = 0

    def arrange(self) -> None:
        self.note = self.world.name("order")
        self.queue = self.world.name("queue")
        self.names = sorted(self.world.task() for _ in range(self.tasks))
        self.next_runs = [self.view(name).next_run_at for name in self.names]

    def view(self, name: str):
        view = self.world.store.recurring.get(name)
        assert view is not None
        return view

    def stored(self) -> int:
        return len(self.world.store.jobs.list(queue=self.queue, limit=500))

    def look(self) -> int | None:
        rows = self.world.order(self.note)
        for name in self.names:
            assert bool(self.world.pending(name)) is (rows > 0), "the nudge left the caller's row"
        assert self.stored() == rows * self.jobs, "the jobs left the caller's row"
        return rows

    def verify(self) -> None:
        assert self.world.order(self.note) == self.done
        assert self.stored() == self.done * self.jobs
        for name, next_run in zip(self.names, self.next_runs, strict=True):
            assert [job.state for job in self.world.instances(name)] == [JobState.SUCCEEDED]
            assert self.view(name).next_run_at == next_run
            self.world.tm.delete_recurring(name)


class JoinedNudge(_Caller):
    def act(self, tm: Threadmill) -> None:
        _forget_block(tm)
        with self.world.caller(self.note) as session:
            tm.nudge(self.names[0], session)


class JoinedNudgeMany(_Caller):
    tasks = 3

    def act(self, tm: Threadmill) -> None:
        with self.world.caller(self.note) as session:
            tm.nudge_many(self.names, session)


class JoinedEnqueue(_Caller):
    tasks, jobs = 0, 1

    def act(self, tm: Threadmill) -> None:
        with self.world.caller(self.note) as session:
            tm.enqueue(RELAY, session=session, queue=self.queue)


class JoinedEnqueueMany(_Caller):
    """With a nudge after it, and rows of the caller around both."""

    jobs = 5
    limits = SMALL_BATCHES

    def act(self, tm: Threadmill) -> None:
        with self.world.caller(self.note) as session:
            tm.enqueue_many([(RELAY, None)] * self.jobs, session, queue=self.queue)
            tm.nudge(self.names[0], session)
            session.execute(text("UPDATE orders SET note = note"))


class JoinedSavepoint(_Caller):
    """What a savepoint held is gone with it, whatever else happens."""

    def arrange(self) -> None:
        super().arrange()
        self.undone = self.world.task()

    def act(self, tm: Threadmill) -> None:
        with self.world.caller(self.note) as session:
            tm.nudge(self.names[0], session)
            nested = session.begin_nested()
            tm.nudge(self.undone, session)
            nested.rollback()

    def verify(self) -> None:
        super().verify()
        assert not self.world.instances(self.undone)
        self.world.tm.delete_recurring(self.undone)


class JoinedConnection(_Caller):
    """Without a Session: the transaction's end is watched from outside."""

    def act(self, tm: Threadmill) -> None:
        business = self.world.business
        assert business is not None
        with business.begin() as connection:
            connection.execute(text("INSERT INTO orders VALUES (:note)"), {"note": self.note})
            tm.nudge(self.names[0], connection)


class JoinedAndRolledBack(_Caller):
    """The caller changes its mind; nothing is left, and the transaction was usable."""

    effect = 0

    def act(self, tm: Threadmill) -> None:
        with suppress(ZeroDivisionError), self.world.caller(self.note) as session:
            tm.nudge(self.names[0], session)
            tm.enqueue(RELAY, session=session, queue=self.queue)
            raise ZeroDivisionError

    def verify(self) -> None:
        assert self.world.order(self.note) == 0
        assert self.stored() == 0
        for name in self.names:
            assert not self.world.instances(name)
            self.world.tm.delete_recurring(name)


class AfterCommitNudge(_Caller):
    """The row is the caller's; a nudge behind it may be lost alone, and the schedule covers it."""

    joins = False
    tasks = 2

    def act(self, tm: Threadmill) -> None:
        self.returned = False
        with self.world.caller(self.note) as session:
            tm.nudge_many(self.names, session, mode="after_commit")
        self.returned = True

    def look(self) -> None:
        rows = self.world.order(self.note)
        accepted = [bool(self.world.pending(name)) for name in self.names]
        if self.returned:
            # One fault strikes one write; the other one is made all the same.
            assert rows >= 1
            assert sum(accepted) >= self.tasks - 1
        elif not rows:
            assert not any(accepted), "a nudge without its row"

    def verify(self) -> None:
        assert self.world.order(self.note) >= 1
        for name, next_run in zip(self.names, self.next_runs, strict=True):
            assert next_run is not None
            assert self.view(name).next_run_at == next_run
            before = len(self.world.instances(name))
            assert before <= 1
            self.world.tm.tick(now=next_run)
            self.world.settle()
            assert len(self.world.instances(name)) == before + 1
            self.world.tm.delete_recurring(name)


class AfterCommitEnqueue(_Caller):
    joins = False
    tasks, jobs = 0, 3

    def arrange(self) -> None:
        super().arrange()
        self.calls = itertools.count()

    def act(self, tm: Threadmill) -> None:
        self.returned = False
        next(self.calls)
        with self.world.caller(self.note) as session:
            entries = [(RELAY, None)] * self.jobs
            tm.enqueue_many(entries, session, mode="after_commit", queue=self.queue)
        self.returned = True

    def look(self) -> None:
        assert self.stored() in {0, self.jobs, 2 * self.jobs}
        if not self.world.order(self.note):
            assert not self.returned
            assert self.stored() == 0, "jobs without their row"

    def verify(self) -> None:
        rows = self.world.order(self.note)
        assert 1 <= rows <= next(self.calls)
        assert self.stored() in {(rows - 1) * self.jobs, rows * self.jobs}
        assert set(self.world.store.jobs.counts()) >= {JobState.SUCCEEDED}


SCENES: tuple[type[Scene], ...] = (
    JoinedNudge,
    JoinedNudgeMany,
    JoinedEnqueue,
    JoinedEnqueueMany,
    JoinedSavepoint,
    JoinedConnection,
    JoinedAndRolledBack,
    AfterCommitNudge,
    AfterCommitEnqueue,
)
