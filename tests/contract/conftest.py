"""The stores that the contract is bound to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.servers import postgres_keys
from tests.fixtures.valkey import fresh_space, redis_keys
from tests.store_only.redis_books import check_books
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.spi.recurring import Plan
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.memory import MemoryStore

MEMORY, SQLITE = "memory", "sqlite"


@pytest.fixture(params=[MEMORY, SQLITE, *postgres_keys(), *redis_keys()])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """A fresh store of each kind in turn."""
    recording = getattr(request.cls, "needs_records", False)
    if request.param == MEMORY:
        yield MemoryStore(record_nudges=recording)
        return
    if request.param in redis_keys():
        url = request.getfixturevalue("redis_servers")(request.param)
        with fresh_space(url) as space, space.store(record_nudges=recording) as redis_store:
            yield redis_store
            check_books(space)
        return
    from tests.fixtures.sql import engine_for
    from threadmill_sa.stores.sql.store import SqlStore

    if request.param == SQLITE:
        url = request.getfixturevalue("sqlite_url")
        with engine_for(url) as engine:
            yield SqlStore(engine, record_nudges=recording)
        return
    server = request.getfixturevalue("postgres_servers")(request.param)
    with server.fresh_database() as url, engine_for(url) as engine:
        yield SqlStore(engine, record_nudges=recording)


@pytest.fixture
def plan() -> Plan:
    return Planner(Uuid7Source())
