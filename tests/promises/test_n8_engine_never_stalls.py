"""N8: an open transaction of a caller delays nothing of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from tests.promises.shop import OTHER, PUMP, Shop, impatient
from threadmill_sa import Every, Threadmill
from threadmill_sa.model import failure
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    NodeId,
    OrphanedJob,
    OutcomeKind,
)
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.testing.suite.tools import AFTER_ALL

LOCK_TIMEOUT_MS = 100

JOINS: dict[str, Callable[[Threadmill, Session | Connection], object]] = {
    "nudge": lambda tm, caller: tm.nudge(PUMP, caller),
    "nudge_many": lambda tm, caller: tm.nudge_many([OTHER, PUMP], caller),
    "enqueue": lambda tm, caller: tm.enqueue("mail", 1, session=caller),
    "enqueue delayed": lambda tm, caller: tm.enqueue("mail", 1, session=caller, delay=0.001),
    "enqueue_many": lambda tm, caller: tm.enqueue_many([("mail", 1), ("relay", None)], caller),
}


def _mail(payload: int) -> None: ...


class Errors:
    """Every error that a statement of `engine` met, retried or not."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[str] = []
        event.listen(engine, "handle_error", self._note)

    def _note(self, context: Any) -> None:
        self.seen.append(f"{context.original_exception} in {context.statement}")


@pytest.fixture
def hurried_engine(pg_engine: Engine) -> Iterator[Engine]:
    engine = impatient(pg_engine, LOCK_TIMEOUT_MS)
    yield engine
    engine.dispose()


@contextmanager
def _holding(shop: Shop, join: str, *, savepoint: bool, isolation: str) -> Iterator[None]:
    """A caller's transaction that has joined and stays open."""
    with shop.transaction(isolation) as session:
        if savepoint:
            with session.begin_nested():
                JOINS[join](shop.tm, session)
            with session.begin_nested():
                JOINS[join](shop.tm, session)
                yield
        else:
            JOINS[join](shop.tm, session)
            yield


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "SERIALIZABLE"])
@pytest.mark.parametrize("savepoint", [False, True], ids=["plain", "in a savepoint"])
@pytest.mark.parametrize("join", JOINS)
def test_n8_every_engine_operation_completes_beside_an_open_joined(
    pg_shop: Shop, hurried_engine: Engine, join: str, savepoint: bool, isolation: str
):
    engine = Shop(Threadmill(hurried_engine))
    errors = Errors(hurried_engine)
    drive = _Drive(engine)
    drive.prepare()

    with _holding(pg_shop, join, savepoint=savepoint, isolation=isolation):
        drive.everything()

    assert errors.seen == []
    engine.tm.close()
    pg_shop.settle()
    assert not pg_shop.pending()


