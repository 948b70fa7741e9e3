"""What `alembic/env.py` does when the alembic command runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from alembic.util import CommandError
from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.pool import NullPool

from threadmill_sa.errors import ThreadmillError
from threadmill_sa.stores.sql import revisions
from threadmill_sa.stores.sql.history import VERSION_TABLE, is_ours
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.servers import check_connection, check_schema_name, engine_url
from threadmill_sa.stores.sql.upgrader import own_names, run_alone

NOTHING = (None, (), revisions.BASE)  # how Alembic names the state before the first revision


def run_env(context: Any) -> None:
    """Everything `alembic/env.py` does, online and under `--sql`.

    The connection or engine comes from `config.attributes["connection"]`, else the URL from
    `-x url=`, else `THREADMILL_URL`, else `sqlalchemy.url`; the schema from
    `config.attributes["schema"]`, else `-x schema=`.
    """
    arguments = context.get_x_argument(as_dictionary=True)
    schema = context.config.attributes.get("schema", arguments.get("schema"))
    try:
        if context.is_offline_mode():
            _run_offline(context, _url(context, arguments), schema)
        else:
            _run_online(context, arguments, schema)
    except ThreadmillError as error:
        raise CommandError(str(error)) from error


def _run_online(context: Any, arguments: dict[str, str], schema: str | None) -> None:
    given = context.config.attributes.get("connection")
    if isinstance(given, Connection):
        _run_on(context, given, schema)
        return
    engine = given or create_engine(_url(context, arguments), poolclass=NullPool)
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="READ COMMITTED")
        check_connection(connection)
        connection.rollback()  # what follows begins a transaction of its own
        _run_on(context, connection, schema)


def _run_on(context: Any, connection: Connection, schema: str | None) -> None:
    def work() -> None:
        revisions.ensure_schema(connection, schema)
        context.configure(
            connection=connection,
            target_metadata=Schema(schema).metadata,
            include_name=_only_ours(schema),
            include_schemas=schema is not None,
            **revisions.options(schema),
        )
        context.run_migrations()
        revisions.drop_empty_version_table(context.get_context(), schema)

    check_schema_name(connection.dialect.name, schema)
    with own_names(connection):
        run_alone(connection, work, schema=schema)


def _run_offline(context: Any, url: URL, schema: str | None) -> None:
    context.configure(
        url=url,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
        **revisions.options(schema),
    )
    with context.begin_transaction():
        clean = context.get_starting_revision_argument() in NOTHING
        revisions.print_preamble(context.get_context(), schema, clean=clean)
        context.run_migrations()
        if context.get_revision_argument() in NOTHING:
            revisions.print_version_table_drop(context.get_context(), schema)


def _url(context: Any, arguments: dict[str, str]) -> URL:
    url = (
        arguments.get("url")
        or os.environ.get("THREADMILL_URL")
        or context.config.get_main_option("sqlalchemy.url")
    )
    if not url:
        raise CommandError("no database named; give -x url=..., or set THREADMILL_URL")
    return engine_url(url)


def _only_ours(schema: str | None) -> Callable[[str | None, str, Any], bool]:
    """The opposite of `include_name`, for our own autogenerate."""

    def include(name: str | None, type_: str, parent_names: dict[str, str | None]) -> bool:
        if type_ == "schema":
            return name == schema
        table = name if type_ == "table" else parent_names.get("table_name")
        return is_ours(table) and table != VERSION_TABLE

    return include
