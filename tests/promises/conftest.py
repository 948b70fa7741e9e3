"""One shop per kind of store; tests ask for what they need of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine

from tests.fixtures.servers import Server, postgres_keys
from tests.fixtures.sql import SQLITE, engine_for
from tests.promises.shop import Shop, impatient
from threadmill_sa import Threadmill

MEMORY = "memory"


@pytest.fixture
def open_shop() -> Iterator[Callable[[Engine | None], Shop]]:
    with ExitStack() as stack:

        def make(engine: Engine | None) -> Shop:
            tm = Threadmill.in_memory() if engine is None else Threadmill(engine)
            stack.callback(tm.close)
            return Shop(tm, engine)

        yield make


@pytest.fixture(params=[MEMORY, SQLITE, *postgres_keys()])
def shop(
    request: pytest.FixtureRequest,
    postgres_servers: Callable[[str], Server],
    open_shop: Callable[[Engine | None], Shop],
) -> Iterator[Shop]:
    """Every store in turn."""
    if request.param == MEMORY:
        yield open_shop(None)
        return
    with ExitStack() as stack:
        if request.param == SQLITE:
            url = request.getfixturevalue("sqlite_url")
        else:
            url = stack.enter_context(postgres_servers(request.param).fresh_database())
        yield open_shop(stack.enter_context(engine_for(url)))


@pytest.fixture
def sql_shop(sql_engine: Engine, open_shop: Callable[[Engine | None], Shop]) -> Shop:
    """Every store that can join a transaction."""
    return open_shop(sql_engine)


@pytest.fixture
def pg_shop(pg_engine: Engine, open_shop: Callable[[Engine | None], Shop]) -> Shop:
    """Stores where two write transactions can be open at once."""
    return open_shop(pg_engine)


@pytest.fixture
def actor_engine(pg_engine: Engine) -> Iterator[Engine]:
    """For another process at the same database; it never waits for long."""
    engine = impatient(pg_engine)
    yield engine
    engine.dispose()
