"""The one statement of the SQL schema. Revisions in `alembic/` must arrive exactly here.

Deliberately absent: foreign keys (a joined insert would wait for, or fail with, a delete in
flight), and any row that two producers' transactions could both update.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    Float,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.types import TIMESTAMP, TypeDecorator, TypeEngine

from threadmill_sa.errors import NaiveDatetimeError
from threadmill_sa.model.limits import HOLDER_MAX_CHARS, NAME_MAX_CHARS
from threadmill_sa.model.state import FINISHED

PREFIX = "threadmill_"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

BIG_ID = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows by INTEGER only


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: `timestamptz` on PostgreSQL, integer microseconds since 1970 on SQLite."""

    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        return dialect.type_descriptor(TIMESTAMP(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.utcoffset() is None:
            raise NaiveDatetimeError(f"instant {value.isoformat()} has no zone", value=value)
        if dialect.name == "sqlite":
            return (value - _EPOCH) // _MICROSECOND
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            read: datetime = _read_or_raw(_from_micros, value)
            return read
        instant: datetime = value
        return instant.astimezone(UTC)


class _Id(Uuid[UUID]):
    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        process = super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]
        if process is None or dialect.name != "sqlite":
            return process
        return lambda value: _read_or_raw(process, value)


def _from_micros(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def _read_or_raw(read: Callable[[Any], Any], value: Any) -> Any:
    """Return what a column of SQLite holds, also when it is not of the column's type.

    Such a value is refused with its own row by `rows`; an error here would refuse every other row
    of the statement as well.
    """
    try:
        return read(value)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return value


def _name() -> String:
    return String(NAME_MAX_CHARS)


class Schema:
    """All tables and sequences, in one schema of the database (None: the connection's default)."""

    def __init__(self, schema: str | None = None) -> None:
        self.name = schema
        self.metadata = MetaData(schema=schema)
        self.jobs = _jobs(self.metadata)
        self.job_history = _job_history(self.metadata)
        self.count_deltas, self.job_counts, self.queue_counts = _counts(self.metadata)
        self.cron_tasks = _cron_tasks(self.metadata)
        self.cron_task_state = _cron_task_state(self.metadata)
        # PostgreSQL only; SQLite draws both from its tables, it has one writer.
        self.epoch_sequence = Sequence(
            f"{PREFIX}epoch_seq", metadata=self.metadata, data_type=BigInteger
        )
        self.revision_sequence = Sequence(
            f"{PREFIX}nudge_revision_seq", metadata=self.metadata, data_type=BigInteger
        )
        self.cron_nudges = _cron_nudges(self.metadata, self.revision_sequence)
        self.nodes = _nodes(self.metadata)
        self.leases = _leases(self.metadata)
        self.nudge_records = _nudge_records(self.metadata)
        self.snapshot_records = _snapshot_records(self.metadata)
        self.store_identity = _store_identity(self.metadata)
        self.schema_history = _schema_history(self.metadata)


def _jobs(metadata: MetaData) -> Table:
    table = Table(
        f"{PREFIX}jobs",
        metadata,
        Column("id", _Id(), nullable=False),
        Column("state", String(16), nullable=False),
        Column("queue", _name(), nullable=False),
        Column("priority", Integer, nullable=False),
        Column("handler", _name(), nullable=False),
        Column("payload", Text),
        Column("metadata", Text),
        Column("cron_task_name", _name()),
        Column("cron_origin", String(16)),
        Column("fire_time", UtcDateTime),
        Column("scheduled_at", UtcDateTime),
        Column("created_at", UtcDateTime, nullable=False),
        Column("state_at", UtcDateTime, nullable=False),
        Column("started_at", UtcDateTime),
        Column("attempt", Integer, nullable=False),
        Column("max_attempts", Integer, nullable=False),
        Column("attempt_token", BigInteger, nullable=False),
        Column("timeout_seconds", Float(53)),
        Column("owner_node_id", _Id()),
        Column("heartbeat_at", UtcDateTime),
        Column("result", Text),
        PrimaryKeyConstraint("id", name=f"pk_{PREFIX}jobs"),
        CheckConstraint(
            "state IN ('AWAITING', 'SCHEDULED', 'ENQUEUED', 'PROCESSING', 'PROCESSED',"
            " 'SUCCEEDED', 'FAILED', 'DELETED', 'QUARANTINED')",
            name=f"ck_{PREFIX}jobs_state",
        ),
    )
    # One partial index per query shape; the states are literals in the statements that use them.
    highest_first = table.c.priority.desc()
    _partial(table, "ready", "state = 'ENQUEUED'", highest_first, "id")
    _partial(table, "ready_queue", "state = 'ENQUEUED'", "queue", highest_first, "id")
    _partial(table, "scheduled", "state = 'SCHEDULED'", "scheduled_at", "id")
    # Not on heartbeat_at: heartbeats stay heap-only updates, and few jobs run at once.
    _partial(table, "processing", "state = 'PROCESSING'", "id")
    _partial(
        table,
        "task_unfinished",
        "cron_task_name IS NOT NULL"
        " AND state IN ('AWAITING', 'SCHEDULED', 'ENQUEUED', 'PROCESSING')",
        # The state is equal for many rows; it makes SQLite, which never knows how many, prefer
        # this index over the one of all instances.
        "cron_task_name",
        "state",
    )
    _partial(table, "task", "cron_task_name IS NOT NULL", "cron_task_name", "id")
    # OR, not IN: SQLite then sees that one of the states is enough.
    finished = " OR ".join(f"state = '{state}'" for state in FINISHED)
    _partial(table, "finished", finished, "state", "state_at", "id")
    return table


def _partial(table: Table, suffix: str, condition: str, *columns: Any) -> None:
    where = text(condition)
    parts = [table.c[column] if isinstance(column, str) else column for column in columns]
    Index(
        f"ix_{table.name}_{suffix}",
        *parts,
        postgresql_where=where,
        sqlite_where=where,
        _table=table,
    )


def _job_history(metadata: MetaData) -> Table:
    return Table(
        f"{PREFIX}job_history",
        metadata,
        Column("id", BIG_ID, Identity(), nullable=False),
        Column("job_id", _Id(), nullable=False),
        Column("state", String(16), nullable=False),
        Column("at", UtcDateTime, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("reason", String(64), nullable=False),
        Column("message", Text),
        PrimaryKeyConstraint("id", name=f"pk_{PREFIX}job_history"),
        Index(f"ix_{PREFIX}job_history_job", "job_id", "id"),
    )


def _counts(metadata: MetaData) -> tuple[Table, Table, Table]:
    """Deltas are appended by triggers and folded by maintenance; readers sum both.

    On SQLite the triggers update the folded rows directly and the deltas stay empty.
    """
    deltas = Table(
        f"{PREFIX}count_deltas",
        metadata,
        Column("id", BIG_ID, Identity(), nullable=False),
        Column("queue", _name(), nullable=False),
        Column("state", String(16), nullable=False),
        Column("n", BigInteger, nullable=False),
        PrimaryKeyConstraint("id", name=f"pk_{PREFIX}count_deltas"),
    )
    jobs = Table(
        f"{PREFIX}job_counts",
        metadata,
        Column("state", String(16), nullable=False),
        Column("n", BigInteger, nullable=False),
        PrimaryKeyConstraint("state", name=f"pk_{PREFIX}job_counts"),
    )
    queues = Table(  # ENQUEUED jobs only: the depth
        f"{PREFIX}queue_counts",
        metadata,
        Column("queue", _name(), nullable=False),
        Column("n", BigInteger, nullable=False),
        PrimaryKeyConstraint("queue", name=f"pk_{PREFIX}queue_counts"),
    )
    return deltas, jobs, queues


def _cron_tasks(metadata: MetaData) -> Table:
    return Table(
        f"{PREFIX}cron_tasks",
        metadata,
        Column("name", _name(), nullable=False),
        Column("trigger_kind", String(16), nullable=False),
        Column("trigger_value", String(256), nullable=False),
        Column("zone", String(64), nullable=False),
        Column("handler", _name(), nullable=False),
        Column("payload", Text),
        Column("queue", _name(), nullable=False),
        Column("priority", Integer, nullable=False),
        Column("missed_run_policy", String(16), nullable=False),
        Column("timeout_seconds", Float(53)),
        Column("max_attempts", Integer),
        Column("enabled", Boolean(create_constraint=False), nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("anchor_at", UtcDateTime, nullable=False),
        Column("created_at", UtcDateTime, nullable=False),
        Column("updated_at", UtcDateTime, nullable=False),
        PrimaryKeyConstraint("name", name=f"pk_{PREFIX}cron_tasks"),
    )


def _cron_task_state(metadata: MetaData) -> Table:
    return Table(
        f"{PREFIX}cron_task_state",
        metadata,
        Column("task_name", _name(), nullable=False),
        Column("next_run_at", UtcDateTime),
        Column("last_run_at", UtcDateTime),
        Column("last_run_job_id", _Id()),
        Column("in_flight_job_id", _Id()),
        Column("timing_fingerprint", String(512)),
        Column("broken_reason", Text),
        Column("broken_at", UtcDateTime),
        PrimaryKeyConstraint("task_name", name=f"pk_{PREFIX}cron_task_state"),
        Index(f"ix_{PREFIX}cron_task_state_next_run_at", "next_run_at"),
        Index(
            f"ix_{PREFIX}cron_task_state_broken_at",
            "broken_at",
            postgresql_where=text("broken_at IS NOT NULL"),
            sqlite_where=text("broken_at IS NOT NULL"),
        ),
    )


def _cron_nudges(metadata: MetaData, revisions: Sequence) -> Table:
    """One row per task and accepting transaction: producers never meet.

    PostgreSQL has no index on the revision: producers draw it in blocks, and after a failover
    that lost the sequence's last value two may be equal, which must not fail a caller. Its
    replica identity is the unique constraint. See docs/decisions/0007-revisions-in-blocks.md.
    """
    key = PrimaryKeyConstraint("revision", name=f"pk_{PREFIX}cron_nudges")
    return Table(
        f"{PREFIX}cron_nudges",
        metadata,
        # AUTOINCREMENT on SQLite, which only a single-column key can have.
        Column("revision", BIG_ID, revisions, nullable=False),
        Column("task_name", _name(), nullable=False),
        Column("slot", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("requested_at", UtcDateTime, nullable=False),
        key.ddl_if(dialect="sqlite"),
        UniqueConstraint("task_name", "slot", name=f"uq_{PREFIX}cron_nudges_task_name_slot"),
        sqlite_autoincrement=True,
    )


def _nodes(metadata: MetaData) -> Table:
    return Table(
        f"{PREFIX}nodes",
        metadata,
        Column("id", _Id(), nullable=False),
        Column("host", String(255), nullable=False),
        Column("pid", BigInteger, nullable=False),
        Column("queues", Text),  # JSON list; null is all queues
        Column("workers", Integer, nullable=False),
        Column("started_at", UtcDateTime, nullable=False),
        Column("heartbeat_at", UtcDateTime, nullable=False),
        PrimaryKeyConstraint("id", name=f"pk_{PREFIX}nodes"),
    )


def _nudge_records(metadata: MetaData) -> Table:
    """One row per recorded acceptance, in the accepting transaction; only audits read them."""
    name = f"{PREFIX}nudge_records"
    return Table(
        name,
        metadata,
        # On SQLite also the order of the commits: never given out twice, and one writer.
        Column("id", BIG_ID, Identity(), nullable=False),
        Column("task_name", _name(), nullable=False),
        # 0: it was to be written after the commit, and that was refused.
        Column("epoch", BigInteger, nullable=False),
        Column("slot", BigInteger, nullable=False),  # the transaction id on PostgreSQL
        Column("revision", BigInteger),  # null: to be written after the commit
        Column("requested_at", UtcDateTime, nullable=False),
        PrimaryKeyConstraint("id", name=f"pk_{name}"),
        Index(f"ix_{name}_task", "task_name", "id"),
        sqlite_autoincrement=True,
    )


def _snapshot_records(metadata: MetaData) -> Table:
    """What a run, or an operator's call that drops nudges, found committed."""
    name = f"{PREFIX}snapshot_records"
    return Table(
        name,
        metadata,
        Column("id", BIG_ID, Identity(), nullable=False),
        Column("task_name", _name(), nullable=False),
        Column("event", String(16), nullable=False),
        Column("job_id", _Id()),
        Column("attempt", Integer),
        # PostgreSQL: pg_current_snapshot(); SQLite: the highest id of the nudge records.
        Column("seen", Text, nullable=False),
        Column("recorded_at", UtcDateTime, nullable=False),
        PrimaryKeyConstraint("id", name=f"pk_{name}"),
        Index(f"ix_{name}_task", "task_name", "id"),
        sqlite_autoincrement=True,
    )


def _leases(metadata: MetaData) -> Table:
    """One row per mutex that was ever held; it is never deleted, so that no term comes twice."""
    return Table(
        f"{PREFIX}leases",
        metadata,
        Column("name", _name(), nullable=False),
        Column("holder", String(HOLDER_MAX_CHARS)),  # null when free
        Column("term", BigInteger, nullable=False),
        Column("acquired_at", UtcDateTime, nullable=False),
        Column("expires_at", UtcDateTime, nullable=False),
        PrimaryKeyConstraint("name", name=f"pk_{PREFIX}leases"),
        # Makes the term a key column: a new one conflicts with a fence, a renewal does not.
        UniqueConstraint("name", "term", name=f"uq_{PREFIX}leases_name_term"),
    )


def _store_identity(metadata: MetaData) -> Table:
    return Table(
        f"{PREFIX}store_identity",
        metadata,
        Column("id", SmallInteger, autoincrement=False, nullable=False),  # always 1
        Column("system_identifier", String(64)),  # PostgreSQL; null where it may not be read
        Column("last_epoch", BigInteger, nullable=False),  # SQLite's source of epochs
        PrimaryKeyConstraint("id", name=f"pk_{PREFIX}store_identity"),
    )


def _schema_history(metadata: MetaData) -> Table:
    return Table(
        f"{PREFIX}schema_history",
        metadata,
        Column("revision", String(32), nullable=False),
        Column("description", String(200), nullable=False),
        Column("checksum", String(64), nullable=False),
        Column("applied_at", UtcDateTime, nullable=False),
        PrimaryKeyConstraint("revision", name=f"pk_{PREFIX}schema_history"),
    )
