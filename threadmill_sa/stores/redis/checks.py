"""What is looked at once before a node starts: the client, and the server behind it."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from redis import Redis
from redis.client import Pipeline

from threadmill_sa.errors import UnsupportedStoreError
from threadmill_sa.stores.redis.gateway import Gateway

logger = logging.getLogger("threadmill_sa.redis")

MINIMUM: Final = (6, 2)  # ZADD LT and ZRANGESTORE
# Claims, completions, heartbeats, the tick, sent wakes, and two that listen: wakes and leases.
POOL_MIN: Final = 7
_POLICY: Final = "noeviction"
_SECTIONS: Final = ("server", "replication", "memory", "persistence")


def check_client(client: object) -> Redis:
    """Return the client when the store can work on it. Sends nothing.

    Raises: UnsupportedStoreError for anything but a synchronous client of redis-py with a pool.
    """
    kind = f"{type(client).__module__}.{type(client).__name__}"
    if isinstance(client, Pipeline):
        raise UnsupportedStoreError(
            f"Threadmill.redis(client) needs a client, found the pipeline {kind}: a script decides"
            " by what it reads, so it cannot wait in a queue of commands"
        )
    if not isinstance(client, Redis):
        advice = "pass redis.Redis(...), or Sentinel(...).master_for(name)"
        if "asyncio" in kind:
            advice = (
                "pass a synchronous redis.Redis; async callers have anudge, anudge_many, aenqueue"
                " and aenqueue_many, and asyncio.to_thread for the rest"
            )
        elif "Cluster" in kind:
            advice = (
                "all our keys lie in one hash slot, so a cluster client brings nothing: pass a"
                " redis.Redis of the node that serves it"
            )
        raise UnsupportedStoreError(
            f"Threadmill.redis(client) cannot work with {kind}: {advice}", found=kind
        )
    if client.connection is not None:
        raise UnsupportedStoreError(
            "Threadmill.redis(client) needs a client with a pool: this one has a single connection"
            " (single_connection_client=True), and a node uses several threads"
        )
    if getattr(client.connection_pool, "cache", None) is not None:
        raise UnsupportedStoreError(
            "Threadmill.redis(client) needs a client without a client-side cache: what a script"
            " reads must be what is stored; leave cache and cache_config out"
        )
    return client


def describe(client: Redis, prefix: str) -> str:
    """Return one line that names server and prefix, without secrets."""
    pool: Any = client.connection_pool
    options = pool.connection_kwargs
    service = getattr(pool, "service_name", None)
    if service is not None:
        place = f"redis sentinel service {service}"
    elif "path" in options:
        place = f"redis unix socket {options['path']}"
    else:
        place = f"redis {options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{place} db {options.get('db') or 0} prefix {prefix!r}"


def check_pool(client: Redis) -> None:
    """Refuse a pool that the threads of one node would exhaust. Sends nothing.

    Raises: UnsupportedStoreError.
    """
    most = getattr(client.connection_pool, "max_connections", None)
    if most is not None and most < POOL_MIN:
        raise UnsupportedStoreError(
            f"the pool of Threadmill.redis(client) has max_connections={most}: a node needs"
            f" {POOL_MIN}, and one more for each handler that uses the client at the same time;"
            " run_until_idle is refused alike, so that what works with it works with a node",
            max_connections=most,
            needed=POOL_MIN,
        )


def check_server(gateway: Gateway, *, trust_memory_policy: bool) -> None:
    """Refuse a server that cannot keep the promises.

    Args:
        trust_memory_policy: accept a server that hides its policy, or has another one.
    Raises: UnsupportedStoreError, also for a node of a cluster that does not serve our slot;
        StoreUnavailableError, StoreAccessError, StoreInvariantError.
    """
    facts = _facts(gateway)
    version = facts.get("redis_version", "")
    if not _version(version) >= MINIMUM:
        raise UnsupportedStoreError(
            f"{gateway.where} runs version {version or 'unknown'}: Redis 6.2 or Valkey 7.2 is the"
            " oldest that works",
            version=version,
        )
    if facts.get("role") in {"slave", "replica"}:
        raise UnsupportedStoreError(
            f"{gateway.where} is a replica: connect to its primary, by Sentinel's master_for(name)"
            " where it may move"
        )
    policy = facts.get("maxmemory_policy")
    if policy != _POLICY and not trust_memory_policy:
        raise UnsupportedStoreError(
            f"{gateway.where} has maxmemory-policy {policy or 'unknown'}, which may drop jobs"
            f" without a word: set it to {_POLICY}, or pass trust_memory_policy=True where a"
            " managed server hides it and you know better",
            policy=policy,
        )
    gateway.command("HLEN", "tasks")  # a node of a cluster may serve other slots than ours
    if facts.get("aof_enabled") == "0":
        logger.warning(
            "%s has no append-only file: a crash of the server loses what came after its last"
            " snapshot; set appendonly yes",
            gateway.where,
        )


def _facts(gateway: Gateway) -> dict[str, str]:
    lines: list[str] = []
    for section in _SECTIONS:
        lines += gateway.server_command("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
