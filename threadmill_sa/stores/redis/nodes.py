"""The role `Nodes` on Redis, judged by the server's clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from threadmill_sa.model.job import JobId, NodeId
from threadmill_sa.model.node import HeldJob, NodeInfo, NodeView
from threadmill_sa.stores.redis.gateway import Gateway, pack
from threadmill_sa.stores.redis.hashes import (
    JUNK,
    id_text,
    job_id,
    micros,
    node_text,
    node_view,
)
from threadmill_sa.stores.redis.once import Once


class RedisNodes:
    """Registered nodes; a beat renews the node and its jobs in one script."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._once = Once()

    def beat(self, node: NodeInfo, held: Sequence[HeldJob]) -> frozenset[JobId]:
        lost = self._gateway.run(
            "node_beat",
            node=node.id.hex,
            info=node_text(node),
            held=pack([[each.job_id.hex, each.attempt_token] for each in held]),
        )
        return frozenset(job_id(each) for each in lost)

    def remove(self, node_id: NodeId) -> None:
        self._gateway.run("node_remove", node=node_id.hex)

    def remove_stale(self, *, silent_since: datetime) -> int:
        return int(self._gateway.run("node_sweep", since=micros(silent_since)))

    def list(self) -> list[NodeView]:
        found = self._gateway.run("node_list")
        views = []
        for start in range(0, len(found), 4):
            try:
                views.append(node_view(*found[start : start + 4]))
            except JUNK as error:  # a hand was at it; silent for long enough it is swept away
                self._once.warn(f"node {id_text(found[start])} left out of a listing: {error}")
        return sorted(views, key=lambda node: (node.started_at, node.id))
