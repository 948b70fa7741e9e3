"""A whole node while its store fails once: the engine tries again, and nothing runs twice."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from sqlalchemy import Engine

from tests.engine.bench import AT_ONCE, eventually
from tests.faults import ledger
from tests.faults.conftest import Worlds, sql_keys
from tests.faults.striking import Fault
from tests.faults.world import SqlVictim, World
from tests.fixtures.sql import SQLITE
from threadmill_sa import Every, JobContext, Threadmill
from threadmill_sa.engine.processing.node import ProcessingNode
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.state import JobState

JOBS = 4
BOUNDARIES_MAX = 50  # statements and commits from the start until everything has run, and more
ON_NODES = (Fault.REFUSED, Fault.KILLED, Fault.LOST, Fault.CONFLICT)


@pytest.fixture(params=sql_keys())
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTAGE_PAUSE_MIN_SECONDS", 0.002)


@pytest.mark.parametrize("fault", ON_NODES)
def test_a_node_goes_on_after_a_fault_and_loses_no_attempt(
    store: str, worlds: Worlds, fault: Fault, caplog: pytest.LogCaptureFixture
):
    for at in (3, 11):
        _run_with(store, worlds, fault, at, caplog)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ON_NODES)
def test_a_node_goes_on_after_a_fault_wherever_it_strikes_and_loses_no_attempt(
    store: str, worlds: Worlds, fault: Fault, caplog: pytest.LogCaptureFixture
):
    for at in range(0, BOUNDARIES_MAX, 2):
        _run_with(store, worlds, fault, at, caplog)


def _run_with(
    store: str, worlds: Worlds, fault: Fault, at: int, log: pytest.LogCaptureFixture
) -> None:
    if store == SQLITE and fault in {Fault.KILLED, Fault.CONFLICT}:
        pytest.skip("SQLite has no such fault")
    with worlds.of(store) as world:
        assert isinstance(world.victim, SqlVictim)
        day = _Day(world, world.victim.faulty.engine, log)
        world.victim.faulty.strike(at, fault)
        day.run()
        if world.victim.faulty.struck:
            ledger.note(store, "a node", fault)
        world.victim.faulty.mend()
        day.check()
        world.victim.check_idle()
        world.tm.delete_recurring(day.task)


class _Day:
    """Jobs that succeed, one that fails first, and a nudged task, for one node."""

    def __init__(self, world: World, engine: Engine, log: pytest.LogCaptureFixture) -> None:
        self.world = world
        self.log = log
        self.queue = world.name("queue")
        self.task = world.name()
        self.runs: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.tm = Threadmill(engine)
        self.tm.store.__dict__["wakes"] = world.victim.tm.store.wakes
        self.tm.job("count", queue=self.queue)(self._count)
        self.tm.job("flaky", queue=self.queue, backoff=AT_ONCE)(self._flaky)
        self.tm.recurring(self.task, "count", Every(hours=1))
        self.tm.register()
        self.tm.nudge(self.task)
        self.jobs = self.tm.enqueue_many([("count", None)] * JOBS)
        self.flaky = self.tm.enqueue("flaky")

    def _count(self, context: JobContext) -> None:
        with self._lock:
            self.runs[str(context.id)] += 1

    def _flaky(self, context: JobContext) -> None:
        self._count(context)
        if context.attempt == 1:
            raise RuntimeError("the first attempt fails")

    def run(self) -> None:
        node = self.tm.node(
            workers=3, queues=[self.queue], tick=0.05, poll=0.02, wakes=False, heartbeat=0.2
        )
        eventually(lambda: _started(node), "the start of the node")
        try:
            eventually(self._over, "the end of all jobs")
        finally:
            node.stop()

    def _over(self) -> bool:
        states = Counter(job.state for job in self.world.store.jobs.list(queue=self.queue))
        return states == {JobState.SUCCEEDED: JOBS + 2}

    def check(self) -> None:
        """Each job ran once, and the one that failed twice; no attempt went elsewhere."""
        [instance] = self.world.instances(self.task)
        assert instance.cron_origin is CronOrigin.NUDGE
        for job_id in (*self.jobs, instance.id):
            assert self.world.job(job_id).attempt == 1
            assert self.runs[str(job_id)] == 1
        assert self.world.job(self.flaky).attempt == 2
        assert self.runs[str(self.flaky)] == 2
        for left in self.world.store.nodes.list():
            # Only a node whose removal was struck stays, and says that it will expire.
            assert f"node {left.id} could not be removed" in self.log.text
            self.world.store.nodes.remove(left.id)


def _started(node: ProcessingNode) -> bool:
    """Start, as a supervisor would: again when the store was out."""
    try:
        node.start()
    except StoreUnavailableError:
        return False
    return True
