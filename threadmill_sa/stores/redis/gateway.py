"""The one place that talks to the server: a script is sent once and its answer read as bytes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from redis.exceptions import NoScriptError, ResponseError

from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.model.limits import LEASE_CALL_MAX_SECONDS
from threadmill_sa.stores.redis.connections import Connections
from threadmill_sa.stores.redis.faults import known, translate
from threadmill_sa.stores.redis.hashes import micros
from threadmill_sa.stores.redis.keys import KEYS, KeySpace
from threadmill_sa.stores.redis.scripts import script

T = TypeVar("T")

WAIT_REPLICAS_SECONDS: Final = 1.0  # for the replicas that a write waits for

pack: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Request:
    """What goes before the arguments of a script, ready to be sent."""

    by_digest: tuple[bytes, ...]
    whole: tuple[bytes, ...]
    arguments: tuple[str, ...]


class Gateway:
    """Runs scripts on the user's client, under one prefix."""

    def __init__(
        self, connections: Connections, keys: KeySpace, where: str, *, wait_replicas: int = 0
    ) -> None:
        self.where = where
        self._replicas = wait_replicas
        self._connections = connections
        self._names = {key: keys.name(key).encode() for key in KEYS}
        self._requests: dict[str, _Request] = {}

    def run(
        self, name: str, timeout_seconds: float = LEASE_CALL_MAX_SECONDS, /, **arguments: Any
    ) -> Any:
        """Run `lua/<name>.lua` and return its reply; texts come as bytes, whatever the client.

        Args:
            timeout_seconds: of a wait for the server, where the connections ask for it.
            arguments: by the names of the script's header; text, bytes or integers.
        Raises: StoreUnavailableError, also when the answer was lost and nobody knows whether the
            script ran; StoreAccessError, StoreInvariantError.
        """
        request = self._requests.get(name) or self._prepare(name)
        tail = [_encoded(arguments[each]) for each in request.arguments]
        return self._exchange(
            [*request.by_digest, *tail],
            timeout_seconds,
            # Sent whole: loading it first would leave room for another flush in between.
            unknown_script=lambda: [*request.whole, *tail],
        )

    def run_durably(self, name: str, /, **arguments: Any) -> Any:
        """As `run`, and wait until so many replicas have it as was asked for.

        Raises: StoreUnavailableError as well when they are fewer: it is written, and a failover
            may lose it.
        """
        if not self._replicas:
            return self.run(name, **arguments)
        request = self._requests.get(name) or self._prepare(name)
        tail = [_encoded(arguments[each]) for each in request.arguments]
        wait = [b"WAIT", b"%d" % self._replicas, b"%d" % round(1000 * WAIT_REPLICAS_SECONDS)]
        answer, confirmed = self._exchange(
            [*request.by_digest, *tail],
            unknown_script=lambda: [*request.whole, *tail],
            then=(wait,),
        )
        if confirmed < self._replicas:
            raise StoreUnavailableError(
                f"{self.where} has written it, but {confirmed} of {self._replicas} replicas have"
                f" confirmed it within {WAIT_REPLICAS_SECONDS:g} s: a failover may lose it",
                confirmed=confirmed,
            )
        return answer

    def key(self, key: str) -> str:
        """Return the full name of one of `keys.KEYS`."""
        return self._names[key].decode()

    def command(self, command: str, key: str, *rest: str) -> Any:
        """Run one reading command on one of our keys, named as in `keys.KEYS`."""
        return self._exchange([command.encode(), self._names[key], *map(_encoded, rest)])

    def server_command(self, *words: str) -> Any:
        """Run one command that names no key."""
        return self._exchange([each.encode() for each in words])

    def try_until_written(self, what: str, attempt: Callable[[], T | None]) -> T:
        """Call `attempt` until it returns something else than None: what it read stood still.

        Raises: StoreUnavailableError after `limits.STORE_TRIES` tries.
        """
        for tries in range(limits.STORE_TRIES):
            done = attempt()
            if done is not None:
                return done
            threading.Event().wait(pause_seconds(tries))
        raise StoreUnavailableError(
            f"{what} was changed by others {limits.STORE_TRIES} times while it was being written:"
            " try again"
        )

    def _prepare(self, name: str) -> _Request:
        ready = script(name)
        keys = (b"%d" % len(ready.keys), *(self._names[key] for key in ready.keys))
        request = self._requests[name] = _Request(
            by_digest=(b"EVALSHA", ready.sha.encode(), *keys),
            whole=(b"EVAL", ready.source.encode(), *keys),
            arguments=ready.arguments,
        )
        return request

    def _exchange(
        self,
        words: list[bytes],
        timeout_seconds: float = LEASE_CALL_MAX_SECONDS,
        unknown_script: Callable[[], list[bytes]] | None = None,
        then: tuple[list[bytes], ...] = (),
    ) -> Any:
        """Send `words` and what follows them at once; returns the answer, or all when several."""
        # Not by `execute_command`: a client that repeats a command after a lost answer would run
        # the script twice, and jobs claimed by the first run would wait for their timeout.
        # Guarded by store_only/test_redis_faults.py.
        try:
            connection = self._connections.take(timeout_seconds)
            try:
                return _ask(connection, words, *then)
            except NoScriptError:
                if unknown_script is None:
                    raise
                return _ask(connection, unknown_script(), *then)
            finally:
                self._connections.give_back(connection)
        except Exception as error:
            if not known(error):
                raise
            sent = sum(map(len, words))
            raise translate(error, self.where, sent=sent) from error


def _ask(connection: Any, *commands: list[bytes]) -> Any:
    try:
        if len(commands) == 1:
            connection.send_command(*commands[0])
        else:
            connection.send_packed_command(connection.pack_commands(commands))
        answers = [_answer(connection) for _ in commands]
    except BaseException:
        # An answer that was not read would be taken for that of the next command.
        connection.disconnect()
        raise
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers[0] if len(answers) == 1 else answers


def _answer(connection: Any) -> Any:
    """Return the answer or the server's error: either is read to its end."""
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _encoded(argument: str | bytes | int) -> bytes:
    # Not left to the client, which may have been told another encoding.
    if isinstance(argument, bytes):
        return argument
    return argument.encode() if isinstance(argument, str) else b"%d" % argument


def as_text(stored: bytes) -> msgspec.Raw:
    """Return bytes that may be no text as a part to be packed: scripts know texts alone."""
    return msgspec.Raw(b"\xdb" + len(stored).to_bytes(4, "big") + stored)


def instant_text(now: datetime | None) -> str:
    """Return an injected instant as the scripts take it; empty is the server's own clock."""
    return "" if now is None else str(micros(now))


def words(reply: Sequence[bytes]) -> list[str]:
    """Return the texts of a reply."""
    return [each.decode() for each in reply]


def pause_seconds(tries: int) -> float:
    """Return how long to wait after a conflict: longer each time, jittered."""
    longest: float = min(
        limits.STORE_RETRY_MAX_SECONDS, limits.STORE_RETRY_MIN_SECONDS * 2 ** min(tries, 10)
    )
    return longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret
