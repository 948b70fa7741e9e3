"""Whether everything that our statements rest on is still there: tables, keys, counting triggers.

The history tells which revisions ran, and not what a hand has dropped since. Without its key an
ON CONFLICT of ours fails, and a joined nudge would do so inside the caller's transaction. One look
at the catalog, where a program starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import (
    Connection,
    Dialect,
    Integer,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import AddConstraint, CreateIndex, CreateTable, ExecutableDDLElement

from threadmill_sa.errors import SchemaEditedError
from threadmill_sa.stores.sql.schema import PREFIX, Schema

Key = PrimaryKeyConstraint | UniqueConstraint
# MetaData knows no triggers.
COUNTING = tuple(f"{PREFIX}jobs_count_{event}" for event in ("insert", "update", "delete"))
PRINT_COMMAND = "threadmill-sa db sql --clean"
_log = logging.getLogger(__name__)

# `columns` are those of a key, as an ON CONFLICT can name it: unique at once, for all rows, by
# columns alone. An object that does not work is there and serves nobody.
_LOOK = {
    "postgresql": """
WITH ours AS (
  SELECT oid, relname FROM pg_catalog.pg_class
   WHERE relkind IN ('r', 'p')
     AND relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class
                          WHERE oid = pg_catalog.to_regclass(:history))
)
SELECT 'table' AS kind, relname AS owner, relname AS name, NULL AS columns, true AS works FROM ours
UNION ALL
SELECT 'index', ours.relname, class.relname,
       CASE WHEN indisunique AND indimmediate AND indpred IS NULL AND indexprs IS NULL THEN
       (SELECT string_agg(attname::text, ',') FROM pg_catalog.pg_attribute
         WHERE attrelid = ours.oid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])) END,
       indisvalid
  FROM ours
  JOIN pg_catalog.pg_index ON indrelid = ours.oid
  JOIN pg_catalog.pg_class AS class ON class.oid = indexrelid
UNION ALL
SELECT 'trigger', ours.relname, tgname, NULL, tgenabled IN ('O', 'A')
  FROM ours JOIN pg_catalog.pg_trigger ON tgrelid = ours.oid""",
    "sqlite": """
WITH ours AS (SELECT name FROM main.sqlite_master WHERE type = 'table')
SELECT 'table' AS kind, name AS owner, name, NULL AS columns, true AS works FROM ours
UNION ALL
SELECT 'index', name, 'primary key',
       (SELECT group_concat(name) FROM pragma_table_info(ours.name, 'main') WHERE pk > 0), true
  FROM ours
UNION ALL
SELECT 'index', ours.name, list.name,
       CASE WHEN "unique" AND NOT partial THEN
       (SELECT group_concat(name) FROM pragma_index_info(list.name, 'main')) END, true
  FROM ours JOIN pragma_index_list(ours.name, 'main') AS list
