"""One Threadmill for each store that keeps leases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.servers import EMBEDDED
from tests.fixtures.sql import engine_for
from threadmill_sa import Threadmill, Timings
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.testing.stores import FaultingStore

MEMORY, SQLITE = "memory", "sqlite"

FAST = Timings(ttl=1.5)  # in memory
STEADY = Timings(ttl=3.0)  # where a call may take a while on a busy machine


@pytest.fixture
def faulty() -> FaultingStore:
    return FaultingStore(MemoryStore())


@pytest.fixture
def tm(faulty: FaultingStore) -> Iterator[Threadmill]:
    """In memory, with a store that fails on demand."""
    threadmill = Threadmill(faulty)
    yield threadmill
    threadmill.close()


@pytest.fixture(params=[MEMORY, SQLITE, EMBEDDED])
def each_tm(request: pytest.FixtureRequest) -> Iterator[Threadmill]:
    """On each store in turn."""
    if request.param == MEMORY:
        yield Threadmill.in_memory()
        return
    if request.param == SQLITE:
        with engine_for(request.getfixturevalue("sqlite_url")) as engine:
            threadmill = Threadmill(engine)
            yield threadmill
            threadmill.close()
        return
    server = request.getfixturevalue("postgres_servers")(EMBEDDED)
    with server.fresh_database() as url, engine_for(url) as engine:
        threadmill = Threadmill(engine)
        yield threadmill
        threadmill.close()
