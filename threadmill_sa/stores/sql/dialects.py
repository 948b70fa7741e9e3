"""What PostgreSQL and SQLite spell differently, chosen once per engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    Select,
    Text,
    bindparam,
    case,
    cast,
    column,
    delete,
    false,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.schema import Sequence, Table
from sqlalchemy.types import TypeEngine, UserDefinedType

from threadmill_sa.model.limits import REVISION_BLOCK
from threadmill_sa.stores.sql.schema import Schema, UtcDateTime

Instant = ColumnElement[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def now_parameter() -> ColumnElement[Any]:
    """Return the bind of the injected instant; null asks for the store's own clock."""
    return bindparam("now", type_=UtcDateTime)


class SqlDialect(Protocol):
    """The spellings. Builders ask for them and contain no `if` on a dialect's name."""

    name: str
    own_clock: bool
    """True when a null `now` means the server's clock; else the caller binds the process clock."""
    versions_rows: bool
    """True when each row has a version, and one statement can write in several tables."""

    def now_value(self) -> Instant:
        """Return the instant of the statement, for stored values."""
        ...

    def clock_value(self) -> Instant:
        """Return the store's own instant, for liveness; the bind `clock` where it has none."""
        ...

    def now_bound(self) -> Instant:
        """Return the instant for comparisons, in a form that lets the planner use an index."""
        ...

    def later(self, instant: Instant, seconds: ColumnElement[Any]) -> Instant:
        """Return `instant` moved by `seconds`, which may be null."""
        ...

    def member(
        self, column: ColumnElement[Any], name: str, type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        """Return the condition that `column` is in the list bound as `name`."""
        ...

    def list_value(self, values: Iterable[Any]) -> Any:
        """Return `values` as `member` wants them bound."""
        ...

    def picked(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        """Return the condition that `column` is among `rows`, a locking select run once."""
        ...

    def records(self, name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
        """Return the rows that `record_text` packed into the bind `name`, as a table."""
        ...

    def record_value(self, value: Any) -> Any:
        """Return `value` as `records` reads it back from JSON."""
        ...

    def insert(self, table: Table) -> Any:
        """Return an insert with the dialect's ON CONFLICT."""
        ...

    def kept(
        self, table: Table, key: ColumnElement[Any], *conditions: ColumnElement[bool]
    ) -> Executable:
        """Return what gives `key` of the matching row and keeps it so until the transaction ends.

        Other columns of the row may change meanwhile where rows are locked one by one.
        """
        ...

    def keeps_its_snapshot(self) -> ColumnElement[bool]:
        """Return the condition that this transaction may read and lock rows as they once were."""
        ...

    def first_write(self, table: Table) -> Executable | None:
        """Return what changes nothing and makes a transaction a writer; None: no read bars one."""
        ...

    def revision_block(self, sequence: Sequence) -> Select[Any] | None:
        """Return what draws the first of limits.REVISION_BLOCK revisions; None: the table does."""
        ...

    def given_revision(self) -> Mapping[str, ColumnElement[int]]:
        """Return the revision column of an accept, where the caller gives it."""
        ...

    def requested_at(self, schema: Schema) -> Instant:
        """Return the instant of an accept: of the earliest in its slot, which others may share."""
        ...

    def compacted_identity(self, sequence: Sequence) -> Mapping[str, ColumnElement[int]]:
        """Return slot, and where it must be drawn revision, of a compacted nudge."""
        ...

    def keep_one_per_slot(self, nudges: Table, names: list[str], rows: Select[Any]) -> Any:
        """Return the insert of `rows` that takes the place of an earlier accept in its slot."""
        ...

    def epoch_source(self, schema: Schema) -> Any:
        """Return the statement whose one value is a number never returned before."""
        ...

    def transaction_slot(self) -> ColumnElement[int]:
        """Return what names the accepting transaction in `cron_nudges.slot`."""
        ...

    def recorded(
        self, accept: Any, pending: Select[Any], record: Callable[[Select[Any]], Insert]
    ) -> tuple[Executable, ...]:
        """Return what runs `accept`, which returns the columns of `pending`, and its record.

        The first one returns what `accept` does.
        """
        ...

    def committed_by_now(self, schema: Schema) -> ColumnElement[str]:
        """Return what a snapshot record keeps: enough to tell which nudge records it shows."""
        ...

    def shows(self, snapshots: FromClause, nudges: FromClause) -> ColumnElement[bool]:
        """Return the condition that the record of a nudge was committed by a snapshot."""
        ...

    def with_one_snapshot(self, dropping: Delete, noting: Insert) -> tuple[Executable, ...]:
        """Return what runs both so that `noting` sees as committed what `dropping` saw."""
        ...


class PostgresDialect:
    """PostgreSQL; functions are named with their schema, whatever a caller's search path says."""

    name = "postgresql"
    own_clock = True
    versions_rows = True

    def now_value(self) -> Instant:
        clock: ColumnElement[Any] = func.pg_catalog.clock_timestamp(type_=UtcDateTime())
        return func.coalesce(now_parameter(), clock, type_=UtcDateTime())

    def clock_value(self) -> Instant:
        return func.pg_catalog.clock_timestamp(type_=UtcDateTime())

    def now_bound(self) -> Instant:
        # Evaluated once: a bare clock_timestamp() is volatile and would scan every row.
        return select(self.now_value()).scalar_subquery()

    def later(self, instant: Instant, seconds: ColumnElement[Any]) -> Instant:
        span = func.pg_catalog.make_interval(0, 0, 0, 0, 0, 0, seconds)
        return instant.op("+", return_type=UtcDateTime())(span)

    def member(
        self, column: ColumnElement[Any], name: str, type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        # One array bind, so the text, and with it the prepared statement, never varies in length.
        return column == func.any(bindparam(name, type_=postgresql.ARRAY(type_)))

    def list_value(self, values: Iterable[Any]) -> Any:
        return list(values)

    def picked(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        # A join here flips to a hash join with a full scan at large limits.
        once = rows.cte("picked").prefix_with("MATERIALIZED")
        ids = select(once.c[0]).scalar_subquery()
        return column == func.any(func.array(ids))

    def records(self, name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
        rows = func.pg_catalog.json_to_recordset(
            cast(bindparam(name, type_=Text()), postgresql.JSON)
        )
        typed = [column(key, type_) for key, type_ in columns.items()]
        return rows.table_valued(*typed, name="records").render_derived(with_types=True)

    def record_value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat()
        return str(value) if isinstance(value, UUID) else value

    def insert(self, table: Table) -> postgresql.Insert:
        return postgresql.insert(table)

    def kept(
        self, table: Table, key: ColumnElement[Any], *conditions: ColumnElement[bool]
    ) -> Executable:
        # KEY SHARE: conflicts with a change of a key column, and with that alone.
        rows = select(key).select_from(table).where(*conditions)
        return rows.with_for_update(read=True, key_share=True)

    def keeps_its_snapshot(self) -> ColumnElement[bool]:
        level = func.pg_catalog.current_setting("transaction_isolation", type_=Text())
        return or_(level == "repeatable read", level == "serializable")

    def first_write(self, table: Table) -> None:
        del table

    def revision_block(self, sequence: Sequence) -> Select[Any]:
        return select(sequence.next_value() * REVISION_BLOCK)

    def given_revision(self) -> Mapping[str, ColumnElement[int]]:
        return {"revision": bindparam("revision", type_=BigInteger())}

    def requested_at(self, schema: Schema) -> Instant:
        del schema  # what the slot may hold is met by `keep_one_per_slot`
        return self.now_value()

    def compacted_identity(self, sequence: Sequence) -> Mapping[str, ColumnElement[int]]:
        # Minus its revision is a slot that no transaction id can ever meet.
        block = sequence.next_value() * REVISION_BLOCK  # only its first one is used
        drawn = select(block.label("revision")).subquery("drawn")
        return {"slot": -drawn.c.revision, "revision": drawn.c.revision}

    def keep_one_per_slot(self, nudges: Table, names: list[str], rows: Select[Any]) -> Any:
        statement = self.insert(nudges).from_select(names, rows, include_defaults=False)
        again = statement.excluded
        fresh: dict[str, Any] = {name: again[name] for name in ("epoch", "revision")}
        fresh["requested_at"] = case(
            # One of a registration that is gone by now counts no more.
            (nudges.c.epoch == again.epoch, func.least(nudges.c.requested_at, again.requested_at)),
            else_=again.requested_at,
        )
        return statement.on_conflict_do_update(index_elements=["task_name", "slot"], set_=fresh)

    def epoch_source(self, schema: Schema) -> Any:
        return select(schema.epoch_sequence.next_value())

    def transaction_slot(self) -> ColumnElement[int]:
        return cast(cast(func.pg_catalog.pg_current_xact_id(), Text), BigInteger)

    def recorded(
        self, accept: Any, pending: Select[Any], record: Callable[[Select[Any]], Insert]
    ) -> tuple[Executable, ...]:
        accepted = accept.cte("accepted")
        rows = select(*[accepted.c[column.name] for column in pending.selected_columns])
        return (rows.add_cte(record(rows).cte("recorded")),)

    def committed_by_now(self, schema: Schema) -> ColumnElement[str]:
        del schema
        return cast(func.pg_catalog.pg_current_snapshot(), Text)

    def shows(self, snapshots: FromClause, nudges: FromClause) -> ColumnElement[bool]:
        transaction = _named_cast(cast(nudges.c.slot, Text), "pg_catalog.xid8")
        snapshot = _named_cast(snapshots.c.seen, "pg_catalog.pg_snapshot")
        return func.pg_catalog.pg_visible_in_snapshot(transaction, snapshot, type_=Boolean())

    def with_one_snapshot(self, dropping: Delete, noting: Insert) -> tuple[Executable, ...]:
        return (noting.add_cte(dropping.cte("dropped")),)


class SqliteDialect:
    name = "sqlite"
    own_clock = False
    versions_rows = False

    def now_value(self) -> Instant:
        return now_parameter()

    def clock_value(self) -> Instant:
        return bindparam("clock", type_=UtcDateTime())

    def now_bound(self) -> Instant:
        return now_parameter()

    def later(self, instant: Instant, seconds: ColumnElement[Any]) -> Instant:
        micros = cast(func.round(seconds * literal_column("1000000")), BigInteger)
        return instant.op("+", return_type=UtcDateTime())(micros)

    def member(
        self, column: ColumnElement[Any], name: str, type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        # One JSON bind: no limit on the number of variables, and the text never varies.
        values = func.json_each(bindparam(name, type_=Text())).table_valued("value")
        return column.in_(select(cast(values.c.value, type_)))

    def list_value(self, values: Iterable[Any]) -> Any:
        return json.dumps([self.record_value(value) for value in values], ensure_ascii=False)

    def picked(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        return column.in_(rows)

    def records(self, name: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
        rows = func.json_each(bindparam(name, type_=Text())).table_valued("value", name="packed")
        fields = [
            func.json_extract(rows.c.value, f"$.{key}", type_=type_).label(key)
            for key, type_ in columns.items()
        ]
        return select(*fields).subquery("records")

    def record_value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return (value - _EPOCH) // _MICROSECOND
        return value.hex if isinstance(value, UUID) else value

    def insert(self, table: Table) -> sqlite.Insert:
        return sqlite.insert(table)

    def kept(
        self, table: Table, key: ColumnElement[Any], *conditions: ColumnElement[bool]
    ) -> Executable:
        # A write that changes nothing makes the transaction the one writer.
        return update(table).where(*conditions).values({key: key}).returning(key)

    def keeps_its_snapshot(self) -> ColumnElement[bool]:
        return false()  # who writes sees the latest, or is refused

    def first_write(self, table: Table) -> Executable:
        # Its wait for the one writer comes before the snapshot. A transaction that has read
        # before is refused at once, without a wait, when another has committed since.
        return delete(table).where(false())

    def revision_block(self, sequence: Sequence) -> None:
        del sequence  # AUTOINCREMENT draws them one by one

    def given_revision(self) -> Mapping[str, ColumnElement[int]]:
        return {}

    def requested_at(self, schema: Schema) -> Instant:
        nudges, tasks = schema.cron_nudges, schema.cron_tasks
        pending = (
            select(nudges.c.requested_at)
            .where(nudges.c.task_name == tasks.c.name)
            .where(nudges.c.slot == self.transaction_slot())
            .where(nudges.c.epoch == tasks.c.epoch)
            .correlate(tasks)
            .scalar_subquery()
        )
        now = self.now_value()
        return func.min(now, func.coalesce(pending, now), type_=UtcDateTime())

    def compacted_identity(self, sequence: Sequence) -> Mapping[str, ColumnElement[int]]:
        del sequence
        return {"slot": self.transaction_slot()}

    def keep_one_per_slot(self, nudges: Table, names: list[str], rows: Select[Any]) -> Any:
        # Replaced, not updated: the key must be new on every acceptance. The text begins with
        # INSERT, since the standard driver opens its transaction only for that.
        statement = self.insert(nudges).prefix_with("OR REPLACE")
        return statement.from_select(names, rows, include_defaults=False)

    def epoch_source(self, schema: Schema) -> Any:
        counter = schema.store_identity.c.last_epoch
        return update(schema.store_identity).values(last_epoch=counter + 1).returning(counter)

    def transaction_slot(self) -> ColumnElement[int]:
        return literal_column("0", BigInteger)

    def recorded(
        self, accept: Any, pending: Select[Any], record: Callable[[Select[Any]], Insert]
    ) -> tuple[Executable, ...]:
        return accept, record(pending)

    def committed_by_now(self, schema: Schema) -> ColumnElement[str]:
        # One writer: the numbers of the records are in the order of the commits.
        newest = select(func.max(schema.nudge_records.c.id)).scalar_subquery()
        return cast(func.coalesce(newest, 0), Text)

    def shows(self, snapshots: FromClause, nudges: FromClause) -> ColumnElement[bool]:
        shown: ColumnElement[bool] = nudges.c.id <= cast(snapshots.c.seen, BigInteger)
        return shown

    def with_one_snapshot(self, dropping: Delete, noting: Insert) -> tuple[Executable, ...]:
        return dropping, noting


class _Named(UserDefinedType[Any]):
    """A type of the server by its name, to cast to."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


def _named_cast(value: ColumnElement[Any], name: str) -> ColumnElement[Any]:
    return cast(value, _Named(name))


def choose_dialect(name: str) -> SqlDialect:
    """Return the spellings for a SQLAlchemy dialect name that `check_server` has let through."""
    return PostgresDialect() if name == "postgresql" else SqliteDialect()


def record_text(dialect: SqlDialect, rows: Rows[Mapping[str, Any]]) -> str:
    """Return `rows` packed for `SqlDialect.records`: one bind, whatever their number."""
    packed = [{key: dialect.record_value(value) for key, value in row.items()} for row in rows]
    return json.dumps(packed, ensure_ascii=False)
