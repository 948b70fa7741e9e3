"""Connections whose peer has gone without a word: the kernel ends them within half a minute.

Without it a thread of ours waits for its answer as long as the system retransmits, which is a
quarter of an hour on most, and tells nobody.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from sqlalchemy import Engine, event

_PROBES = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # seconds, count
_UNCONFIRMED_MILLISECONDS = 30_000  # sent data that nobody confirms


def notice_silence_on(engine: Engine) -> None:
    """Let every connection that `engine` opens from now on notice a silent peer.

    An answer may take as long as it likes while the server's host is there. Where the
    application has chosen bounds of its own, by `connect_args` for example, they stay.
    """
    if not event.contains(engine, "connect", _on_connect):
        event.listen(engine, "connect", _on_connect)


def notice_silence(descriptor: int) -> None:
    """The same for one socket, whoever made it."""
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        if peer.family == socket.AF_UNIX:
            return
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, most in _PROBES:
            _lower(peer, name, most)
        _lower(peer, "TCP_USER_TIMEOUT", _UNCONFIRMED_MILLISECONDS)


def _lower(peer: socket.socket, name: str, most: int) -> None:
    option = getattr(socket, name, None)  # not every platform has them all
    if option is None:
        return
    now = peer.getsockopt(socket.IPPROTO_TCP, option)
    if now == 0 or now > most:  # 0 is the system's, which is no bound
        peer.setsockopt(socket.IPPROTO_TCP, option, most)


def _on_connect(connection: Any, _record: object) -> None:
    if hasattr(connection, "fileno"):  # psycopg and psycopg2; others keep the system's
        notice_silence(connection.fileno())
