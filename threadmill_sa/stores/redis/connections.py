"""Where a connection for one exchange comes from: the client's pool, or a few beside it."""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ClientConnectionError
from redis.retry import Retry

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.clock import SystemClock
from threadmill_sa.model import limits


class Connections(Protocol):
    """Lends connections that are ready to send."""

    def take(self, timeout_seconds: float) -> Any:
        """Return a connection. Raises: what the client raises when there is none."""
        ...

    def give_back(self, connection: Any) -> None: ...


_POOL_WAIT_SECONDS: Final = 1.0  # for a pool that refuses at once, until it has one again
_POOL_PAUSE_SECONDS: Final = 0.005
# What a pool says that refuses at once, and one that has waited.
_EXHAUSTED: Final = ("Too many connections", "No connection available")


class Pooled:
    """The pool of the user's client, with its own timeouts.

    One that refuses at once is asked again for a moment: calls that follow each other must not
    fail because a thread of ours that sends a wake has its last connection.
    """

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._elapsed = SystemClock().monotonic

    def take(self, timeout_seconds: float) -> Any:
        del timeout_seconds
        give_up_at = self._elapsed() + _POOL_WAIT_SECONDS
        while True:
            try:
                return self._pool.get_connection()
            except ClientConnectionError as error:
                if not str(error).startswith(_EXHAUSTED):
                    raise
                if self._elapsed() >= give_up_at:
                    raise ClientConnectionError(
                        f"all {self._pool.max_connections} connections of the client's pool are in"
                        " use; give it more by max_connections"
                    ) from error
            threading.Event().wait(_POOL_PAUSE_SECONDS)

    def give_back(self, connection: Any) -> None:
        self._pool.release(connection)


class Aside:
    """At most limits.LEASE_CONNECTIONS_MAX connections that the application cannot exhaust.

    They are made as the client's pool makes them, but for the timeouts: each wait for the server
    ends after that of the call, and nothing is tried twice.
    """

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin with none, and leave the parent's sockets alone."""
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(limits.LEASE_CONNECTIONS_MAX)
        self._idle: list[Any] = []

    def take(self, timeout_seconds: float) -> Any:
        if not self._room.acquire(timeout=timeout_seconds):
            raise ClientConnectionError(
                f"all {limits.LEASE_CONNECTIONS_MAX} connections for leases are in use"
            )
        connection = None
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._make()
            _make_ready(connection, timeout_seconds)
        except BaseException:
            if connection is not None:
                connection.disconnect()
            self._room.release()
            raise
        return connection

    def give_back(self, connection: Any) -> None:
        with self._lock:
            self._idle.append(connection)
        self._room.release()

    def close(self) -> None:
        """End the idle connections; the next call makes new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    def _make(self) -> Any:
        options = dict(self._pool.connection_kwargs) | {"retry": Retry(NoBackoff(), 0)}
        return self._pool.connection_class(**options)


def _make_ready(connection: Any, timeout_seconds: float) -> None:
    if connection.socket_timeout != timeout_seconds:
        connection.disconnect()
        connection.socket_timeout = connection.socket_connect_timeout = timeout_seconds
    connection.connect()
    if connection.can_read():  # closed by the server, or an answer that nobody waited for
        connection.disconnect()
        connection.connect()
