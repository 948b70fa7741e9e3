"""On SQLite a call that writes in a caller's transaction writes before it reads anything.

A transaction that has read cannot write once another has committed: it is refused at once,
however long it is told to wait.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.fixtures.servers import with_driver
from threadmill_sa import Every, Threadmill, sqlite
from threadmill_sa.errors import UnknownTaskError
from threadmill_sa.testing import assert_every_nudge_covered

A, B = "a", "b"
Act = Callable[[Threadmill, Session], Any]


@dataclass
class Rival:
    """Somebody who commits after each statement of a caller, unless the caller is the writer."""

    path: str
    commits: int = 0
    held_off: list[str] = field(default_factory=list)  # by these statements

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        self.connection.execute("CREATE TABLE rivals (n INTEGER)")

    def beside(self, engine: Engine) -> None:
        event.listen(engine, "after_cursor_execute", self._intrude)

    def leave(self, engine: Engine) -> None:
        event.remove(engine, "after_cursor_execute", self._intrude)

    def _intrude(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        try:
            self.connection.execute("INSERT INTO rivals VALUES (1)")
            self.commits += 1
        except sqlite3.OperationalError as error:
            assert "locked" in str(error)  # noqa: PT017 - by the caller, as it should be
            self.held_off.append(statement)


@pytest.fixture
def rival(sqlite_engine: Engine) -> Iterator[Rival]:
    assert sqlite_engine.url.database is not None
    made = Rival(sqlite_engine.url.database)
    yield made
    made.connection.close()


def _threadmill(engine: Engine, **options: Any) -> Threadmill:
    tm = Threadmill(engine, **options)
    tm.job("relay")(lambda: None)
    for name in (A, B):
        tm.recurring(name, "relay", Every(hours=1))
    tm.register()
    return tm


CALLS: dict[str, Act] = {
    "nudge": lambda tm, session: tm.nudge(A, session),
    "nudge many": lambda tm, session: tm.nudge_many([B, A], session),
    "enqueue": lambda tm, session: tm.enqueue("relay", session=session),
}
DEFERRED: dict[str, Act] = {
    "nudge": lambda tm, session: tm.nudge(A, session, mode="after_commit"),
    "nudge many": lambda tm, session: tm.nudge_many([B, A], session, mode="after_commit"),
}


def _act_beside_a_rival(engine: Engine, tm: Threadmill, act: Act, rival: Rival) -> None:
    with Session(engine) as session, session.begin():
        rival.beside(engine)
        act(tm, session)
        rival.leave(engine)


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_joined_write_comes_before_every_read(
    sqlite_engine: Engine, rival: Rival, call: str, *, recording: bool
) -> None:
    tm = _threadmill(sqlite_engine, record_nudges=recording)

    _act_beside_a_rival(sqlite_engine, tm, CALLS[call], rival)

    assert rival.held_off
    tm.close()


@pytest.mark.parametrize("call", DEFERRED)
def test_a_recorded_promise_comes_before_every_read(
    sqlite_engine: Engine, rival: Rival, call: str
) -> None:
    tm = _threadmill(sqlite_engine, record_nudges=True)

    _act_beside_a_rival(sqlite_engine, tm, DEFERRED[call], rival)
    tm.run_until_idle()

    assert rival.held_off
    assert assert_every_nudge_covered(tm).nudges >= 2  # promised, and written
    tm.close()


def test_nothing_is_written_for_a_nudge_that_waits_and_is_not_recorded(
    sqlite_engine: Engine, rival: Rival
) -> None:
    tm = _threadmill(sqlite_engine)

    _act_beside_a_rival(sqlite_engine, tm, DEFERRED["nudge many"], rival)

    assert rival.commits
    assert not rival.held_off
    tm.close()


def test_a_fence_comes_before_every_read(sqlite_engine: Engine, rival: Rival) -> None:
    tm = _threadmill(sqlite_engine)

    with tm.lock("door") as grant:
        _act_beside_a_rival(sqlite_engine, tm, lambda _, session: grant.fence(session), rival)

    assert rival.held_off
    tm.close()


def test_no_name_of_a_refused_call_is_promised(sqlite_engine: Engine) -> None:
    tm = _threadmill(sqlite_engine, record_nudges=True)

    with Session(sqlite_engine) as session, session.begin(), pytest.raises(UnknownTaskError):
        tm.nudge_many([A, "nobody"], session, mode="after_commit")

    assert assert_every_nudge_covered(tm).nudges == 0
    tm.close()


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_an_async_call_writes_before_every_read(
    sqlite_engine: Engine, sqlite_url: str, rival: Rival, mode: str
) -> None:
    producers = create_async_engine(with_driver(sqlite_url, "aiosqlite"))
    sqlite.configure(producers)
    tm = _threadmill(sqlite_engine, also=[producers], record_nudges=True)

    async def produce() -> None:
        async with AsyncSession(producers) as session, session.begin():
            rival.beside(producers.sync_engine)
            await tm.anudge_many([B, A], session, mode=mode)
            rival.leave(producers.sync_engine)
        await producers.dispose()

    asyncio.run(produce())

    assert rival.held_off
    tm.close()
