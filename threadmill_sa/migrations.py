"""Threadmill's revisions inside your Alembic: run them from yours, and keep autogenerate off.

`record`, `forget` and `target_schema` are for the shipped revisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.stores.sql import revisions
from threadmill_sa.stores.sql.environment import run_env
from threadmill_sa.stores.sql.frozen import BY_REVISION, FROZEN, HEAD
from threadmill_sa.stores.sql.history import (
    forget,
    is_ours,
    read_history,
    record,
    require_known,
    target_schema,
)
from threadmill_sa.stores.sql.servers import check_schema_name
from threadmill_sa.stores.sql.upgrader import own_names, run_alone

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext

__all__ = [
    "BASE",
    "HEAD",
    "downgrade",
    "forget",
    "host_revision_text",
    "include_name",
    "include_object",
    "record",
    "run_env",
    "target_schema",
    "upgrade",
]

BASE = revisions.BASE
_PRINTED = "threadmill_printed"  # in a host's offline context: the revision printed last


def upgrade(op: Any, to: str, *, since: str | None = None, schema: str | None = None) -> None:
    """Bring the host's database to our revision `to`, inside the host's own revision.

    Runs on the host's connection and in its transaction (a savepoint of it), and records our
    version table and history. Applied revisions are skipped. `since` is read under `--sql` only:
    the revision that an earlier revision of the host brought (None: none).
    Raises: InvalidValueError for an unknown revision or a schema name that cannot be used;
    SchemaAheadError, SchemaEditedError.
    """
    _require_revision(to)
    context: MigrationContext = op.get_context()
    check_schema_name(context.dialect.name, schema)
    if not context.as_sql:
        with _host_connection(context) as connection:
            run_alone(connection, lambda: _apply(connection, to, schema), schema=schema)
        return
    start = _printed(context, since, schema)
    if start is None or start < to:
        revisions.print_upgrade(
            context.dialect,
            context.output_buffer,
            since=start,
            to=to,
            schema=schema,
            transaction=False,
        )
        context.opts[_printed_key(schema)] = to


def downgrade(op: Any, to: str, *, since: str | None = None, schema: str | None = None) -> None:
    """Take our schema back to revision `to` ("base": remove it), inside the host's revision.

    Under `--sql` the database cannot say what is applied, so `since` names it.
    Raises: InvalidValueError for an unknown revision, or `--sql` without `since`.
    """
    if to != BASE:
        _require_revision(to)
    context: MigrationContext = op.get_context()
    check_schema_name(context.dialect.name, schema)
    if not context.as_sql:
        with _host_connection(context) as connection:
            run_alone(connection, lambda: _take_back(connection, to, schema), schema=schema)
        return
    start = _printed(context, since, schema)
    if start is None:
        raise InvalidValueError(
            "downgrade under --sql cannot read what is applied;"
            " pass since= with the revision that the matching upgrade brought",
            value=since,
        )
    if to == BASE or to < start:
        revisions.print_downgrade(
            context.dialect, context.output_buffer, since=start, to=to, schema=schema
        )
        context.opts[_printed_key(schema)] = None if to == BASE else to


def include_name(
    name: str | None, type_: str, parent_names: dict[str, str | None] | None = None
) -> bool:
    """False for a table of ours: for `context.configure(include_name=...)` of a host.

    A host with a rule of its own calls both. Names that begin with `threadmill_` are ours, those
    of a newer release included.
    """
    table = name if type_ == "table" else (parent_names or {}).get("table_name")
    return not is_ours(table)


def include_object(
    object_: Any,
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: FBT001 - Alembic's signature
    compare_to: Any,
) -> bool:
    """False for our tables and what belongs to them: for `include_object=...` of a host.

    Wider than `include_name`: it also keeps tables of ours that the host's MetaData holds from
    being created.
    """
    del reflected, compare_to
    table = name if type_ == "table" else getattr(getattr(object_, "table", None), "name", None)
    return not is_ours(table)


def host_revision_text(
    *,
    revision: str,
    down_revision: str | None,
    to: str = HEAD,
    since: str | None = None,
    schema: str | None = None,
) -> str:
    """The text of a host's revision file that runs ours from `since` (None: none) to `to`.

    Raises: InvalidValueError for a revision of ours that does not exist or does not come later.
    """
    _require_revision(to)
    if since is not None:
        _require_revision(since)
        if since >= to:
            raise InvalidValueError(
                f"revision {to!r} does not come after {since!r}; expected a later one",
                value=to,
            )
    brought = [
        entry
        for entry in FROZEN
        if (since is None or entry.revision > since) and entry.revision <= to
    ]
    lines = "\n".join(f"    {entry.revision}: {entry.description}" for entry in brought)
    where = "" if schema is None else f", schema={schema!r}"
    return f'''"""Threadmill schema to revision {to}.

{lines}
"""

from alembic import op

from threadmill_sa import migrations

revision = {revision!r}
down_revision = {down_revision!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(op, to={to!r}, since={since!r}{where})


def downgrade() -> None:
    migrations.downgrade(op, to={since or BASE!r}, since={to!r}{where})
'''


def _apply(connection: Connection, to: str, schema: str | None) -> None:
    applied = read_history(connection, schema) or {}
    require_known(applied)
    if to not in applied:
        revisions.run_upgrade(connection, to=to, schema=schema)


def _take_back(connection: Connection, to: str, schema: str | None) -> None:
    applied = read_history(connection, schema) or {}
    require_known(applied)
    if any(to == BASE or revision > to for revision in applied):
        revisions.run_downgrade(connection, to=to, schema=schema)


@contextmanager
def _host_connection(context: MigrationContext) -> Iterator[Connection]:
    connection = context.connection
    if connection is None:
        raise InvalidValueError("the host's migration context has no connection")
    with own_names(connection):
        yield connection


def _printed_key(schema: str | None) -> str:
    return f"{_PRINTED}.{schema or ''}"


def _printed(context: MigrationContext, since: str | None, schema: str | None) -> str | None:
    start: str | None = context.opts.get(_printed_key(schema), since)
    if start is not None:
        _require_revision(start)
    return start


def _require_revision(revision: str) -> None:
    if revision not in BY_REVISION:
        raise InvalidValueError(
            f"revision {revision!r} is not one of Threadmill's, expected"
            f" {FROZEN[0].revision!r} to {HEAD!r}; name one, so that the history stays the same",
            value=revision,
        )
