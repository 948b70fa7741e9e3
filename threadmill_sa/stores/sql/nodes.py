"""The role that knows which processes are alive, on SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from threadmill_sa.clock import SystemClock
from threadmill_sa.model.job import JobId, NodeId
from threadmill_sa.model.node import HeldJob, NodeInfo, NodeView
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.dialects import SqlDialect, record_text
from threadmill_sa.stores.sql.schema import Schema
from threadmill_sa.stores.sql.statements import nodes as statements
from threadmill_sa.stores.sql.unit import Database


class SqlNodes:
    """`spi.Nodes`; the clock is the server's, or this host's on SQLite."""

    def __init__(self, database: Database, schema: Schema, dialect: SqlDialect) -> None:
        self._database = database
        self._dialect = dialect
        self._beat_node = statements.beat_node(schema, dialect)
        self._beat_jobs = statements.beat_jobs(schema, dialect)
        self._remove = statements.remove_node(schema)
        self._remove_stale = statements.remove_stale_nodes(schema)
        self._list = statements.list_nodes(schema)

    def beat(self, node: NodeInfo, held: Sequence[HeldJob]) -> frozenset[JobId]:
        clock = {"clock": SystemClock().now()}
        held = sorted(held, key=lambda each: each.job_id)  # locked in the order of a finish batch
        records = [{"id": each.job_id, "token": each.attempt_token} for each in held]

        def work(connection: Connection) -> frozenset[JobId]:
            connection.execute(self._beat_node, rows.node_values(node) | clock)
            if not held:
                return frozenset()
            beaten = connection.execute(
                self._beat_jobs,
                clock
                | {
                    "node_id": node.id,
                    "ids": self._dialect.list_value(each.job_id for each in held),
                    "rows": record_text(self._dialect, records),
                },
            )
            return frozenset({each.job_id for each in held} - {row.id for row in beaten})

        return self._database.write(work) if held else self._database.write_one(work)

    def remove(self, node_id: NodeId) -> None:
        self._database.write_one(
            lambda connection: connection.execute(self._remove, {"id": node_id})
        )

    def remove_stale(self, *, silent_since: datetime) -> int:
        parameters = {"silent_since": silent_since}
        return self._database.write_one(
            lambda connection: connection.execute(self._remove_stale, parameters).rowcount
        )

    def list(self) -> list[NodeView]:
        return self._database.read_one(
            lambda connection: list(rows.readable(rows.node_view, connection.execute(self._list)))
        )
