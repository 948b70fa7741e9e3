"""Schema operations of one database: migrate, validate, print, reset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, Sequence, inspect, text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import DropSequence, DropTable

from threadmill_sa.clock import Clock
from threadmill_sa.errors import (
    InvalidValueError,
    SchemaAheadError,
    SchemaEditedError,
)
from threadmill_sa.stores.sql.frozen import BY_REVISION, HEAD, UPGRADE_COMMAND
from threadmill_sa.stores.sql.grants import producer_grants
from threadmill_sa.stores.sql.history import (
    VERSION_TABLE,
    read_history,
    require_complete,
    require_known,
)
from threadmill_sa.stores.sql.identity import shield_after_restore
from threadmill_sa.stores.sql.intact import require_intact
from threadmill_sa.stores.sql.revisions import run_upgrade, upgrade_sql, version_table
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.servers import (
    check_connection,
    check_schema_name,
    check_server,
    check_supported,
    connected,
    is_supported,
)
from threadmill_sa.stores.sql.upgrader import UPGRADE_WAIT_SECONDS, run_alone

__all__ = ["SchemaManager", "check_server", "check_supported", "is_supported"]


class SchemaManager:
    """Brings one database's schema to this release, and says whether it is there.

    Every method that connects refuses an unsupported server first (UnsupportedStoreError), and
    raises StoreUnavailableError where no server answers.
    """

    def __init__(
        self,
        engine: Engine,
        schema: str | None = None,
        *,
        wait_seconds: float = UPGRADE_WAIT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._wait_seconds = wait_seconds
        self._clock = clock

    def migrate(self) -> None:
        """Apply every missing revision, all or none; nothing is done at head.

        Any number of processes may call it at once: one works, the others wait for it.
        Raises: SchemaEditedError, SchemaAheadError before anything is changed;
        StoreUnavailableError when others hold the locks for too long; SchemaEditedError at the
        end, with the statements that would put it right, when an object of an earlier revision
        was dropped.
        """
        with self._connection() as connection:
            self._run(connection, lambda: self._upgrade(connection))
            require_intact(connection, self._schema)

    def validate(self) -> None:
        """Return when the history is exactly this release's and its keys stand; changes nothing.

        Raises: SchemaMissingError, SchemaBehindError, SchemaAheadError, SchemaEditedError, each
        with the revisions and the command to run, or what was dropped and how it comes back.
        """
        with self._connection() as connection:
            require_complete(read_history(connection, self._schema))
            require_intact(connection, self._schema)

    def current(self) -> list[str]:
        """Applied revisions, oldest first; empty where nothing was ever migrated."""
        with self._connection() as connection:
            return list(read_history(connection, self._schema) or {})

    def emit_clean_install_sql(self) -> str:
        """The SQL that builds the schema in an empty database, one transaction; connects not."""
        check_supported(self._engine)
        check_schema_name(self._engine.dialect.name, self._schema)
        return upgrade_sql(self._dialect(), since=None, to=HEAD, schema=self._schema)

    def emit_pending_sql(self) -> str:
        """The SQL of the revisions this database misses, empty at head; only reads.

        Raises: SchemaEditedError, SchemaAheadError.
        """
        with self._connection() as connection:
            applied = read_history(connection, self._schema) or {}
            self._require_consistent(connection, applied)
        since = max(applied, default=None)
        if since == HEAD:
            return ""
        return upgrade_sql(self._dialect(), since=since, to=HEAD, schema=self._schema)

    def emit_grants_sql(self, role: str) -> str:
        """The GRANT statements that let `role` enqueue and nudge, and nothing else; only reads.

        SQLite has no roles and gets a comment.
        """
        if not role:
            raise InvalidValueError("role name is empty, expected a PostgreSQL role", value=role)
        with self._connection() as connection:
            if self._engine.dialect.name == "sqlite":
                return "-- SQLite has no roles: whoever may write the file may produce.\n"
            home = self._schema or connection.scalar(text("SELECT current_schema()"))
        return producer_grants(
            self._engine.dialect.identifier_preparer, role=role, schema=str(home)
        )

    def drop_and_migrate(self, *, allow_destructive_reset: bool = False) -> None:
        """Drop our objects with all jobs and tasks in them, then build the schema again.

        One transaction; objects of others stay, and one that depends on ours refuses the drop.
        Raises: InvalidValueError without `allow_destructive_reset=True`.
        """
        if not allow_destructive_reset:
            raise InvalidValueError(
                "drop-and-migrate deletes every job and recurring task;"
                " pass allow_destructive_reset=True where that is meant",
                value=allow_destructive_reset,
            )
        with self._connection() as connection:
            self._run(connection, lambda: self._reset(connection))

    def _run(self, connection: Connection, work: Callable[[], None]) -> None:
        run_alone(
            connection,
            work,
            schema=self._schema,
            wait_seconds=self._wait_seconds,
            clock=self._clock,
        )

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        check_supported(self._engine)
        check_schema_name(self._engine.dialect.name, self._schema)
        with connected(self._engine) as connection:
            # The user's own options must neither rename our tables nor commit each statement.
            connection.execution_options(schema_translate_map=None)
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="READ COMMITTED")
            check_connection(connection)
            connection.rollback()  # what follows begins a transaction of its own
            yield connection

    def _upgrade(self, connection: Connection) -> None:
        applied = read_history(connection, self._schema) or {}
        self._require_consistent(connection, applied)
        if HEAD not in applied:
            run_upgrade(connection, to=HEAD, schema=self._schema)
        shield_after_restore(connection, Schema(self._schema))

    def _require_consistent(self, connection: Connection, applied: dict[str, str]) -> None:
        """Alembic goes by its version table, everything else by the history: they must agree."""
        require_known(applied)
        newest, stamped = max(applied, default=None), self._stamped(connection)
        unknown = [version for version in stamped if version not in BY_REVISION]
        if unknown:
            raise SchemaAheadError(
                f"table {VERSION_TABLE!r} is stamped {unknown!r}, newest known is {HEAD!r};"
                " install the release that brought it, or remove the foreign stamp",
                revisions=unknown,
            )
        if stamped != ([newest] if newest else []):
            raise SchemaEditedError(
                f"table {VERSION_TABLE!r} is stamped {stamped!r}, the history ends at {newest!r};"
                f" set the stamp to the history's revision, then run `{UPGRADE_COMMAND}`",
                revisions=stamped,
                expected=newest,
            )

    def _stamped(self, connection: Connection) -> list[str]:
        if not inspect(connection).has_table(VERSION_TABLE, schema=self._schema):
            return []
        stamps = version_table(self._schema)
        return [str(row[0]) for row in connection.execute(stamps.select())]

    def _reset(self, connection: Connection) -> None:
        require_known(read_history(connection, self._schema) or {})
        schema = Schema(self._schema)
        for table in (*reversed(schema.metadata.sorted_tables), version_table(self._schema)):
            connection.execute(DropTable(table, if_exists=True))
        if connection.dialect.name == "postgresql":
            quote = connection.dialect.identifier_preparer.quote
            home = "" if self._schema is None else quote(self._schema) + "."
            connection.execute(text(f"DROP FUNCTION IF EXISTS {home}threadmill_jobs_count()"))
            sequences: list[Sequence] = [schema.epoch_sequence, schema.revision_sequence]
            for sequence in sequences:
                connection.execute(DropSequence(sequence, if_exists=True))
        run_upgrade(connection, to=HEAD, schema=self._schema)

    def _dialect(self) -> Dialect:
        # Not the engine's own, whose parameter style doubles percent signs in printed text.
        dialect: Callable[..., Dialect] = type(self._engine.dialect)
        return dialect(paramstyle="named")
