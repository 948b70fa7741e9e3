"""The role `Leases` on Redis, judged by the server's clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from redis import Redis

from threadmill_sa._util.hints import HintBoard
from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    Lease,
    LeaseView,
    ReleaseVerdict,
    RenewVerdict,
)
from threadmill_sa.model.limits import LEASE_CALL_MAX_SECONDS
from threadmill_sa.stores.redis.connections import Aside
from threadmill_sa.stores.redis.gateway import Gateway
from threadmill_sa.stores.redis.hashes import JUNK, moment, span
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.stores.redis.subscription import Subscription

logger = logging.getLogger("threadmill_sa.leases")

_MILLION = 1_000_000


class RedisLeases:
    """Leases in one hash that nothing is ever deleted from; each call is one script.

    After a failover to a replica that missed the last acquisition a term may be given again: where
    that matters, fence by a store that cannot forget.
    """

    def __init__(self, client: Redis, keys: KeySpace, where: str) -> None:
        self._aside = Aside(client)
        self._gateway = Gateway(self._aside, keys, where)
        self._channel = keys.name("leases")
        self._board = HintBoard()
        self._subscription = Subscription(
            client,
            self._channel.encode(),
            what="lease listener",
            logger=logger,
            on_message=self._hear,
            wanted=lambda: bool(self._board.names),
        )

    def acquire(
        self, name: str, holder: str, *, ttl_seconds: float, timeout_seconds: float
    ) -> AcquireAnswer:
        word, owner, term, remaining = self._gateway.run(
            "lease_acquire",
            timeout_seconds,
            name=name,
            holder=holder,
            ttl=span(ttl_seconds),
        )
        lease = Lease(name, owner.decode(), term)
        return AcquireAnswer(AcquireVerdict(word.decode()), lease, int(remaining) / _MILLION)

    def renew(self, lease: Lease, *, ttl_seconds: float, timeout_seconds: float) -> RenewVerdict:
        word = self._gateway.run(
            "lease_renew",
            timeout_seconds,
            name=lease.name,
            holder=lease.holder,
            term=lease.term,
            ttl=span(ttl_seconds),
        )
        return RenewVerdict(word.decode())

    def release(self, lease: Lease, *, timeout_seconds: float) -> ReleaseVerdict:
        word = self._gateway.run(
            "lease_release",
            timeout_seconds,
            name=lease.name,
            holder=lease.holder,
            term=lease.term,
            channel=self._channel,
            hint=lease.name.encode().hex(),  # the same in every encoding that a client may have
        )
        verdict = ReleaseVerdict(word.decode())
        if verdict is ReleaseVerdict.RELEASED:
            self._board.hint(lease.name)
        return verdict

    def peek(self, name: str) -> LeaseView | None:
        views = self._read(name)
        return views[0] if views else None

    def list(self) -> list[LeaseView]:
        return sorted(self._read(""), key=lambda view: view.name)

    def watch(self, name: str, on_hint: Callable[[], None]) -> Callable[[], None]:
        unwatch = self._board.watch(name, on_hint)
        self._subscription.start()
        return unwatch

    def close(self) -> None:
        self._subscription.close()
        self._aside.close()

    def _read(self, name: str) -> tuple[LeaseView, ...]:
        now, *found = self._gateway.run("lease_read", LEASE_CALL_MAX_SECONDS, name=name)
        views = []
        for each, packed in zip(found[::2], found[1::2], strict=True):
            try:
                views.append(_view(each.decode(), packed, moment(now)))
            except JUNK as error:
                logger.warning(
                    "lease %r left out: what is stored of it is damaged: %s", each, error
                )
        return tuple(views)

    def _hear(self, hint: Any) -> None:
        if hint is None:
            self._board.hint_all()  # for whatever was released before the listener heard
        else:
            self._board.hint(
                bytes.fromhex(hint if isinstance(hint, str) else hint.decode()).decode()
            )


def _view(name: str, packed: bytes, now: datetime) -> LeaseView:
    holder, term, acquired_at, expires_at = msgspec.msgpack.decode(packed)
    remaining = max(0.0, (moment(expires_at) - now).total_seconds()) if holder else 0.0
    return LeaseView(name, holder if remaining else None, term, moment(acquired_at), remaining)
