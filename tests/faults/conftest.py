"""One world for each store and module, and the table of faults at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.faults import ledger
from tests.faults.striking import RAISE, FaultyEngine
from tests.faults.world import World, sql_world
from tests.fixtures import summaries
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.servers import ENVIRONMENT, Server, postgres_keys
from tests.fixtures.sql import SQLITE
from tests.fixtures.sqlite import configured_sqlite_engine
from threadmill_sa.sqlite import configure


class Worlds:
    """One world per store; after a failure the next test gets another."""

    def __init__(self, make: Callable[[str], World]) -> None:
        self._make = make
        self._made: dict[str, World] = {}

    @contextmanager
    def of(self, store: str) -> Iterator[World]:
        if store not in self._made:
            self._made[store] = self._make(store)
        try:
            yield self._made[store]
        except BaseException:
            del self._made[store]
            raise


summaries.tell("faults x operations", lambda: list(ledger.lines()) if ledger.struck else [])


def sql_keys() -> list[object]:
    """The SQL stores of the run; a second PostgreSQL only in the long one."""
    marks = {ENVIRONMENT: [pytest.mark.long]}
    return [pytest.param(key, marks=marks.get(key, [])) for key in (*postgres_keys(), SQLITE)]


@pytest.fixture(scope="module")
def worlds(
    postgres_servers: Callable[[str], Server],
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Worlds]:
    """One world per store, made by its first use."""
    with ExitStack() as stack:

        def make(store: str) -> World:
            if store == SQLITE:
                path = tmp_path_factory.mktemp("faults") / "world.db"
                shutil.copy(sqlite_template, path)
                return stack.enter_context(_sqlite_world(path))
            url = stack.enter_context(postgres_servers(store).fresh_database())
            return stack.enter_context(_postgres_world(url))

        yield Worlds(make)


@contextmanager
def _postgres_world(url: str) -> Iterator[World]:
    observer = create_engine(url)
    with observer.begin() as connection:
        connection.execute(text(RAISE))
    with TcpProxy.before(url) as proxy:
        # Few connections, so that one that is not given back is missed.
        engine = create_engine(proxy.url(url), pool_size=2, max_overflow=0, pool_timeout=5)
        yield sql_world(observer, FaultyEngine(engine, url, proxy))
        engine.dispose()
    observer.dispose()


@contextmanager
def _sqlite_world(path: Path) -> Iterator[World]:
    observer = configured_sqlite_engine(f"sqlite:///{path}")
    engine = create_engine(f"sqlite:///{path}")
    configure(engine, busy_timeout=0.0)
    world = sql_world(observer, FaultyEngine(engine))
    # What waits for another writer gives up at once.
    store: Any = world.victim.tm.store
    store._database._busy_seconds = 0.0
    yield world
    engine.dispose()
    observer.dispose()
