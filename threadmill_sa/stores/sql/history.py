"""The schema history: one row for each applied revision, written by the revision itself."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import Connection, column, delete, insert, inspect, literal_column, select, table
from sqlalchemy.sql.expression import ColumnClause, TableClause

from threadmill_sa.errors import (
    SchemaAheadError,
    SchemaBehindError,
    SchemaEditedError,
    SchemaMissingError,
    StoreInvariantError,
)
from threadmill_sa.stores.sql.frozen import BY_REVISION, FROZEN, UPGRADE_COMMAND
from threadmill_sa.stores.sql.schema import PREFIX

HISTORY_TABLE = "threadmill_schema_history"
VERSION_TABLE = "threadmill_alembic_version"
SCHEMA_OPTION = "threadmill_schema"  # of a migration context
_CLOCK = {
    "postgresql": "pg_catalog.clock_timestamp()",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000",
}


def target_schema() -> str | None:
    """The schema that the running revision works in; None is the connection's default."""
    schema: str | None = op.get_context().opts.get(SCHEMA_OPTION)
    return schema


def record(revision: str) -> None:
    """Write the running revision's row; called by each `upgrade()` as its last step."""
    entry = BY_REVISION.get(revision)
    if entry is None:
        raise StoreInvariantError(
            f"revision {revision!r} is not in the shipped list; add it to stores/sql/frozen.py",
            revision=revision,
        )
    # Literals, since the same statement is also printed by --sql.
    values = {
        "revision": _literal(entry.revision),
        "description": _literal(entry.description),
        "checksum": _literal(entry.checksum),
        "applied_at": literal_column(_CLOCK[op.get_context().dialect.name]),
    }
    op.execute(insert(_history(target_schema())).values(values))


def forget(revision: str) -> None:
    """Remove the running revision's row; called by each `downgrade()` as its first step."""
    history = _history(target_schema())
    op.execute(delete(history).where(history.c.revision == _literal(revision)))


def read_history(connection: Connection, schema: str | None) -> dict[str, str] | None:
    """Checksum of each applied revision, in revision order; None without a history table."""
    if not inspect(connection).has_table(HISTORY_TABLE, schema=schema):
        return None
    history = _history(schema)
    rows = connection.execute(
        select(history.c.revision, history.c.checksum).order_by(history.c.revision)
    )
    return {row.revision: row.checksum for row in rows}


def require_known(applied: dict[str, str]) -> None:
    """Refuse a history with a revision that is edited or that this release does not know."""
    edited = [
        revision
        for revision, checksum in applied.items()
        if revision in BY_REVISION and BY_REVISION[revision].checksum != checksum
    ]
    if edited:
        raise SchemaEditedError(
            f"revisions {edited!r} were applied with another text than the one shipped; restore"
            " the shipped revisions, or migrate a fresh database and move the data",
            revisions=edited,
            found={revision: applied[revision] for revision in edited},
            expected={revision: BY_REVISION[revision].checksum for revision in edited},
        )
    unknown = [revision for revision in applied if revision not in BY_REVISION]
    if unknown:
        raise SchemaAheadError(
            f"database has revisions {unknown!r}, newest known is {FROZEN[-1].revision!r};"
            " install the release of threadmill-sa that brought them",
            revisions=unknown,
        )


def require_complete(applied: dict[str, str] | None) -> None:
    """Refuse a history that is absent, or misses a revision of this release."""
    if not applied:
        raise SchemaMissingError(
            f"database has no Threadmill schema, expected revision {FROZEN[-1].revision!r};"
            f" run `{UPGRADE_COMMAND}`",
            revisions=[entry.revision for entry in FROZEN],
            command=UPGRADE_COMMAND,
        )
    require_known(applied)
    pending = [entry.revision for entry in FROZEN if entry.revision not in applied]
    if pending:
        raise SchemaBehindError(
            f"database misses revisions {pending!r}, newest applied is {max(applied)!r};"
            f" run `{UPGRADE_COMMAND}`",
            revisions=pending,
            command=UPGRADE_COMMAND,
        )


def is_ours(table: str | None) -> bool:
    """True for every table of ours, those of a newer release included."""
    return table is not None and table.startswith(PREFIX)


def _history(schema: str | None) -> TableClause:
    # Not the table of schema.py, which may have grown columns since the first revision.
    columns: list[ColumnClause[Any]] = [
        column(name) for name in ("revision", "description", "checksum", "applied_at")
    ]
    return table(HISTORY_TABLE, *columns, schema=schema)


def _literal(value: str) -> ColumnClause[str]:
    return literal_column("'" + value.replace("'", "''") + "'")
