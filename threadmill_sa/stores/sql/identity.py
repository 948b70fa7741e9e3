"""Noticing that the database was restored into another cluster, whose transaction ids start anew.

A pending nudge is keyed by the id of the transaction that accepted it. Ids of the old cluster
could meet those of the new one, and the new acceptance would then wait for, or take the place of,
a row that is not its own: so the old ones are moved out of reach.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection, String, bindparam, func, select, update

from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements.nudges import shield_slots

_ONLY_ROW = 1
_log = logging.getLogger(__name__)


def shield_after_restore(connection: Connection, schema: Schema) -> int | None:
    """Make pending nudges safe when the server is not the one that accepted them.

    Returns how many were moved; None when the server is the same, does not tell which one it is,
    or has no schema yet. Runs in the connection's transaction; nothing on SQLite, which has no
    transaction ids. Two nodes at once: the second waits for the first and finds nothing to do.
    """
    if connection.dialect.name != "postgresql":
        return None
    server = _server(connection, schema)
    identity = schema.store_identity
    if server is None or server == connection.scalar(select(identity.c.system_identifier)):
        return None
    adopted = connection.execute(
        update(identity)
        .where(identity.c.id == _ONLY_ROW)
        .where(identity.c.system_identifier.is_distinct_from(bindparam("server", type_=String())))
        .values(system_identifier=bindparam("server", type_=String())),
        {"server": server},
    )
    if not adopted.rowcount:
        return None
    moved: int = connection.execute(shield_slots(schema)).rowcount
    _log.warning("the database came from another server; pending nudges secured: %d", moved)
    return moved


def _server(connection: Connection, schema: Schema) -> str | None:
    """Return the cluster's identifier, or None where it or our table may not be read."""
    quote = connection.dialect.identifier_preparer.format_table
    table = quote(schema.store_identity)
    present = connection.scalar(select(func.to_regclass(table).is_not(None)))
    # Some hosted servers keep the function from their users.
    allowed = present and connection.scalar(
        select(func.has_function_privilege("pg_catalog.pg_control_system()", "EXECUTE"))
    )
    if not allowed:
        return None
    control = func.pg_control_system().table_valued("system_identifier")
    return str(connection.scalar(select(control.c.system_identifier)))
