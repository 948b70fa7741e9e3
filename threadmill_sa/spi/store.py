"""A store: its roles, what differs honestly, and the one word by which it joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from threadmill_sa.model.job import NewJob
from threadmill_sa.model.lease import FenceVerdict, Lease
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.nodes import Nodes
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.spi.wakes import WakeChannel


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """What differs between stores; tests ask these, never a brand."""

    joins: bool  # can write inside a caller's SQL transaction
    concurrent_writers: bool  # two write transactions can be open at once
    own_clock: bool  # judges time by a clock of its own when none is injected
    ordered_revisions: bool  # revisions are drawn in the order of acceptance
    durable: bool  # outlives the process
    shared: bool  # other processes can use it


class JoinedWrites(Protocol):
    """Writes that ride one caller's transaction: nothing of them is seen before its commit.

    Guarantees N6-N8: they raise no database error of their own, wait for no other producer and
    leave the transaction usable whatever the verdict.
    """

    @property
    def carrier(self) -> object:
        """What the handle reaches this store by; for SQL stores an Engine or a Connection.

        An Engine means that the handle ends the transaction itself; a Connection means that
        someone outside may still undo it.
        """
        ...

    def task_verdicts(
        self, names: Sequence[str], *, writing: bool = False
    ) -> Mapping[str, NudgeVerdict]:
        """As `Recurring.task_verdicts`, by the caller's snapshot.

        Args:
            writing: a write follows in this transaction, and must not fail for the reading: it
                raises what it would have raised without.
        """
        ...

    def request_cron_nudge(self, name: str, *, now: datetime | None = None) -> NudgeOutcome:
        """As `Recurring.request_cron_nudge`, in the caller's transaction."""
        ...

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime | None = None) -> None:
        """As `Jobs.insert`, in the caller's transaction."""
        ...

    def expect_nudges(
        self, names: Sequence[str], *, now: datetime | None = None
    ) -> Mapping[str, int]:
        """As `NudgeRecords.expect`, in the caller's transaction; nothing while recording is off.

        For nudges that are to be written once that transaction has committed.
        """
        ...

    def fence(self, lease: Lease) -> FenceVerdict:
        """Hold the lease's term until the caller's transaction ends, when it has not ended.

        Guarantee: after HOLDS no other term of the name begins before that end. It may wait for
        a takeover that is under way, and holds back takeovers of this one name.
        """
        ...


@dataclass(frozen=True, slots=True)
class CannotJoin:
    """This store has no transaction to share with the caller; `reason` says why."""

    reason: str


class JobStore(Protocol):
    """Everything the engine needs of a store."""

    @property
    def capabilities(self) -> StoreCapabilities: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def recurring(self) -> Recurring: ...

    @property
    def nodes(self) -> Nodes: ...

    @property
    def leases(self) -> Leases | None:
        """The leases, or None on a store that keeps none."""
        ...

    @property
    def records(self) -> NudgeRecords | None:
        """The records of nudges and runs, or None while nothing is recorded. Sends no SQL."""
        ...

    @property
    def wakes(self) -> WakeChannel | None:
        """The channel to other processes, or None when there is nobody to tell."""
        ...

    def joined(self, handle: object) -> JoinedWrites | CannotJoin:
        """Return the writes that ride the transaction of `handle`.

        Args:
            handle: what the store knows as a transaction's carrier; for SQL stores a
                `sqlalchemy.orm.Session` or `sqlalchemy.engine.Connection`.
        Raises: JoinError when the handle belongs to another database or has no transaction.
            No SQL is sent before the refusal.
        """
        ...

    def describe(self) -> str:
        """Return one line that identifies the store, without secrets."""
        ...

    def check_ready(self) -> None:
        """Raise when this store cannot serve this release (server version, schema)."""
        ...

    def close(self) -> None:
        """Release what the store opened itself; never the user's engine."""
        ...
