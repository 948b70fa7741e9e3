"""The proxy that tests put before a database does what it says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.engine.bench import eventually
from tests.fixtures.proxy import TcpProxy

WAIT_SECONDS = 10.0


@pytest.fixture
def proxy(pg_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.before(pg_url) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: TcpProxy, pg_url: str) -> Iterator[Engine]:
    engine = create_engine(proxy.url(pg_url), poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def straight(pg_engine: Engine) -> Engine:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))
    return pg_engine


def _notes(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM notes")) or 0)


def _write(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO notes VALUES ('a')"))


def _backends(engine: Engine) -> int:
    """How many other connections the server knows of in this database."""
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with engine.connect() as connection:
        return int(connection.scalar(text(others)) or 0)


def test_bytes_pass_and_connections_are_counted(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    large = "x" * 1_000_000

    with through.connect() as connection:
        assert connection.scalar(text("SELECT :large"), {"large": large}) == large
        assert proxy.connections == 1

    eventually(lambda: proxy.connections == 0, "the end of the connection")
    assert proxy.accepted == 1
    assert _backends(straight) == 0


def test_a_cut_resets_what_is_open_and_not_what_comes_later(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    with through.connect() as connection:
        connection.execute(text("INSERT INTO notes VALUES ('a')"))
        assert proxy.cut() == 1
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))

    _write(through)
    assert _notes(straight) == 1


def test_refusing_leaves_open_connections_alone(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    with through.connect() as connection:
        connection.execute(text("SELECT 1"))
        proxy.refuse()
        with pytest.raises(OperationalError, match="refused"):
            _write(through)
        assert connection.scalar(text("SELECT 1")) == 1

    proxy.accept()
    _write(through)
    assert _notes(straight) == 1


def test_a_blackhole_says_nothing_to_either_side(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    with ThreadPoolExecutor(1) as pool, through.connect() as connection:
        connection.execute(text("SELECT 1"))
        proxy.blackhole()
        waiting = pool.submit(connection.execute, text("INSERT INTO notes VALUES ('a')"))
        with pytest.raises(OperationalError, match="timeout"):
            create_engine(through.url, connect_args={"connect_timeout": 2}).connect()
        assert not waiting.done()
        assert _backends(straight) >= 1

        proxy.heal()
        _write(through)
        assert not waiting.done()
        proxy.cut()
        with pytest.raises(OperationalError):
            waiting.result(WAIT_SECONDS)
    assert _notes(straight) == 1


def test_an_end_in_a_blackhole_is_told_when_it_heals(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    with through.connect() as connection:
        connection.execute(text("SELECT 1"))
        proxy.blackhole()
        connection.invalidate()  # ends it without a word to wait for

    assert _backends(straight) == 1
    proxy.heal()
    eventually(lambda: _backends(straight) == 0, "the end of the backend")


def test_a_commit_whose_answer_is_lost_has_been_applied(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    lost = proxy.drop_reply_after()

    with pytest.raises(OperationalError):
        _write(through)

    assert lost.happened.is_set()
    assert _notes(straight) == 1
    _write(through)
    assert _notes(straight) == 2


def test_the_answer_to_one_chosen_statement_is_lost(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    lost = proxy.drop_reply_after(lambda sent: b"INSERT" in sent)
    with through.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
        assert not lost.happened.is_set()
        with pytest.raises(OperationalError):
            connection.execute(text("INSERT INTO notes VALUES ('a')"))

    assert lost.happened.is_set()
    assert _notes(straight) == 0


def test_a_loss_that_was_called_off_does_not_strike(
    proxy: TcpProxy, through: Engine, straight: Engine
):
    lost = proxy.drop_reply_after()
    proxy.keep_replies()

    _write(through)

    assert not lost.happened.is_set()
