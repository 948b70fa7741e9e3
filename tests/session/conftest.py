"""An order desk: a business table, a recurring task and the boundary under test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Engine, Integer, MetaData, String, Table, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.fixtures.servers import Server, postgres_keys
from tests.fixtures.sql import engine_for
from threadmill_sa.engine.recurring.coalescer import NudgeCoalescer
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.nudge import NudgeOutcome
from threadmill_sa.model.recurring import CronTask
from threadmill_sa.model.trigger import Every, timing_fingerprint, trigger_text
from threadmill_sa.session import SessionBoundary, hooks
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.sql.store import SqlStore

PUMP, OTHER, PAUSED = "outbox-pump", "audit-pump", "paused-pump"


class Base(DeclarativeBase):
    metadata = MetaData()


class Order(Base):
    __tablename__ = "desk_orders"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    note: Mapped[str] = mapped_column(String(50), default="")


ORDERS: Table = Base.metadata.tables["desk_orders"]


@dataclass
class Desk:
    """A business database and a store, which may be in the same database."""

    engine: Engine
    store: JobStore
    written: list[str] = field(default_factory=list)  # immediate writes, in order
    wakes: int = 0
    fail: Callable[[str], None] = lambda _name: None

    def __post_init__(self) -> None:
        self.boundary = SessionBoundary(
            self.store,
            immediate_nudge=NudgeCoalescer(self._write).request,
            immediate_insert=self._insert,
            on_local_wake=self._wake,
        )
        self.nudge = self.boundary.nudge

    def _write(self, name: str) -> NudgeOutcome:
        self.fail(name)
        self.written.append(name)
        return self.store.recurring.request_cron_nudge(name)

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        self.fail("insert")
        self.store.jobs.insert(jobs)

    def _wake(self) -> None:
        self.wakes += 1

    def pending(self, name: str = PUMP) -> int:
        """The number of acceptances that wait for a run."""
        view = self.store.recurring.get(name)
        assert view is not None
        return len(view.nudge_revisions)

    def orders(self) -> int:
        with Session(self.engine) as session:
            return session.scalar(select(func.count()).select_from(Order)) or 0


def register(store: JobStore, name: str, *, enabled: bool = True) -> None:
    trigger = Every(hours=1)
    kind, value, zone = trigger_text(trigger)
    store.recurring.register(
        CronTask(
            name=name,
            trigger_kind=kind,
            trigger_value=value,
            zone=zone,
            handler="pump",
            timing_fingerprint=timing_fingerprint(trigger),
            enabled=enabled,
        )
    )


def open_desk(engine: Engine, store: JobStore) -> Desk:
    Base.metadata.create_all(engine)
    register(store, PUMP)
    register(store, OTHER)
    register(store, PAUSED, enabled=False)
    return Desk(engine, store)


@pytest.fixture
def counted() -> Iterator[Callable[[str], int]]:
    """How far a counter of the hooks has moved since the test began."""
    before = dict(vars(hooks.counters))

    def moved(name: str) -> int:
        return int(getattr(hooks.counters, name)) - int(before[name])

    yield moved
    assert moved("faults") == 0


@pytest.fixture
def memory_desk(sqlite_engine: Engine) -> Desk:
    """Business rows in SQLite, jobs in memory: a store that cannot join."""
    return open_desk(sqlite_engine, MemoryStore())


@pytest.fixture
def sqlite_desk(sqlite_engine: Engine) -> Iterator[Desk]:
    store = SqlStore(sqlite_engine)
    yield open_desk(sqlite_engine, store)
    store.close()


@pytest.fixture
def pg_desk(pg_engine: Engine) -> Iterator[Desk]:
    store = SqlStore(pg_engine)
    yield open_desk(pg_engine, store)
    store.close()


@pytest.fixture
def two_phase_desk(pg_desk: Desk) -> Desk:
    """Only where the server keeps prepared transactions; PostgreSQL's own default keeps none."""
    with pg_desk.engine.connect() as connection:
        kept = connection.scalar(text("SHOW max_prepared_transactions"))
    if kept == "0":
        pytest.skip("this server keeps no prepared transactions")
    return pg_desk


@pytest.fixture
def sql_desk(sql_engine: Engine) -> Iterator[Desk]:
    """Business rows and jobs in one database: each kind in turn."""
    store = SqlStore(sql_engine)
    yield open_desk(sql_engine, store)
    store.close()


@pytest.fixture(params=["memory", "sqlite", *postgres_keys()])
def desk(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Desk]:
    """Each kind of store in turn."""
    if request.param in {"memory", "sqlite"}:
        yield request.getfixturevalue(f"{request.param}_desk")
        return
    with postgres_servers(request.param).fresh_database() as url, engine_for(url) as engine:
        store = SqlStore(engine)
        yield open_desk(engine, store)
        store.close()


@pytest.fixture
def in_thread() -> Callable[[Callable[[], object]], None]:
    """Runs something in another thread to its end, within ten seconds."""

    def run(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(timeout=10.0)
        assert not thread.is_alive()

    return run