UNION ALL
SELECT 'trigger', tbl_name, name, NULL, true FROM main.sqlite_master WHERE type = 'trigger'""",
}


@dataclass(frozen=True, slots=True)
class _Lost:
    """An object that is missing or serves nobody, and the statement that would put it right."""

    name: str
    statement: str | None = None


def require_intact(connection: Connection, name: str | None) -> None:
    """Refuse a schema that misses a table, key or counting trigger; warn of a missing index.

    Only for a history that is complete. `name` is the schema's.
    Raises: SchemaEditedError with `missing`, and the `statements` that would put it right.
    """
    schema = Schema(name)  # of our own: making a statement changes the object it is made of
    found = _Catalog(connection, schema)
    lost = [*_lost_tables(found, schema), *_lost_triggers(found, schema)]
    for table in schema.metadata.sorted_tables:
        if found.has("table", table.name):
            lost += _lost_keys(found, table)
            _warn_of_lost_indexes(found, table)
    if lost:
        names = [each.name for each in lost]
        statements = [each.statement for each in lost if each.statement]
        run = f"run `{'; '.join(statements)}`;" if statements else "put it back:"
        raise SchemaEditedError(
            f"the database has lost {names!r}, though its history is complete; {run}"
            f" `{PRINT_COMMAND}` prints what a fresh database has",
            missing=names,
            statements=statements,
        )


class _Catalog:
    """What the schema of our history holds."""

    def __init__(self, connection: Connection, schema: Schema) -> None:
        self.dialect: Dialect = connection.dialect
        history = self.dialect.identifier_preparer.format_table(schema.schema_history)
        rows = connection.execute(text(_LOOK[self.dialect.name]), {"history": history}).all()
        self._works = {(row.kind, row.name): bool(row.works) for row in rows}
        self._keys = {
            (row.owner, frozenset(row.columns.split(",")))
            for row in rows
            if row.columns and row.works
        }

    def has(self, kind: str, name: str) -> bool:
        """Return True when the object is there and works."""
        return self._works.get((kind, name), False)

    def is_broken(self, kind: str, name: str) -> bool:
        """Return True when the object is there and does not work."""
        return not self._works.get((kind, name), True)

    def has_key(self, key: Key) -> bool:
        """Return True when some index that works serves as `key`, under whatever name."""
        return (key.table.name, frozenset(key.columns.keys())) in self._keys

    def spelled(self, statement: ExecutableDDLElement) -> str:
        """Return the statement on one line."""
        return " ".join(str(statement.compile(dialect=self.dialect)).split())

    def rebuilding(self, table: Table, index: str) -> str:
        """Return the statement that makes an index valid."""
        quote = self.dialect.identifier_preparer.quote
        home = "" if table.schema is None else quote(table.schema) + "."
        return f"REINDEX INDEX CONCURRENTLY {home}{index}"


def _lost_tables(found: _Catalog, schema: Schema) -> Iterator[_Lost]:
    for table in schema.metadata.sorted_tables:
        if not found.has("table", table.name):
            yield _Lost(table.name, found.spelled(CreateTable(table)))


def _lost_triggers(found: _Catalog, schema: Schema) -> Iterator[_Lost]:
    jobs = found.dialect.identifier_preparer.format_table(schema.jobs)
    for name in COUNTING:
        if found.is_broken("trigger", name):
            yield _Lost(name, f"ALTER TABLE {jobs} ENABLE TRIGGER {name}")
        elif not found.has("trigger", name):
            yield _Lost(name)


def _lost_keys(found: _Catalog, table: Table) -> Iterator[_Lost]:
    for key in _keys_of(table, found.dialect):
        name = str(key.name)
        if found.has_key(key):
            continue
        if found.is_broken("index", name):
            yield _Lost(name, found.rebuilding(table, name))
        elif found.dialect.name == "postgresql":
            yield _Lost(name, found.spelled(AddConstraint(key)))
        elif key is table.primary_key and isinstance(key.columns[0].type, Integer):
            yield _Lost(name)  # SQLite numbers rows by a key that only a new table can have
        else:
            columns = ", ".join(key.columns.keys())
            yield _Lost(name, f"CREATE UNIQUE INDEX {name} ON {table.name} ({columns})")


def _keys_of(table: Table, dialect: Dialect) -> list[Key]:
    """Return the keys that `table` has on this dialect."""
    keys = [
        each
        for each in table.constraints
        if isinstance(each, Key)
        and ((only := each._ddl_if) is None or only.dialect == dialect.name)  # noqa: SLF001
    ]
    return sorted(keys, key=lambda each: str(each.name))


def _warn_of_lost_indexes(found: _Catalog, table: Table) -> None:
    for index in sorted(table.indexes, key=lambda each: str(each.name)):
        name = str(index.name)
        if found.has("index", name):
            continue
        broken = found.is_broken("index", name)
        _log.warning(
            "index %s is %s, so the whole of %s is read instead; run `%s`",
            name,
            "not valid" if broken else "missing",
            table.name,
            found.rebuilding(table, name) if broken else found.spelled(CreateIndex(index)),
        )
