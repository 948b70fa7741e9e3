"""The store in memory, assembled from its roles."""

from __future__ import annotations

from threading import Lock

from threadmill_sa.clock import Clock, SystemClock
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.nodes import Nodes
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.spi.store import CannotJoin, JoinedWrites, StoreCapabilities
from threadmill_sa.spi.wakes import WakeChannel
from threadmill_sa.stores.memory.jobs import MemoryJobs
from threadmill_sa.stores.memory.leases import MemoryLeases
from threadmill_sa.stores.memory.nodes import MemoryNodes
from threadmill_sa.stores.memory.records import MemoryRecords, RecordLog
from threadmill_sa.stores.memory.recurring import MemoryRecurring
from threadmill_sa.stores.memory.table import JobTable

_CAPABILITIES = StoreCapabilities(
    joins=False,
    concurrent_writers=False,
    own_clock=False,
    ordered_revisions=True,
    durable=False,
    shared=False,
)


class MemoryStore:
    """Everything in this process, under one lock; for tests and programs without a database."""

    def __init__(self, clock: Clock | None = None, *, record_nudges: bool = False) -> None:
        clock = SystemClock() if clock is None else clock
        table, lock = JobTable(), Lock()
        self._jobs = MemoryJobs(table, lock, clock)
        log = RecordLog() if record_nudges else None
        self._recurring = recurring = MemoryRecurring(table, lock, clock, log)
        self._records = (
            None if log is None else MemoryRecords(log, lock, clock, recurring.living_epoch)
        )
        self._nodes = MemoryNodes(table, lock, clock)
        self._leases = MemoryLeases(clock)

    @property
    def capabilities(self) -> StoreCapabilities:
        return _CAPABILITIES

    @property
    def jobs(self) -> Jobs:
        return self._jobs

    @property
    def recurring(self) -> Recurring:
        return self._recurring

    @property
    def nodes(self) -> Nodes:
        return self._nodes

    @property
    def leases(self) -> Leases | None:
        return self._leases

    @property
    def records(self) -> NudgeRecords | None:
        return self._records

    @property
    def wakes(self) -> WakeChannel | None:
        return None

    def joined(self, handle: object) -> JoinedWrites | CannotJoin:
        del handle
        return CannotJoin(
            "the in-memory store has no SQL transaction: its writes happen at once,"
            " or with mode='after_commit' once the session has committed"
        )

    def describe(self) -> str:
        return "memory (this process)"

    def check_ready(self) -> None:
        """Pass: this store needs no server and no schema."""

    def close(self) -> None:
        """Do nothing: the content ends with the object."""
