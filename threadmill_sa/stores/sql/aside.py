"""Connections that the application cannot exhaust: a small pool beside the engine's own."""

from __future__ import annotations

import os
import socket
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import QueuePool

from threadmill_sa.model import limits

_POOL_SECONDS = limits.LEASE_CALL_MAX_SECONDS  # wait for one of the few connections
_SILENCE_MILLISECONDS = 10_000  # sent data that nobody confirms ends a connection after this
_BUSY_MILLISECONDS = 1_000  # SQLite: wait for another writer; who waits longer asks again


def engine_aside(engine: Engine) -> Engine:
    """Return an engine for the same database with limits.LEASE_CONNECTIONS_MAX connections.

    They are made exactly as those of `engine`: its URL or creator, its hooks, its dialect. None
    is opened before the first use.
    """
    pool = QueuePool(
        # What the pool's own `recreate` uses; there is no public name for it.
        engine.pool._creator,  # noqa: SLF001
        pool_size=limits.LEASE_CONNECTIONS_MAX,
        max_overflow=0,
        timeout=_POOL_SECONDS,
        recycle=-1,
        dialect=engine.dialect,
        _dispatch=engine.pool.dispatch,
    )
    event.listen(pool, "connect", _bound_waits)
    return Engine(pool, engine.dialect, engine.url)


def _bound_waits(connection: Any, _record: object) -> None:
    """Make no wait of this connection endless."""
    if hasattr(connection, "fileno"):
        _notice_silence(connection.fileno())
    elif hasattr(connection, "total_changes"):  # sqlite3; after the hooks of the engine
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}").close()


def _notice_silence(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, option, _SILENCE_MILLISECONDS)
