"""What the migration tests share: a database's catalog as text, rows to migrate, SQL scripts."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.upgrader import run_alone

Catalog = dict[str, str]

_POSTGRESQL = {
    "column": """
        SELECT table_name || '.' || column_name,
               concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'null=' || is_nullable,
                         'default=' || column_default, 'identity=' || identity_generation)
          FROM information_schema.columns c
          JOIN pg_attribute a ON a.attname = c.column_name
           AND a.attrelid = format('%I.%I', table_schema, table_name)::regclass
         WHERE table_schema = :schema""",
    "index": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = :schema",
    "constraint": """
        SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
          FROM pg_constraint
         WHERE connamespace = to_regnamespace(quote_ident(:schema)) AND contype <> 'n'""",
    "trigger": """
        SELECT tgname, pg_get_triggerdef(t.oid)
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) AND NOT tgisinternal""",
    "function": """
        SELECT proname, pg_get_functiondef(oid)
          FROM pg_proc WHERE pronamespace = to_regnamespace(quote_ident(:schema))""",
    "sequence": """
        SELECT sequencename, concat_ws(' ', data_type, start_value, increment_by, cycle)
          FROM pg_sequences WHERE schemaname = :schema""",
}
_SQLITE = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"


def catalog_of(connection: Connection, schema: str | None = None) -> Catalog:
    """Everything in the schema, as `kind name` -> definition without the schema's name."""
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(_SQLITE).all()
        return {f"{row.type} {row.name}": _squeezed(row.sql or "") for row in rows}
    home = schema or "public"
    found = {
        f"{kind} {_unqualified(name, home)}": _unqualified(_squeezed(definition), home)
        for kind, query in _POSTGRESQL.items()
        for name, definition in connection.execute(text(query), {"schema": home})
    }
    connection.rollback()
    return found


def read_catalog(engine: Engine, schema: str | None = None) -> Catalog:
    with engine.connect() as connection:
        return catalog_of(connection, schema)


def names_of(catalog: Catalog, kind: str) -> set[str]:
    return {key.split(" ", 1)[1] for key in catalog if key.startswith(f"{kind} ")}


def run_script(url: str, script: str) -> None:
    """Run a printed script as an operator would, with the database's own tool semantics."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        connection = sqlite3.connect(str(parsed.database))
        try:
            connection.executescript(script)
        finally:
            connection.close()
        return
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as session:
        session.execute(script.encode())


def upgrade_to(engine: Engine, revision: str, schema: str | None = None) -> None:
    """Bring the database to one revision, as `alembic upgrade` does."""
    from threadmill_sa.stores.sql.revisions import run_upgrade

    with engine.connect() as connection:
        run_alone(
            connection,
            lambda: run_upgrade(connection, to=revision, schema=schema),
            schema=schema,
        )


def downgrade_to(engine: Engine, revision: str, schema: str | None = None) -> None:
    from threadmill_sa.stores.sql.revisions import run_downgrade

    with engine.connect() as connection:
        run_alone(
            connection,
            lambda: run_downgrade(connection, to=revision, schema=schema),
            schema=schema,
        )


def job_row(state: str, queue: str) -> dict[str, object]:
    now = datetime.now(UTC)
    return {
        "id": uuid4(),
        "state": state,
        "queue": queue,
        "priority": 0,
        "handler": "h",
        "created_at": now,
        "state_at": now,
        "attempt": 0,
        "max_attempts": 1,
        "attempt_token": 0,
    }


def insert_jobs(engine: Engine, *jobs: tuple[str, str], schema: str | None = None) -> list[UUID]:
    """Insert jobs of (state, queue) and return their ids."""
    rows = [job_row(state, queue) for state, queue in jobs]
    with engine.begin() as connection:
        connection.execute(Schema(schema).jobs.insert(), rows)
    return [row["id"] for row in rows]  # type: ignore[misc]


def counts_of(
    connection: Connection, schema: str | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """Counts by state and depths by queue, zeros left out, as readers see them."""
    home = "" if schema is None else f'"{schema}".'
    states = connection.execute(
        text(
            f"SELECT state, sum(n) FROM (SELECT state, n FROM {home}threadmill_job_counts"
            f" UNION ALL SELECT state, n FROM {home}threadmill_count_deltas) AS c GROUP BY state"
        )
    )
    queues = connection.execute(
        text(
            f"SELECT queue, sum(n) FROM (SELECT queue, n FROM {home}threadmill_queue_counts"
            f" UNION ALL SELECT queue, n FROM {home}threadmill_count_deltas"
            "  WHERE state = 'ENQUEUED') AS c GROUP BY queue"
        )
    )
    return (
        {state: int(n) for state, n in states if n},
        {queue: int(n) for queue, n in queues if n},
    )


def true_counts(
    connection: Connection, schema: str | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """The same from the jobs themselves."""
    home = "" if schema is None else f'"{schema}".'
    states = connection.execute(
        text(f"SELECT state, count(*) FROM {home}threadmill_jobs GROUP BY state")
    )
    queues = connection.execute(
        text(
            f"SELECT queue, count(*) FROM {home}threadmill_jobs"
            " WHERE state = 'ENQUEUED' GROUP BY queue"
        )
    )
    return {row[0]: row[1] for row in states}, {row[0]: row[1] for row in queues}


def wait_until(condition: Callable[[], bool], *, named: str, seconds: float = 20.0) -> None:
    """Return once `condition` holds; fail with its name after `seconds`."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(f"timeout after {seconds} s: {named}")


def plain_engine(url: str) -> Engine:
    return create_engine(url, poolclass=NullPool)


def _squeezed(definition: str) -> str:
    return re.sub(r"\s+", " ", definition)


def _unqualified(definition: str, schema: str) -> str:
    return definition.replace(f'"{schema}".', "").replace(f"{schema}.", "")
