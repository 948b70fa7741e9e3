"""From a redis:// URL to a Threadmill."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import click

from threadmill_sa.app import Threadmill
from threadmill_sa.stores.redis.keys import KEYS, KeySpace

DEFAULT_PREFIX: Final = "threadmill"
_SCHEMES: Final = {  # the client knows its own names only
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}


def is_redis_url(text: str) -> bool:
    """Return True for a URL of Redis or Valkey."""
    return text.partition("://")[0] in _SCHEMES


def with_prefix(text: str, prefix: str) -> str:
    """Return the same URL for another prefix."""
    place, _, options = text.partition("?")
    query = {**dict(parse_qsl(options)), "prefix": prefix}
    return f"{place}?{urlencode(query)}"


def delete_all(text: str) -> None:
    """Delete every key under the prefix of a URL, and no other."""
    client, prefix = redis_client(text)
    client.delete(*map(KeySpace(prefix).name, KEYS))
    client.close()


@contextmanager
def open_redis(text: str) -> Iterator[Threadmill]:
    """A Threadmill on a client of its own, closed at the end; `?prefix=` names the prefix.

    Raises: click.UsageError for a URL that cannot be read, without repeating its password, and
    for a missing extra.
    """
    client, prefix = redis_client(text)
    threadmill = Threadmill.redis(client, prefix)
    try:
        yield threadmill
    finally:
        threadmill.close()
        client.close()


def redis_client(text: str) -> tuple[Any, str]:
    """A client that has sent nothing yet, and the prefix. Raises: click.UsageError."""
    try:
        return _client(text)
    except (TypeError, ValueError) as error:
        raise click.UsageError(
            "Redis URL cannot be read, expected for example"
            " redis://user:password@host:6379/0?prefix=shop"
        ) from error


def _client(text: str) -> tuple[Any, str]:
    scheme, _, rest = text.partition("://")
    place, _, options = rest.partition("?")
    if _SCHEMES[scheme] != "unix" and not re.fullmatch(r"\d*/?", place.partition("/")[2]):
        raise ValueError("the path is the number of a database")  # the client would take 0
    query = dict(parse_qsl(options))
    prefix = query.pop("prefix", DEFAULT_PREFIX)
    client = _package().Redis.from_url(f"{_SCHEMES[scheme]}://{place}?{urlencode(query)}")
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)  # not connected: tells an unknown option
    return client, prefix


def _package() -> Any:
    try:
        return importlib.import_module("redis")
    except ModuleNotFoundError as error:
        raise click.UsageError('redis:// needs: pip install "threadmill-sa[redis]"') from error
