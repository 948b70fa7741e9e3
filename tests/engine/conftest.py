"""One bench in memory for most tests, and one on every store for the core of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.engine.bench import Bench
from tests.fixtures.servers import Server, postgres_keys
from tests.fixtures.sql import SQLITE, engine_for
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.sql.store import SqlStore

MEMORY = "memory"


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(MemoryStore())
    yield bench
    bench.close()


@pytest.fixture(params=[MEMORY, SQLITE, *postgres_keys()])
def any_bench(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Bench]:
    with ExitStack() as stack:
        bench = Bench(_store(request, postgres_servers, stack))
        stack.callback(bench.store.close)
        stack.callback(bench.close)
        yield bench


def _store(
    request: pytest.FixtureRequest,
    postgres_servers: Callable[[str], Server],
    stack: ExitStack,
) -> JobStore:
    if request.param == MEMORY:
        return MemoryStore()
    if request.param == SQLITE:
        url = request.getfixturevalue("sqlite_url")
    else:
        url = stack.enter_context(postgres_servers(request.param).fresh_database())
    return SqlStore(stack.enter_context(engine_for(url)))
