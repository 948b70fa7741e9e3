"""Stages on SQL: a scene is a copy of every table beside it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import Engine, create_engine, event, make_url, text

from tests.races.driver import Driver
from tests.races.gates import CallGates, LockWatcher, OpenWrites, StatementGates
from tests.races.stages import Ending, Seat, Stage, StoredJob, StoredTask, declared
from threadmill_sa import Threadmill
from threadmill_sa.sqlite import configure
from threadmill_sa.stores.sql.store import SqlStore


class Quiet(SqlStore):
    """Without a side connection for wakes: the actors are all there is."""

    wakes = None  # type: ignore[assignment]


class SqlStage(Stage):
    """Copies the tables, and puts the copies back."""

    def __init__(self, engine: Engine, driver: Driver, *, record: bool = False) -> None:
        super().__init__(Threadmill(Quiet(engine, record_nudges=record)), driver)
        self.engine = engine
        self._tables: list[str] = []

    def _find_tables(self, names: Iterable[str]) -> None:
        kept = {"threadmill_alembic_version", "threadmill_schema_history"}
        kept |= {"threadmill_store_identity"}
        found = sorted(name for name in names if name.startswith("threadmill_"))
        # Triggers of the jobs write counts, so these are put back after them.
        self._tables = sorted(set(found) - kept, key=lambda name: ("count" in name, name))
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (note TEXT)"))

    def _execute(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def _empty(self) -> None:
        self._execute(*[f"DELETE FROM {name}" for name in (*self._tables, "orders")])

    def _save(self) -> None:
        for name in self._tables:
            self._execute(
                f"DROP TABLE IF EXISTS scene_{name}",
                f"CREATE TABLE scene_{name} AS SELECT * FROM {name}",
            )

    def _restoring(self) -> list[str]:
        return [
            "DELETE FROM orders",
            *[
                f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM scene_{name}"
                for name in self._tables
            ],
        ]

    def ending(self) -> Ending:
        found = super().ending()
        with self.engine.connect() as connection:
            found.orders = connection.scalar(text("SELECT count(*) FROM orders"))
        return found


# The same in one round trip: it is read after each of some hundred thousand schedules.
_ENDING = """
SELECT (SELECT json_agg(json_build_array(
            id, state, handler, attempt_token, cron_task_name, cron_origin))
        FROM threadmill_jobs),
    (SELECT json_agg(json_build_array(
            coalesce(name, task_name), handler, enabled, anchor_at, next_run_at))
        FROM threadmill_cron_tasks FULL JOIN threadmill_cron_task_state ON task_name = name),
    (SELECT json_object_agg(state, n) FROM (SELECT state, sum(n) AS n FROM (
            SELECT state, n FROM threadmill_job_counts
            UNION ALL SELECT state, n FROM threadmill_count_deltas) AS all_of_them
        GROUP BY state HAVING sum(n) <> 0) AS summed),
    (SELECT json_object_agg(queue, n) FROM (SELECT queue, sum(n) AS n FROM (
            SELECT queue, n FROM threadmill_queue_counts
            UNION ALL SELECT queue, n FROM threadmill_count_deltas WHERE state = 'ENQUEUED'
            ) AS all_of_them
        GROUP BY queue HAVING sum(n) <> 0) AS summed),
    (SELECT count(*) FROM threadmill_cron_nudges AS n
        JOIN threadmill_cron_tasks AS t ON t.name = n.task_name AND t.epoch = n.epoch),
    (SELECT count(*) FROM orders)
"""


class PostgresStage(SqlStage):
    """Statement-level gates on connections that stay open."""

    VACUUM_EVERY = 300  # schedules; each one leaves dead rows behind

    def __init__(self, url: str, seats: int, *, record: bool = False) -> None:
        options = "-c deadlock_timeout=100ms -c jit=off"
        self.monitor = _plain(url)
        gates: list[StatementGates] = []
        super().__init__(
            create_engine(url, pool_size=1, max_overflow=0),
            Driver(seats, LockWatcher(self.monitor, gates)),
            record=record,
        )
        names = self.monitor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        self._find_tables(name for (name,) in names)
        for actor in self.driver.actors:
            engine = create_engine(
                url, pool_size=1, max_overflow=0, connect_args={"options": options}
            )
            gates.append(StatementGates(engine, actor))
            store = Quiet(engine, record_nudges=record)
            self.seats.append(Seat(declared(Threadmill(store)), gates[-1]))
            self.seats[-1].tm.list_recurring()  # opens the connection and resolves the schema
        self._resets = 0

    def _restore(self) -> None:
        self._resets += 1
        if self._resets % self.VACUUM_EVERY == 0:
            for name in self._tables:
                self.monitor.execute(f"VACUUM {name}")
        self.monitor.execute("; ".join(["BEGIN", *self._restoring(), "COMMIT"]))

    def ending(self) -> Ending:
        row = self.monitor.execute(_ENDING).fetchone()
        assert row is not None
        jobs, tasks, counts, depths, pending, orders = row
        return Ending(
            tasks=[
                StoredTask(name, handler, enabled, _instant(anchor), _instant(fire))
                for name, handler, enabled, anchor, fire in tasks or ()
            ],
            jobs=[StoredJob(UUID(each[0]), *each[1:]) for each in jobs or ()],
            counts=counts or {},
            depths=depths or {},
            pending=pending,
            orders=orders,
        )

    def close(self) -> None:
        self.monitor.close()
        self.engine.dispose()
        for seat in self.seats:
            seat.engine.dispose()


def _instant(words: str | None) -> datetime | None:
    return None if words is None else datetime.fromisoformat(words)


def _plain(url: str) -> psycopg.Connection[Any]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True, options="-c session_replication_role=replica")


class SqliteStage(SqlStage):
    """Gates are calls of the store, and the statements of callers' own transactions."""

    one_writer = True

    def __init__(self, url: str, seats: int) -> None:
        engine = _sqlite(url)
        gates: list[StatementGates] = []
        super().__init__(engine, Driver(seats, OpenWrites(gates), patience=0.05))
        with engine.connect() as connection:
            names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))
            found = list(names.scalars())
        self._find_tables(found)
        for actor in self.driver.actors:
            # Calls of the store are one gate each, so its statements are none.
            gates.append(StatementGates(_sqlite(url), actor))
            store = CallGates(Quiet(_sqlite(url), also=[gates[-1].engine]), actor)
            self.seats.append(Seat(declared(Threadmill(store)), gates[-1]))

    def _restore(self) -> None:
        self._execute(*[each for part in self._restoring() for each in part.split("; ")])

    def close(self) -> None:
        self.engine.dispose()
        for seat in self.seats:
            seat.engine.dispose()
            seat.tm.store._engine.dispose()  # type: ignore[attr-defined]


def _sqlite(url: str) -> Engine:
    engine = create_engine(url)
    configure(engine)

    @event.listens_for(engine, "connect")
    def _fast(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    return engine
