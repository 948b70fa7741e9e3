"""The store on Redis, assembled from its roles."""

from __future__ import annotations

from typing import Final

from redis import Redis

from threadmill_sa.model.names import check_integer
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.nodes import Nodes
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.spi.store import CannotJoin, JoinedWrites, StoreCapabilities
from threadmill_sa.spi.wakes import WakeChannel
from threadmill_sa.stores.redis.checks import (
    check_client,
    check_pool,
    check_server,
    describe,
)
from threadmill_sa.stores.redis.connections import Pooled
from threadmill_sa.stores.redis.gateway import Gateway
from threadmill_sa.stores.redis.jobs import RedisJobs
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.stores.redis.leases import RedisLeases
from threadmill_sa.stores.redis.nodes import RedisNodes
from threadmill_sa.stores.redis.records import RedisRecords
from threadmill_sa.stores.redis.recurring import RedisRecurring
from threadmill_sa.stores.redis.wakes import RedisWakes

REPLICAS_MAX: Final = 100

_CAPABILITIES = StoreCapabilities(
    joins=False,
    concurrent_writers=False,  # one script at a time
    own_clock=True,
    ordered_revisions=True,
    durable=True,
    shared=True,
)


class RedisStore:
    """`spi.JobStore` on the user's client. Constructing it sends nothing.

    Args:
        prefix: of every key; one per application.
        trust_memory_policy: accept a server whose maxmemory-policy is hidden or evicts.
        wait_replicas: a nudge or an insert waits until so many replicas have confirmed it.
        record_nudges: leave records of nudges and runs (`spi.records`); they grow.
    Raises: UnsupportedStoreError for a client that cannot be used; InvalidValueError.
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "threadmill",
        trust_memory_policy: bool = False,
        wait_replicas: int = 0,
        record_nudges: bool = False,
    ) -> None:
        keys = KeySpace(prefix)
        check_integer(wait_replicas, what="wait_replicas", minimum=0, maximum=REPLICAS_MAX)
        self._client = client
        self._where = describe(check_client(client), prefix)
        self._trusts = trust_memory_policy
        self._gateway = gateway = Gateway(
            Pooled(client), keys, self._where, wait_replicas=wait_replicas
        )
        self._jobs = RedisJobs(gateway)
        self._recurring = RedisRecurring(gateway, record_nudges=record_nudges)
        self._records = RedisRecords(gateway) if record_nudges else None
        self._nodes = RedisNodes(gateway)
        self._leases = RedisLeases(client, keys, self._where)
        self._wakes = RedisWakes(client, keys.name("wakes"))

    @property
    def capabilities(self) -> StoreCapabilities:
        return _CAPABILITIES

    @property
    def jobs(self) -> Jobs:
        return self._jobs

    @property
    def recurring(self) -> Recurring:
        return self._recurring

    @property
    def nodes(self) -> Nodes:
        return self._nodes

    @property
    def leases(self) -> Leases | None:
        return self._leases

    @property
    def records(self) -> NudgeRecords | None:
        return self._records

    @property
    def wakes(self) -> WakeChannel | None:
        return self._wakes

    def joined(self, handle: object) -> JoinedWrites | CannotJoin:
        del handle
        return CannotJoin(
            "Redis takes no part in a SQL transaction: use mode='after_commit', which writes once"
            " the session has committed, or mode='immediate'"
        )

    def describe(self) -> str:
        return self._where

    def check_ready(self) -> None:
        check_pool(self._client)
        check_server(self._gateway, trust_memory_policy=self._trusts)

    def close(self) -> None:
        self._leases.close()
        self._wakes.close()
