"""The role that knows which processes are alive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from threadmill_sa.model.job import JobId, NodeId
from threadmill_sa.model.node import HeldJob, NodeInfo, NodeView


class Nodes(Protocol):
    """Registration and heartbeats; always by the store's own clock, never an injected one."""

    def beat(self, node: NodeInfo, held: Sequence[HeldJob]) -> frozenset[JobId]:
        """Write the node's heartbeat and that of every job it holds.

        Returns: the jobs of `held` that this node holds no longer; their finish would be LOST.
        Atomicity: one transaction.
        """
        ...

    def remove(self, node_id: NodeId) -> None:
        """Forget a node that has ended. An unknown id is no error."""
        ...

    def remove_stale(self, *, silent_since: datetime) -> int:
        """Forget nodes that have not beaten after that instant of the store's own clock.

        Returns: how many.
        """
        ...

    def list(self) -> list[NodeView]:
        """Return every registered node, oldest start first.

        The start is that of the beat which registered it: a node that finds a later one learns
        that the store has lost it, and perhaps everything else.
        """
        ...
