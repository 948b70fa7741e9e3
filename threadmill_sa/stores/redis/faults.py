"""From an error of the client or the server to ours, by what the caller can do about it."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,  # noqa: A004 - the client's name for it
    NoPermissionError,
    RedisError,
    TimeoutError,  # noqa: A004 - the client's name for it
)

from threadmill_sa.errors import (
    StoreAccessError,
    StoreError,
    StoreInvariantError,
    StoreUnavailableError,
    UnsupportedStoreError,
)

# The first word of an error reply that passes by itself or by an operator's hand.
_OUTAGES: Final = frozenset({
    "OOM", "LOADING", "BUSY", "MISCONF", "READONLY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN",
    "TRYAGAIN", "UNBLOCKED",
})  # fmt: skip
_REFUSALS: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_ELSEWHERE: Final = frozenset({"MOVED", "ASK", "CROSSSLOT"})
_INSIDE: Final = re.compile(r": -([A-Z]+) ")  # how Redis 6.2 tells what failed within a script
_CLASSES: Final = {  # for these the client cuts the code off
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ClusterCrossSlotError": "CROSSSLOT",
}
_LINE_MAX: Final = 300
_LARGE_BYTES: Final = 2**20  # a request of so many may itself be what was refused


def translate(error: Exception, where: str, *, sent: int = 0) -> StoreError:
    """Return the error to raise for one of redis-py or of the network.

    Args:
        where: the store in one line, without secrets.
        sent: bytes of the request.
    """
    line = _first_line(error)
    word = _word(error)
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or (
        word in _REFUSALS
    ):
        advice = "give the client the username and password of the server"
        if isinstance(error, NoPermissionError) or word == "NOPERM":
            advice = (
                "the user needs the commands EVAL and EVALSHA, those that the scripts use, and our"
                " keys and channels"
            )
        return StoreAccessError(f"{where} refused access: {line}; {advice}", where=where)
    # The first two words speak of the whole server, whatever class the client gives them.
    if isinstance(error, ConnectionError | TimeoutError | OSError) or word in _OUTAGES:
        advice = "try again later"
        if sent >= _LARGE_BYTES and isinstance(error, ConnectionError | OSError):
            advice += (
                f"; the request had {sent / 2**20:.0f} MB, and a server ends a connection with"
                " more than it takes: send smaller batches"
            )
        if word == "READONLY":
            advice = "connect to its primary, by Sentinel's master_for(name) where it may move"
        return StoreUnavailableError(f"{where} is not available: {line}; {advice}")
    if word in _ELSEWHERE:
        return UnsupportedStoreError(
            f"{where} belongs to a cluster and does not serve our hash slot: {_elsewhere(error)};"
            " pass a client of the node that does",
            where=where,
        )
    if line.startswith("DB index"):
        return UnsupportedStoreError(
            f"{where} has no such database: {line}; 0 is always there", where=where
        )
    if word == "WRONGTYPE":
        return StoreInvariantError(
            f"a key of ours in {where} holds something else: {line}; give each application a"
            " prefix of its own",
            where=where,
        )
    # A script of ours that fails has met keys that no script of ours has written so.
    return StoreInvariantError(f"{where} refused a script: {line}", where=where)


def known(error: BaseException) -> bool:
    """Return True for what `translate` is for."""
    return isinstance(error, RedisError | OSError)


def _elsewhere(error: Exception) -> str:
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    return _first_line(error) if port is None else f"{host}:{port} does"


def _word(error: Exception) -> str:
    """Return the code of an error reply, also of one that a script passed on."""
    cut_off = _CLASSES.get(type(error).__name__)
    if cut_off is not None:
        return cut_off
    text = str(error)
    inside = _INSIDE.search(text)
    if inside is not None:
        return inside[1]
    return text.split(maxsplit=1)[0].rstrip(":") if text.strip() else ""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:_LINE_MAX] if lines else type(error).__name__
