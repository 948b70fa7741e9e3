"""The numbers of connections that the README states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from tests.cli.tools import until
from tests.fixtures.servers import EMBEDDED, Server
from threadmill_sa import Every, Threadmill

NODE_CONNECTIONS = 4  # as README.md and docs/transactions.md say
BESIDE_THE_POOL = 4  # wakes heard and sent, the maintenance lease, and its release
JOBS = 200
WAIT_SECONDS = 60.0


class _Pool:
    """The most connections of an engine's pool that were in use at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.most = 0
        event.listen(engine, "checkout", self._look)

    def _look(self, *_: object) -> None:
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        self.most = max(self.most, pool.checkedout())


@pytest.fixture(params=["sqlite", EMBEDDED])
def url(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[str]:
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    with postgres_servers(EMBEDDED).fresh_database() as url:
        yield url


def test_a_node_holds_no_more_connections_of_the_pool_than_the_readme_says(url: str) -> None:
    engine = create_engine(url)
    pool = _Pool(engine)
    tm = Threadmill(engine)
    left = threading.Semaphore(0)

    @tm.job("count")
    def count() -> None:
        left.release()

    tm.recurring("pump", count, Every(seconds=0.05))
    try:
        with tm.node(workers=10, tick=0.01, poll=0.01, heartbeat=0.01):
            tm.enqueue_many([("count", None)] * JOBS)
            for _ in range(JOBS):
                assert left.acquire(timeout=WAIT_SECONDS)
            most = pool.most
    finally:
        tm.close()
        engine.dispose()

    assert 1 <= most <= NODE_CONNECTIONS + 1  # one more for the enqueue of this thread


def test_a_joined_nudge_takes_no_connection_beside_the_sessions_own(url: str) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=1)
    tm = Threadmill(engine)
    tm.job("count")(lambda: None)
    tm.recurring("pump", "count", Every(hours=1))
    tm.register()
    pool = _Pool(engine)
    try:
        with Session(engine) as session, session.begin():
            tm.nudge("pump", session)
            tm.enqueue("count", session=session)
    finally:
        tm.close()
        engine.dispose()

    assert pool.most == 1


def test_beside_the_pool_a_relieved_node_has_what_the_readme_says(
    postgres_servers: Callable[[str], Server],
) -> None:
    counted = text(
        "SELECT query FROM pg_stat_activity WHERE application_name = 'relieved'"
        " AND datname = current_database()"
    )
    with postgres_servers(EMBEDDED).fresh_database() as url:
        holding = create_engine(url)
        relieved = create_engine(url, connect_args={"application_name": "relieved"})
        holder, tm = Threadmill(holding), Threadmill(relieved)
        tm.job("count")(lambda: None)
        tm.recurring("pump", "count", Every(hours=1))

        def queries() -> list[str]:
            with holding.connect() as connection:
                return list(connection.scalars(counted))

        def hears_of_both() -> bool:
            listens = [query for query in queries() if query.startswith("LISTEN")]
            return len(listens) == 2

        try:
            with holder.node():
                until(holder.leases, "a holder of the maintenance lease")
                with tm.node():
                    tm.nudge("pump")  # the waker's connection stays for a while
                    until(hears_of_both, "both listeners")
                    # The pool is asked last: what it has opened meanwhile only lowers the rest.
                    everything = len(queries())
                    pool = relieved.pool
                    assert isinstance(pool, QueuePool)
                    beside = everything - pool.checkedin() - pool.checkedout()
        finally:
            for each in (tm, holder):
                each.close()
            for engine in (relieved, holding):
                engine.dispose()

    assert 3 <= beside <= BESIDE_THE_POOL
