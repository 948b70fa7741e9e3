from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.session.conftest import PUMP, Order
from threadmill_sa.errors import InvalidValueError, ThreadmillError, UnsupportedSessionError
from threadmill_sa.session.handles import borrowed_connection, unwrap


class Shop(Session):
    pass


def test_sessions_connections_and_their_proxies_are_recognised(sqlite_engine):
    with Shop(sqlite_engine) as session, sqlite_engine.connect() as connection:
        assert unwrap(session) is session
        assert unwrap(connection) is connection
    registry = scoped_session(sessionmaker(sqlite_engine, class_=Shop))
    assert unwrap(registry) is registry()
    registry.remove()


@pytest.mark.parametrize("wrong", ["outbox", 7, object(), {}, Session, sessionmaker()])
def test_anything_else_is_refused_with_what_is_accepted(wrong):
    with pytest.raises(
        UnsupportedSessionError, match="pass a Session, scoped_session or"
    ) as error:
        unwrap(wrong)
    assert isinstance(error.value, TypeError)
    assert isinstance(error.value, ThreadmillError)
    assert error.value.code == "TM-J01"


def test_an_engine_is_refused_with_its_own_advice():
    with pytest.raises(UnsupportedSessionError, match="an engine has no transaction"):
        unwrap(create_engine("sqlite://"))


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_a_mode_that_needs_a_transaction_refuses_to_go_without(memory_desk, mode):
    with pytest.raises(UnsupportedSessionError, match="needs a transaction of yours"):
        memory_desk.nudge([PUMP], None, mode=mode)
    assert memory_desk.pending() == 0


def test_an_unknown_mode_lists_the_known_ones(memory_desk):
    with pytest.raises(InvalidValueError, match="'after_commit', 'immediate'"):
        memory_desk.nudge([PUMP], mode="later")


def test_a_session_on_a_connection_is_told_from_one_on_an_engine(sqlite_engine):
    with sqlite_engine.connect() as connection:
        borrowing = [Session(connection), Session(binds={Order: connection})]
        assert [borrowed_connection(session) for session in borrowing] == [connection] * 2
        assert borrowed_connection(Session(sqlite_engine)) is None
        assert borrowed_connection(Session(binds={Order: sqlite_engine})) is None


NO_GREENLET = """
import sys
sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from threadmill_sa.session.handles import unwrap
import threadmill_sa.session.boundary, threadmill_sa.session.hooks, threadmill_sa.sqlite
session = Session(create_engine("sqlite://"))
assert unwrap(session) is session
assert "sqlalchemy.ext.asyncio" not in sys.modules
"""


def test_synchronous_callers_need_no_greenlet():
    subprocess.run([sys.executable, "-c", NO_GREENLET], check=True, timeout=60)
