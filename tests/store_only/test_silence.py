"""Sockets to the server notice a peer that has gone; what the application chose stays."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import create_engine

from tests.fixtures.proxy import TcpProxy
from threadmill_sa import Threadmill
from threadmill_sa.stores.sql.silence import notice_silence

OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
OURS = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}

pytestmark = pytest.mark.skipif(
    not all(hasattr(socket, name) for name in OPTIONS), reason="the platform lacks the options"
)


def bounds(descriptor: int) -> dict[str, int]:
    with closing(socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)) as peer:
        return {
            name: peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS
        }


@pytest.fixture
def tcp_url(pg_url: str) -> Iterator[str]:
    """The database by TCP, also where its server has a unix socket only."""
    with TcpProxy.before(pg_url) as proxy:
        yield proxy.url(pg_url)


@pytest.mark.parametrize(
    ("connect_args", "expected"),
    [
        ({}, OURS),
        (
            {"tcp_user_timeout": 10_000, "keepalives_idle": 7},
            OURS | {"TCP_KEEPIDLE": 7, "TCP_USER_TIMEOUT": 10_000},
        ),
    ],
)
def test_every_connection_of_the_engine_notices_a_silent_peer(
    tcp_url: str, connect_args: dict[str, int], expected: dict[str, int]
) -> None:
    engine = create_engine(tcp_url, connect_args=connect_args)
    tms = [Threadmill(engine) for _ in range(2)]

    for _ in range(2):
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            assert bounds(driver.fileno()) == expected
        engine.dispose()  # the next pool keeps the hook

    for tm in tms:
        tm.close()


def test_a_unix_socket_is_left_alone() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)

    notice_silence(here.fileno())

    here.close()
    there.close()
