"""The role `Nodes` in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from threading import Lock

from threadmill_sa.clock import Clock
from threadmill_sa.model.job import JobId, NodeId
from threadmill_sa.model.node import HeldJob, NodeInfo, NodeView
from threadmill_sa.stores.memory.table import JobTable


class MemoryNodes:
    """Nodes under the store's lock, judged by the store's clock."""

    def __init__(self, table: JobTable, lock: Lock, clock: Clock) -> None:
        self._table = table
        self._lock = lock
        self._clock = clock
        self._nodes: dict[NodeId, NodeView] = {}

    def beat(self, node: NodeInfo, held: Sequence[HeldJob]) -> frozenset[JobId]:
        with self._lock:
            now = self._clock.now()
            known = self._nodes.get(node.id)
            self._nodes[node.id] = NodeView(
                id=node.id,
                host=node.host,
                pid=node.pid,
                queues=node.queues,
                workers=node.workers,
                started_at=now if known is None else known.started_at,
                heartbeat_at=now,
            )
            lost = set()
            for claim in held:
                row = self._table.rows.get(claim.job_id)
                if row is not None and row.held_by(node.id, claim.attempt_token):
                    row.heartbeat_at = now
                else:
                    lost.add(claim.job_id)
            return frozenset(lost)

    def remove(self, node_id: NodeId) -> None:
        with self._lock:
            self._nodes.pop(node_id, None)

    def remove_stale(self, *, silent_since: datetime) -> int:
        with self._lock:
            stale = [node.id for node in self._nodes.values() if node.heartbeat_at <= silent_since]
            for node_id in stale:
                del self._nodes[node_id]
            return len(stale)

    def list(self) -> list[NodeView]:
        with self._lock:
            return sorted(self._nodes.values(), key=lambda node: (node.started_at, node.id))
