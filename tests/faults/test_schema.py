"""A fault at the boundaries of a schema operation: the old schema or the new, and none between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from tests.engine.bench import eventually
from tests.faults import ledger
from tests.faults.conftest import sql_keys
from tests.faults.striking import RAISE, Fault, FaultyEngine
from tests.faults.test_statements import OURS, caught, of
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.servers import Server
from tests.fixtures.sql import SQLITE
from tests.migration.support import insert_jobs, read_catalog, upgrade_to
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.stores.sql.migrate import SchemaManager

BOUNDARIES_MAX = 1000
SAMPLES = 15  # boundaries of each operation and fault in the long run; one in the default run
OLD = "0005"


@dataclass
class Database:
    """A database with nothing in it, for one strike."""

    observer: Engine
    faulty: FaultyEngine

    def manager(self) -> SchemaManager:
        return SchemaManager(self.faulty.engine)

    def catalog(self) -> dict[str, str]:
        found = read_catalog(self.observer)
        return {name: what for name, what in found.items() if name != "function injected"}

    def jobs(self) -> int:
        with self.observer.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM threadmill_jobs")) or 0)

    def check_idle(self) -> None:
        pool: Any = self.faulty.engine.pool
        assert pool.checkedout() == 0, "a connection was not given back"
        if self.observer.dialect.name == "postgresql":
            eventually(lambda: not self._locks(), "the end of every lock of the upgrade")

    def _locks(self) -> int:
        advisory = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with self.observer.connect() as connection:
            return int(connection.scalar(text(advisory)) or 0)


Empty = Callable[[], AbstractContextManager[Database]]


class Migrate:
    """From nothing to head."""

    jobs = 0

    def arrange(self, database: Database) -> None:
        """An empty database it is."""

    def act(self, manager: SchemaManager) -> None:
        manager.migrate()


class Upgrade(Migrate):
    """From an older release that was in use."""

    jobs = 3

    def arrange(self, database: Database) -> None:
        upgrade_to(database.observer, OLD)
        insert_jobs(database.observer, *[("ENQUEUED", "mail")] * self.jobs)


class DropAndMigrate(Migrate):
    def arrange(self, database: Database) -> None:
        SchemaManager(database.observer).migrate()
        insert_jobs(database.observer, ("ENQUEUED", "mail"))

    def act(self, manager: SchemaManager) -> None:
        manager.drop_and_migrate(allow_destructive_reset=True)


@pytest.fixture(params=sql_keys())
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty(store: str, postgres_servers: Callable[[str], Server], tmp_path: Path) -> Empty:
    numbers = itertools.count()

    @contextmanager
    def sqlite() -> Iterator[Database]:
        url = f"sqlite:///{tmp_path / f'schema-{next(numbers)}.db'}"
        engine, observer = create_engine(url), create_engine(url, poolclass=NullPool)
        yield Database(observer, FaultyEngine(engine))
        engine.dispose()

    @contextmanager
    def postgres() -> Iterator[Database]:
        server = postgres_servers(store)
        with server.fresh_database(template="template0") as url, TcpProxy.before(url) as proxy:
            observer = create_engine(url, poolclass=NullPool)
            with observer.begin() as connection:
                connection.execute(text(RAISE))
            engine = create_engine(proxy.url(url), pool_size=1, max_overflow=0)
            yield Database(observer, FaultyEngine(engine, url, proxy))
            engine.dispose()

    return sqlite if store == SQLITE else postgres


@pytest.mark.parametrize("operation", [Migrate, Upgrade, DropAndMigrate])
def test_a_schema_operation_that_fails_at_a_boundary_has_done_all_or_nothing(
    store: str, empty: Empty, operation: type[Migrate]
):
    faults = _faults(store)
    boundaries, complete = _measured(empty, operation())
    for number, fault in enumerate(faults):
        at = boundaries * number // len(faults)
        if fault is Fault.LOST and store == SQLITE:
            at = 0  # of its commits
        struck = _strike_once(empty, operation(), complete, fault, at=at)
        assert struck
        ledger.note(store, operation.__name__, fault)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", [Migrate, Upgrade, DropAndMigrate])
@pytest.mark.parametrize("fault", list(Fault))
def test_a_schema_operation_that_fails_at_many_boundaries_has_done_all_or_nothing(
    store: str, empty: Empty, operation: type[Migrate], fault: Fault
):
    """Each fault at boundaries of its own, from the first to the last."""
    faults = _faults(store)
    if fault not in faults:
        pytest.skip(f"{store} has no such fault")
    boundaries, complete = _measured(empty, operation())
    step = max(1, boundaries // SAMPLES)
    for at in range(faults.index(fault) % step, BOUNDARIES_MAX, step):
        if not _strike_once(empty, operation(), complete, fault, at=at):
            return
        ledger.note(store, operation.__name__, fault)
    raise AssertionError(f"more than {BOUNDARIES_MAX} boundaries")


def _faults(store: str) -> list[Fault]:
    # An upgrade waits for another writer, for minutes where it must.
    return [*(fault for fault in of(store) if fault is not Fault.LOCKED), Fault.LOST]


def _measured(empty: Empty, operation: Migrate) -> tuple[int, dict[str, str]]:
    """How many boundaries the operation has where nothing strikes, and what it leads to."""
    with empty() as database:
        operation.arrange(database)
        database.faulty.strike(BOUNDARIES_MAX, Fault.BEFORE)
        operation.act(database.manager())
        boundaries = database.faulty.seen
        database.faulty.mend()
        return boundaries, database.catalog()


def _strike_once(
    empty: Empty, operation: Migrate, complete: dict[str, str], fault: Fault, *, at: int
) -> bool:
    """Let the fault strike at one boundary, and go on; False when it did not."""
    with empty() as database:
        operation.arrange(database)
        before = database.catalog()
        manager = database.manager()
        database.faulty.strike(at, fault)
        error = caught(lambda: operation.act(manager))
        struck = database.faulty.struck
        database.faulty.mend()
        database.check_idle()

        assert database.catalog() in (before, complete), f"half of it after {fault} at {at}"
        if error is not None:
            expected = OURS.get(fault, StoreUnavailableError)
            assert isinstance(error, expected), f"{fault} came out as {error!r}"
            operation.act(manager)
            database.check_idle()
        assert database.catalog() == complete
        manager.validate()
        assert manager.emit_pending_sql() == ""
        assert database.jobs() == operation.jobs
    return struck