class _Drive:
    """Does everything that a node and an operator ever do, once."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._tm, self._store = shop.tm, shop.store
        self._due = timedelta(hours=1, minutes=1)

    def prepare(self) -> None:
        """What exists before the caller comes: jobs of every kind, and an instance that runs."""
        for number in range(6):
            self._tm.enqueue("mail", number)
        self._shop.nudge("other")
        self._tm.tick()

    def everything(self) -> None:
        self._operate()
        self._tick()
        self._work()
        self._keep_house()
        self._look()
        self._migrate()
        self._replace()

    def _replace(self) -> None:
        """Last, since the caller's nudge is for the registration that goes."""
        self._tm.delete_recurring(PUMP)
        self._shop.declare(PUMP)
        self._store.recurring.sweep_nudges(limit=1000)

    def _operate(self) -> None:
        self._tm.register()
        name = self._shop.fresh_task()
        self._edit(name, minutes=5)
        self._edit(PUMP, minutes=30)
        for task in (name, PUMP):
            assert self._tm.set_enabled(task, False)
            assert self._tm.set_enabled(task, True)
        self._tm.trigger(PUMP)
        self._tm.delete_recurring(name)
        revisions = {self._shop.nudge(PUMP).revision}
        observed = frozenset(each for each in revisions if each is not None)
        assert self._store.recurring.clear_cron_nudge(PUMP, observed) == "cleared"

    def _edit(self, name: str, *, minutes: int) -> None:
        process = Threadmill(self._store)
        process.job("mail")(_mail)
        process.recurring(name, "mail", Every(minutes=minutes), payload=1)
        process.register()

    def _tick(self) -> None:
        self._shop.run_all()
        self._shop.nudge(PUMP)
        self._tm.nudge_many([PUMP, OTHER])
        nominated = self._store.recurring.nominate(after=None, limit=100)
        assert nominated == [OTHER, PUMP]
        done = self._shop.tick()
        assert {TickResult.MATERIALIZED} == {outcome.result for outcome in done}
        self._shop.nudge(PUMP)
        self._shop.nudge(PUMP)
        assert len(self._shop.view(PUMP).nudge_revisions) == 2
        assert {TickResult.HELD} == {outcome.result for outcome in self._shop.tick()}
        assert len(self._shop.view(PUMP).nudge_revisions) == 1  # compacted
        self._shop.run_all()
        waiting = self._tm._materializer.tick(wait=True)
        assert [TickResult.MATERIALIZED] == [outcome.result for outcome in waiting]
        self._shop.run_all()
        fired = self._shop.tick(later=self._due)
        assert {"schedule"} == {str(outcome.origin) for outcome in fired}

    def _work(self) -> None:
        for number in range(6):
            self._tm.enqueue("mail", number)
        self._tm.enqueue("mail", 1, delay=0.0005)
        node, jobs = self._shop.claim()
        assert len(jobs) >= 6
        held = [HeldJob(job.id, job.attempt_token) for job in jobs]
        info = NodeInfo(node, host="here", pid=1, queues=None, workers=1)
        assert frozenset() == self._store.nodes.beat(info, held)
        self._finish_each_way(node, jobs)
        self._store.nodes.remove(node)
        self._store.nodes.remove_stale(silent_since=AFTER_ALL)

    def _finish_each_way(self, node: NodeId, jobs: list[ClaimedJob]) -> None:
        ends = []
        kinds = list(OutcomeKind)
        for number, job in enumerate(jobs):
            kind = kinds[number % len(kinds)]
            retry = 0.0 if kind is OutcomeKind.RETRY else None
            ends.append(
                AttemptOutcome(
                    job.id, job.attempt_token, kind, failure.EXCEPTION, "why", retry_seconds=retry
                )
            )
        assert {"recorded"} == set(self._store.jobs.finish(node, ends))
        assert {"lost"} == set(self._store.jobs.finish(node, ends))

    def _keep_house(self) -> None:
        assert self._store.jobs.promote(limit=100) >= 1
        _, jobs = self._shop.claim()
        assert jobs
        reclaimed = self._store.jobs.reclaim(_fail, silent_since=AFTER_ALL, limit=100)
        assert len(reclaimed) == len(jobs)
        assert self._store.jobs.fold_counts(limit=10_000) > 0
        self._store.recurring.sweep_nudges(limit=1000)

    def _look(self) -> None:
        assert self._tm.list_recurring()
        [job, *_] = self._tm.list_jobs(limit=5)
        assert self._tm.get_job(job.id) is not None
        assert sum(self._store.jobs.counts().values()) > 0
        self._store.jobs.queue_depths()
        self._store.nodes.list()
        self._store.recurring.task_verdicts([PUMP, "nobody"])

    def _migrate(self) -> None:
        self._store.check_ready()
        self._tm.schema.migrate()
        self._tm.schema.validate()
        assert SchemaManager.emit_pending_sql(self._tm.schema) == ""


def _fail(orphan: OrphanedJob) -> AttemptOutcome:
    return AttemptOutcome(
        orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.EXCEPTION, "owner silent"
    )


def test_n8_a_fire_of_the_same_task_is_on_time_beside_an_open_nudge(pg_shop: Shop):
    fire = pg_shop.tm.preview(PUMP, 1)[0]
    with pg_shop.transaction() as session:
        pg_shop.tm.nudge(PUMP, session)
        done = {outcome.name: outcome for outcome in pg_shop.tm.tick(now=fire)}
        assert done[PUMP].jobs[0].fire_time == fire
        assert pg_shop.run_all() == 1

    assert pg_shop.settle() == 1


def test_n8_other_tasks_run_while_one_is_nudged_by_many_open_transactions(
    pg_shop: Shop, hurried_engine: Engine
):
    engine = Threadmill(hurried_engine)
    sessions = [Session(pg_shop.sql) for _ in range(8)]
    for session in sessions:
        pg_shop.tm.nudge(PUMP, session)
    for _ in range(3):
        pg_shop.nudge(OTHER)
        assert [OTHER] == [outcome.name for outcome in engine.tick()]
        pg_shop.run_all()
    for session in sessions:
        session.commit()
        session.close()

    assert [PUMP] == [outcome.name for outcome in engine.tick()]
