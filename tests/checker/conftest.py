"""A task whose nudges and runs are recorded, on each store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.fixtures.servers import Server, postgres_keys
from tests.fixtures.sql import SQLITE, engine_for
from tests.fixtures.valkey import fresh_space, redis_keys
from threadmill_sa import Every, Threadmill
from threadmill_sa.model.retry import Backoff
from threadmill_sa.spi.recurring import NudgeAction, TaskPlan, TaskReading, TickResult
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing import CoverageReport, assert_every_nudge_covered
from threadmill_sa.testing.stores import FaultingStore

MEMORY = "memory"
PUMP, OTHER = "pump", "other"


@dataclass
class Desk:
    """A recording Threadmill with two tasks, and the database of its callers."""

    engine: Engine
    faults: FaultingStore
    during: list[Callable[[], object]] = field(default_factory=list)  # done by the next runs
    runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    ran: int = 0

    def __post_init__(self) -> None:
        self.tm = Threadmill(self.faults, record_nudges=True)
        self.tm.job("relay", max_attempts=3, backoff=Backoff(initial=0))(self._relay)
        for name in (PUMP, OTHER):
            self.tm.recurring(name, "relay", Every(hours=1))
        self.tm.register()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (note TEXT)"))

    def _relay(self) -> None:
        self.ran = next(self.runs)
        if self.during:
            self.during.pop(0)()

    @contextmanager
    def transaction(self, isolation: str | None = None) -> Iterator[Session]:
        """A caller's transaction that has written a business row; committed at the end."""
        engine = self.engine
        if isolation is not None:
            engine = engine.execution_options(isolation_level=isolation)
        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            yield session

    def check(self, tasks: Sequence[str] | None = None) -> CoverageReport:
        return assert_every_nudge_covered(self.tm, tasks=tasks)

    def check_fails(self, tasks: Sequence[str] | None = None) -> str:
        """The message of the check, which has to fail."""
        with pytest.raises(AssertionError) as failure:
            self.check(tasks)
        return str(failure.value)

    def rest(self) -> CoverageReport:
        """Run what there is to run, and check."""
        self.tm.run_until_idle()
        return self.check()

    def lose_pending(self, task: str = PUMP) -> None:
        """A tick that is broken: it consumes the nudges and creates no instance."""
        [done] = self.tm.store.recurring.materialize([task], consume_only)
        assert done.result is TickResult.IDLE


def consume_only(reading: TaskReading) -> TaskPlan:
    assert reading.pending is not None
    return TaskPlan(TickResult.IDLE, nudges=NudgeAction.CONSUME)


@pytest.fixture(params=[MEMORY, SQLITE, *postgres_keys(), *redis_keys()])
def desk(
    request: pytest.FixtureRequest,
    postgres_servers: Callable[[str], Server],
    tmp_path: Path,
) -> Iterator[Desk]:
    """Each store in turn."""
    if request.param == MEMORY:
        with engine_for(f"sqlite:///{tmp_path / 'callers.db'}") as engine:
            yield Desk(engine, FaultingStore(MemoryStore(record_nudges=True)))
        return
    if request.param in redis_keys():
        redis_url = request.getfixturevalue("redis_servers")(request.param)
        with (
            engine_for(f"sqlite:///{tmp_path / 'callers.db'}") as engine,
            fresh_space(redis_url) as space,
            space.store(record_nudges=True) as store,
        ):
            yield Desk(engine, FaultingStore(store))
        return
    with ExitStack() as stack:
        if request.param == SQLITE:
            url = request.getfixturevalue("sqlite_url")
        else:
            url = stack.enter_context(postgres_servers(request.param).fresh_database())
        desk = make_sql_desk(stack.enter_context(engine_for(url)))
        stack.callback(desk.tm.close)
        yield desk


@pytest.fixture
def sql_desk(sql_engine: Engine) -> Iterator[Desk]:
    """Each store that can join a transaction."""
    desk = make_sql_desk(sql_engine)
    yield desk
    desk.tm.close()


@pytest.fixture
def pg_desk(pg_engine: Engine) -> Iterator[Desk]:
    """Stores where a transaction can stay open while others write."""
    desk = make_sql_desk(pg_engine)
    yield desk
    desk.tm.close()


def make_sql_desk(engine: Engine) -> Desk:
    return Desk(engine, FaultingStore(SqlStore(engine, record_nudges=True)))
