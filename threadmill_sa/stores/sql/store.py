"""The SQL store: its roles on the user's engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cached_property

from sqlalchemy import Connection, Engine

from threadmill_sa._util.forks import ChildLock
from threadmill_sa.clock import Clock, SystemClock
from threadmill_sa.errors import UnsupportedStoreError
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.store import CannotJoin, JoinedWrites, StoreCapabilities
from threadmill_sa.spi.wakes import WakeChannel
from threadmill_sa.stores.sql.dialects import SqlDialect, choose_dialect
from threadmill_sa.stores.sql.identity import shield_after_restore
from threadmill_sa.stores.sql.jobs import SqlJobs
from threadmill_sa.stores.sql.joined import Joining, SqlJoinedWrites
from threadmill_sa.stores.sql.leases import SqlLeases
from threadmill_sa.stores.sql.migrate import SchemaManager, check_server, check_supported
from threadmill_sa.stores.sql.nodes import SqlNodes
from threadmill_sa.stores.sql.recording import RecordingWrites, SqlRecords
from threadmill_sa.stores.sql.recurring import SqlRecurring
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.servers import check_schema_name, unavailable
from threadmill_sa.stores.sql.silence import notice_silence_on
from threadmill_sa.stores.sql.unit import Database
from threadmill_sa.stores.sql.wakes import PostgresWakes, SqliteWakes
from threadmill_sa.stores.sql.writing import ProducerWrites


class SqlStore:
    """`spi.JobStore` on PostgreSQL 15+ or a SQLite 3.35+ file.

    Constructing it sends no SQL. The first use on PostgreSQL resolves the schema once, so that
    no later change of a search path can redirect a statement.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        also: Sequence[Engine] = (),
        schema: str | None = None,
        clock: Clock | None = None,
        record_nudges: bool = False,
    ) -> None:
        check_supported(engine)
        check_schema_name(engine.dialect.name, schema)
        self._engine = engine
        self._engines = (engine, *also)
        self._clock = clock or SystemClock()
        self._dialect: SqlDialect = choose_dialect(engine.dialect.name)
        self._schema_name = schema
        self._joining = Joining(self._engines, self.describe)
        self._database = Database(engine, self._dialect, self._clock)
        self._building = ChildLock()
        self._record_nudges = record_nudges
        self.manager = SchemaManager(engine, schema)
        if self._dialect.name == "postgresql":
            notice_silence_on(engine)

    @cached_property
    def capabilities(self) -> StoreCapabilities:
        server = self._dialect.own_clock
        return StoreCapabilities(
            joins=True,
            concurrent_writers=server,
            own_clock=server,
            ordered_revisions=not server,
            durable=True,
            shared=True,
        )

    @cached_property
    def _schema(self) -> Schema:
        with self._building:
            return Schema(self._schema_name or self._resolve_schema())

    def _resolve_schema(self) -> str:
        """Return the schema that a fresh connection of the engine starts in."""
        if self._dialect.name == "sqlite":
            return "main"  # named, so that no temporary table of a caller can stand before ours
        # Not through the engine's pool: its last connection may be the caller's.
        pool = self._engine.pool.recreate()
        try:
            with closing(pool.connect()) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT current_schema()")
                (name,) = cursor.fetchone() or (None,)
                cursor.close()
        except (self._engine.dialect.loaded_dbapi.Error, OSError) as error:
            # Beside the engine, so SQLAlchemy does not translate what the driver raises.
            raise unavailable(self._engine, error) from error
        finally:
            pool.dispose()
        if name is None:
            raise UnsupportedStoreError(
                f"{self.describe()} has no current schema: create the one that search_path names,"
                " or pass Threadmill(..., schema=...)"
            )
        return str(name)

    @cached_property
    def _writes(self) -> ProducerWrites:
        with self._building:
            writes = RecordingWrites if self._record_nudges else ProducerWrites
            return writes(self._schema, self._dialect, self._database.instant)

    @cached_property
    def jobs(self) -> SqlJobs:
        with self._building:
            return SqlJobs(self._database, self._schema, self._dialect, self._writes)

    @cached_property
    def recurring(self) -> SqlRecurring:
        with self._building:
            return SqlRecurring(self._database, self._schema, self._dialect, self._writes)

    @cached_property
    def records(self) -> NudgeRecords | None:
        if not self._record_nudges:
            return None
        return SqlRecords(
            self._database, self._dialect, lambda: self._schema, lambda: self._writes
        )

    @cached_property
    def nodes(self) -> SqlNodes:
        return SqlNodes(self._database, self._schema, self._dialect)

    @cached_property
    def leases(self) -> SqlLeases:
        return SqlLeases(self._engine, lambda: self._schema, self._dialect)

    @cached_property
    def wakes(self) -> WakeChannel:
        with self._building:
            if self._dialect.name == "sqlite":
                return SqliteWakes(self._engine)
            return PostgresWakes(self._engine, self._schema.name or "", self._clock)

    def joined(self, handle: object) -> JoinedWrites | CannotJoin:
        writes = self._writes
        connection, carrier = self._joining.connection_of(handle, writes.clause)
        return SqlJoinedWrites(connection, carrier, writes)

    def describe(self) -> str:
        place = self._engine.url.render_as_string(hide_password=True)
        return place if self._schema_name is None else f"{place} schema {self._schema_name}"

    def check_ready(self) -> None:
        check_server(self._engine)
        if self._dialect.name == "postgresql":
            self._database.write(self._secure_restored_nudges)

    def _secure_restored_nudges(self, connection: Connection) -> None:
        shield_after_restore(connection, self._schema)

    def close(self) -> None:
        if "wakes" in self.__dict__:
            self.wakes.close()
        if "leases" in self.__dict__:
            self.leases.close()
