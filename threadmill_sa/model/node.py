"""Running processes as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from threadmill_sa.model.job import JobId, NodeId


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node tells of itself; the id is random per start."""

    id: NodeId
    host: str
    pid: int
    queues: tuple[str, ...] | None  # None: all
    workers: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """A registered node as operators see it."""

    id: NodeId
    host: str
    pid: int
    queues: tuple[str, ...] | None
    workers: int
    started_at: datetime
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class HeldJob:
    """One claim that a node still answers for."""

    job_id: JobId
    attempt_token: int
