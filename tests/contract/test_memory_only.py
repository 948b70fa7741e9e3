"""What the store in memory alone lets a test see: its clock can be moved."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, JobId, OrphanedJob, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.stores.memory.due import DueIndex
from threadmill_sa.testing import ManualClock
from threadmill_sa.testing.suite.tools import T0, insert, new_job, new_node, read, seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def _orphans(store: MemoryStore, since: datetime) -> list[JobId]:
    def fail(orphan: OrphanedJob) -> AttemptOutcome:
        return AttemptOutcome(orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.ORPHAN)

    ended = store.jobs.reclaim(fail, silent_since=since, limit=10)
    return [orphan.id for orphan, _ in ended]


def test_the_injected_clock_stamps_everything(store: MemoryStore) -> None:
    job = new_job(delay_seconds=1.0)
    store.jobs.insert([job])

    assert read(store, job.id).created_at == T0
    assert read(store, job.id).scheduled_at == T0 + seconds(1)


def test_a_job_is_an_orphan_once_its_timeout_has_passed(
    store: MemoryStore, clock: ManualClock
) -> None:
    [job] = insert(store)
    store.jobs.claim(new_node(), queues=None, handlers=[job.handler], limit=1)

    clock.advance(59.999)
    early = _orphans(store, clock.now() - seconds(60))
    clock.advance(0.001)
    late = _orphans(store, clock.now() - seconds(60))

    assert (early, late) == ([], [job.id])


def test_only_the_jobs_that_beat_stay_with_their_node(
    store: MemoryStore, clock: ManualClock
) -> None:
    named, silent = insert(store, 2)
    node = NodeInfo(new_node(), "host", 1, None, 2)
    store.jobs.claim(node.id, queues=None, handlers=[named.handler], limit=2)
    clock.advance(50)
    store.nodes.beat(node, [HeldJob(named.id, 1)])
    clock.advance(50)

    assert _orphans(store, clock.now() - seconds(60)) == [silent.id]


def test_a_silent_node_is_forgotten_and_a_beating_one_is_not(
    store: MemoryStore, clock: ManualClock
) -> None:
    silent, beating = (NodeInfo(new_node(), "host", pid, None, 2) for pid in (1, 2))
    store.nodes.beat(silent, [])
    store.nodes.beat(beating, [])
    clock.advance(61)
    store.nodes.beat(beating, [])

    assert store.nodes.remove_stale(silent_since=clock.now() - seconds(60)) == 1
    assert [node.id for node in store.nodes.list()] == [beating.id]


def test_an_index_of_instants_forgets_stale_entries() -> None:
    index = DueIndex()
    for step in range(10_000):
        index.put("moved", T0 + seconds(step + 10))
    index.put("other", T0)

    assert len(index._heap) < 200
    assert index.names(T0 + seconds(9)) == {"other"}
    assert index.names(T0 + seconds(20_000)) == {"moved", "other"}


def test_an_index_of_instants_answers_an_earlier_question_after_a_later_one() -> None:
    index = DueIndex()
    instants: dict[str, datetime] = {"a": T0, "b": T0 + seconds(5)}
    for name, at in instants.items():
        index.put(name, at)

    assert index.names(T0 + timedelta(hours=1)) == {"a", "b"}
    assert index.names(T0) == {"a"}
    index.put("a", None)
    assert index.names(T0 + timedelta(hours=1)) == {"b"}
