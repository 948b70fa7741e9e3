"""Registration and heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from threadmill_sa.model.job import NodeId, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo, NodeView
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    HANDLER,
    T0,
    claim,
    insert,
    new_id,
    new_node,
    outcome,
    read,
)

CLOCK_MOVES_SECONDS = 10.0  # a store's clock that has not moved by then stands still


def _info(node_id: NodeId | None = None) -> NodeInfo:
    return NodeInfo(node_id or new_node(), "host-\u00e4", 4711, ("mail", "default"), 10)


def _only(store: JobStore) -> NodeView:
    [node] = store.nodes.list()
    return node


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CLOCK_MOVES_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the store's clock stands still"


class NodeSuite:
    """Nodes are judged by the store's own clock, so these tests use no instants of their own."""

    def test_a_first_beat_registers_the_node(self, store: JobStore) -> None:
        info = _info()

        lost = store.nodes.beat(info, [])

        node = _only(store)
        assert lost == frozenset()
        assert (node.id, node.host, node.pid) == (info.id, info.host, info.pid)
        assert (node.queues, node.workers) == (info.queues, info.workers)
        # A store may read its clock for each of the two.
        assert timedelta(0) <= node.heartbeat_at - node.started_at < timedelta(seconds=1)

    def test_a_node_of_all_queues_says_so(self, store: JobStore) -> None:
        store.nodes.beat(replace(_info(), queues=None), [])

        assert _only(store).queues is None

    def test_a_later_beat_moves_the_heartbeat_alone(self, store: JobStore) -> None:
        info = _info()
        store.nodes.beat(info, [])
        first = _only(store)

        def later() -> bool:
            store.nodes.beat(info, [])
            return _only(store).heartbeat_at > first.heartbeat_at

        _until(later)
        assert _only(store).started_at == first.started_at

    def test_nodes_are_listed_by_their_start(self, store: JobStore) -> None:
        infos = [_info() for _ in range(3)]
        for info in infos:
            store.nodes.beat(info, [])
        store.nodes.beat(infos[0], [])

        assert [node.id for node in store.nodes.list()] == [info.id for info in infos]

    def test_a_removed_node_is_gone(self, store: JobStore) -> None:
        gone, stays = _info(), _info()
        store.nodes.beat(gone, [])
        store.nodes.beat(stays, [])

        store.nodes.remove(gone.id)

        assert _only(store).id == stays.id

    def test_removing_an_unknown_node_is_no_error(self, store: JobStore) -> None:
        store.nodes.remove(new_node())

        assert store.nodes.list() == []

    def test_a_claim_counts_as_a_beat_by_the_clock_that_the_nodes_show(
        self, store: JobStore
    ) -> None:
        [job] = insert(store)
        info = _info()
        store.nodes.beat(info, [])
        shown = _only(store).heartbeat_at

        claim(store, info.id, at=T0)

        claimed_at = read(store, job.id).heartbeat_at
        assert claimed_at is not None
        assert shown <= claimed_at < shown + timedelta(minutes=5)

    def test_a_beat_keeps_the_jobs_that_it_names_by_the_clock_that_the_nodes_show(
        self, store: JobStore
    ) -> None:
        kept, silent = insert(store, 2)
        info = _info()
        held = {job.id: job for job in claim(store, info.id)}

        store.nodes.beat(info, [])
        since = _only(store).heartbeat_at

        def kept_beats_later() -> bool:
            store.nodes.beat(info, [HeldJob(kept.id, held[kept.id].attempt_token)])
            beaten_at = read(store, kept.id).heartbeat_at
            return beaten_at is not None and beaten_at > since

        _until(kept_beats_later)
        ended = store.jobs.reclaim(
            lambda orphan: outcome(held[orphan.id], OutcomeKind.FAILED),
            silent_since=since,
            limit=10,
            now=T0,
        )

        assert [orphan.id for orphan, _ in ended] == [silent.id]

    def test_only_a_node_that_has_not_beaten_since_is_forgotten(self, store: JobStore) -> None:
        store.nodes.beat(_info(), [])
        beaten_at = _only(store).heartbeat_at

        assert store.nodes.remove_stale(silent_since=beaten_at - timedelta(microseconds=1)) == 0
        assert len(store.nodes.list()) == 1
        assert store.nodes.remove_stale(silent_since=beaten_at) == 1

        assert store.nodes.list() == []

    def test_a_node_whose_jobs_are_its_own_loses_none(self, store: JobStore) -> None:
        info = _info()
        insert(store, 2)
        held = [HeldJob(job.id, job.attempt_token) for job in claim(store, info.id)]

        assert store.nodes.beat(info, held) == frozenset()

    def test_a_beat_tells_which_jobs_are_lost(self, store: JobStore) -> None:
        info = _info()
        insert(store, 3)
        kept, finished, stale = claim(store, info.id)
        insert(store)
        [foreign] = claim(store, new_node())
        store.jobs.finish(info.id, [outcome(finished)], now=T0)
        unknown = new_id()

        lost = store.nodes.beat(
            info,
            [
                HeldJob(kept.id, kept.attempt_token),
                HeldJob(finished.id, finished.attempt_token),
                HeldJob(stale.id, stale.attempt_token - 1),
                HeldJob(foreign.id, foreign.attempt_token),
                HeldJob(unknown, 1),
            ],
        )

        assert lost == {finished.id, stale.id, foreign.id, unknown}

    def test_a_beat_renews_exactly_the_jobs_it_names(self, store: JobStore) -> None:
        info = _info()
        insert(store, 2)
        named, unnamed = claim(store, info.id)
        before = read(store, named.id), read(store, unnamed.id)

        def renewed() -> bool:
            store.nodes.beat(info, [HeldJob(named.id, named.attempt_token)])
            beat, old = read(store, named.id).heartbeat_at, before[0].heartbeat_at
            return beat is not None and old is not None and beat > old

        _until(renewed)
        assert read(store, unnamed.id) == before[1]
        assert replace(read(store, named.id), heartbeat_at=None) == replace(
            before[0], heartbeat_at=None
        )

    def test_a_beat_does_not_revive_what_is_lost(self, store: JobStore) -> None:
        info = _info()
        insert(store)
        [held] = claim(store, info.id)
        store.jobs.finish(info.id, [outcome(held)], now=T0)

        store.nodes.beat(info, [HeldJob(held.id, held.attempt_token)])

        job = read(store, held.id)
        assert (job.state, job.heartbeat_at) == (JobState.SUCCEEDED, None)

    def test_a_removed_node_leaves_its_jobs_to_the_reclaim(self, store: JobStore) -> None:
        info = _info()
        insert(store)
        store.nodes.beat(info, [])
        [held] = claim(store, info.id)

        store.nodes.remove(info.id)

        job = read(store, held.id)
        assert (job.state, job.owner_node_id) == (JobState.PROCESSING, info.id)

    def test_a_claim_needs_no_registered_node(self, store: JobStore) -> None:
        insert(store)

        claimed = store.jobs.claim(new_node(), queues=None, handlers=[HANDLER], limit=1, now=T0)

        assert len(claimed) == 1
