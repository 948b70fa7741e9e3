"""Finds the shipped revisions and runs or prints them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Dialect, MetaData, String, Table, text
from sqlalchemy.schema import CreateSchema, DropTable

from threadmill_sa.errors import SchemaError
from threadmill_sa.stores.sql.history import SCHEMA_OPTION, VERSION_TABLE
from threadmill_sa.stores.sql.upgrader import LOCK_KEY, LOCK_TIMEOUT

BASE = "base"
Steps = Callable[[Any], Iterable[Any]]  # from the current heads to the revisions to run
# Alembic's `op` is one per process, so two threads migrate one after the other.
_one_run = threading.RLock()


def scripts_path() -> Path:
    """The directory of env.py and the revisions: inside the package, else beside it.

    Nowhere else: an editable install leaves a copy in site-packages that goes stale, and the
    folder beside an installed package is Alembic itself.
    """
    package = Path(__file__).resolve().parents[2]
    for path in (package / "_alembic", package.parent / "alembic"):
        if (path / "env.py").is_file() and (path / "versions").is_dir():
            return path
    raise SchemaError(
        f"revisions not found in {str(package / '_alembic')!r} nor in"
        f" {str(package.parent / 'alembic')!r}; install threadmill-sa again"
    )


def scripts() -> ScriptDirectory:
    """The shipped revisions as Alembic reads them."""
    return ScriptDirectory(str(scripts_path()))


def options(schema: str | None) -> dict[str, Any]:
    """Options of every migration context of ours."""
    return {
        "version_table": VERSION_TABLE,
        "version_table_schema": schema,
        # Alembic does not expect it of SQLite, where a failing revision left half its tables.
        "transactional_ddl": True,
        SCHEMA_OPTION: schema,
    }


def run_upgrade(connection: Connection, *, to: str, schema: str | None) -> None:
    """Apply what is missing up to `to` in the connection's transaction."""
    directory = scripts()
    ensure_schema(connection, schema)
    steps = partial(directory._upgrade_revs, to)  # noqa: SLF001
    context = _online(connection, schema, directory, steps)
    with _operations(context):
        context.run_migrations()


def run_downgrade(connection: Connection, *, to: str, schema: str | None) -> None:
    """Take back what is newer than `to` in the connection's transaction."""
    directory = scripts()
    steps = partial(directory._downgrade_revs, to)  # noqa: SLF001
    context = _online(connection, schema, directory, steps)
    with _operations(context):
        context.run_migrations()
        drop_empty_version_table(context, schema)


def print_upgrade(
    dialect: Dialect,
    out: TextIO,
    *,
    since: str | None,
    to: str,
    schema: str | None,
    transaction: bool,
) -> None:
    """Write the SQL from `since` (None: nothing applied) to `to`; touches no database."""
    directory = scripts()
    steps = partial(directory._upgrade_revs, to)  # noqa: SLF001
    context = _offline(dialect, out, since=since, schema=schema, directory=directory, steps=steps)
    with _operations(context), context.begin_transaction() if transaction else nullcontext():
        if transaction:
            print_preamble(context, schema, clean=since is None)
        elif since is None:
            print_schema(context, schema)
        context.run_migrations()


def print_downgrade(
    dialect: Dialect, out: TextIO, *, since: str, to: str, schema: str | None
) -> None:
    """Write the SQL that takes `since` back to `to`; touches no database."""
    directory = scripts()
    steps = partial(directory._downgrade_revs, to)  # noqa: SLF001
    context = _offline(dialect, out, since=since, schema=schema, directory=directory, steps=steps)
    with _operations(context):
        context.run_migrations()
        if to == BASE:
            print_version_table_drop(context, schema)


def upgrade_sql(dialect: Dialect, *, since: str | None, to: str, schema: str | None) -> str:
    """The SQL from `since` to `to` in one transaction, as text."""
    out = io.StringIO()
    print_upgrade(dialect, out, since=since, to=to, schema=schema, transaction=True)
    return out.getvalue()


def print_preamble(context: MigrationContext, schema: str | None, *, clean: bool) -> None:
    """Write what a printed upgrade on PostgreSQL begins with; `clean`: from nothing."""
    if context.dialect.name != "postgresql":
        return
    literal = "NULL" if schema is None else "'" + schema.replace("'", "''") + "'"
    context.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    context.execute(f"SELECT pg_catalog.pg_advisory_xact_lock({LOCK_KEY.format(schema=literal)})")
    if clean:
        print_schema(context, schema)


def print_schema(context: MigrationContext, schema: str | None) -> None:
    """Write the creation of a named schema."""
    if schema is not None and context.dialect.name == "postgresql":
        context.execute(CreateSchema(schema, if_not_exists=True))


def print_version_table_drop(context: MigrationContext, schema: str | None) -> None:
    """Write the end of a printed downgrade to nothing."""
    context.execute(DropTable(version_table(schema), if_exists=True))


def ensure_schema(connection: Connection, schema: str | None) -> None:
    """Create a named schema that is missing; an existing one needs no right to create."""
    if schema is None or connection.dialect.name != "postgresql":
        return
    query = text("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = :schema")
    if connection.scalar(query, {"schema": schema}) is None:
        connection.execute(CreateSchema(schema))


def drop_empty_version_table(context: MigrationContext, schema: str | None) -> None:
    """Drop our version table when no revision is left in it."""
    if not context.get_current_heads():
        context.execute(DropTable(version_table(schema), if_exists=True))


def version_table(schema: str | None) -> Table:
    """Alembic's version table under our name."""
    return Table(VERSION_TABLE, MetaData(), Column("version_num", String(32)), schema=schema)


def _online(
    connection: Connection,
    schema: str | None,
    directory: ScriptDirectory,
    steps: Steps,
) -> MigrationContext:
    return MigrationContext.configure(
        connection=connection,
        opts={
            **options(schema),
            "script": directory,
            "fn": lambda heads, _context: steps(heads),
        },
    )


def _offline(
    dialect: Dialect,
    out: TextIO,
    *,
    since: str | None,
    schema: str | None,
    directory: ScriptDirectory,
    steps: Steps,
) -> MigrationContext:
    return MigrationContext.configure(
        dialect=dialect,
        opts={
            **options(schema),
            "script": directory,
            "as_sql": True,
            "literal_binds": True,
            "output_buffer": out,
            "starting_rev": since,
            "fn": lambda heads, _context: steps(heads),
        },
    )


@contextmanager
def _operations(context: MigrationContext) -> Iterator[None]:
    """`alembic.op` works on our context for the block, and on the host's again after it."""
    with _one_run:
        host = getattr(op, "_proxy", None)
        ours = Operations(context)
        ours._install_proxy()  # noqa: SLF001
        try:
            yield
        finally:
            if host is not None:
                host._install_proxy()  # noqa: SLF001
            else:
                ours._remove_proxy()  # noqa: SLF001
