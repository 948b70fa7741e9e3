"""Leases on Redis: connections of their own, bounded waits, hints from other clients."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from redis import BlockingConnectionPool, Redis

from tests.fixtures.valkey import RedisSpace, valkey_process
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.lease import AcquireVerdict, ReleaseVerdict, RenewVerdict
from threadmill_sa.model.limits import LEASE_CONNECTIONS_MAX
from threadmill_sa.stores.redis.leases import RedisLeases
from threadmill_sa.stores.redis.store import RedisStore

TTL, CALL_SECONDS, WAIT_SECONDS = 30.0, 5.0, 30.0


def leases_of(store: RedisStore) -> RedisLeases:
    assert isinstance(store.leases, RedisLeases)
    return store.leases


def test_leases_go_on_when_the_application_has_exhausted_its_pool() -> None:
    with valkey_process() as server:
        path = str(server.socket)
        pool = BlockingConnectionPool.from_url(f"unix://{path}", max_connections=1, timeout=0.01)
        with Redis(connection_pool=pool) as client:
            store = RedisStore(client, prefix="shop")
            taken = pool.get_connection()
            with pytest.raises(StoreUnavailableError):
                store.jobs.counts()

            answer = leases_of(store).acquire(
                "settle", "me", ttl_seconds=TTL, timeout_seconds=CALL_SECONDS
            )

            assert answer.verdict is AcquireVerdict.ACQUIRED
            pool.release(taken)
            store.close()
        pool.disconnect()


def test_a_process_has_few_connections_for_its_leases(redis_space: RedisSpace) -> None:
    with redis_space.client() as admin, redis_space.store(client_name="contender") as store:
        leases = leases_of(store)

        def contend() -> None:
            for number in range(20):
                leases.acquire(str(number), "x", ttl_seconds=TTL, timeout_seconds=WAIT_SECONDS)

        threads = [threading.Thread(target=contend) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)

        mine = [each for each in admin.client_list() if each["name"] == "contender"]
        assert 1 <= len(mine) <= LEASE_CONNECTIONS_MAX
        assert len(leases.list()) == 20


def test_a_server_that_does_not_answer_is_an_outage_within_the_time_of_the_call() -> None:
    with valkey_process() as server, RedisSpace(server.url, "shop").store() as store:
        leases = leases_of(store)
        lease = leases.acquire("a", "me", ttl_seconds=TTL, timeout_seconds=CALL_SECONDS).lease
        server.freeze()
        for call in (
            lambda: leases.renew(lease, ttl_seconds=TTL, timeout_seconds=0.2),
            lambda: leases.acquire("b", "me", ttl_seconds=TTL, timeout_seconds=0.2),
            lambda: leases.release(lease, timeout_seconds=0.2),
        ):
            with pytest.raises(StoreUnavailableError):
                call()
        server.thaw()

        # The late answers of those calls went with their connections.
        renewed = leases.renew(lease, ttl_seconds=TTL, timeout_seconds=CALL_SECONDS)
        assert renewed in RenewVerdict
        view = leases.peek("a")
        assert view is not None
        assert view.term == 1


def test_those_who_watch_in_another_process_hear_of_the_release(redis_space: RedisSpace) -> None:
    with redis_space.store() as one, redis_space.store(decode_responses=True) as other:
        name = "r\u00e4port \U0001f9f5"
        heard, foreign = threading.Semaphore(0), threading.Event()
        near, far = leases_of(one), leases_of(other)
        lease = near.acquire(name, "me", ttl_seconds=TTL, timeout_seconds=CALL_SECONDS).lease
        unwatch: list[Callable[[], None]] = [far.watch(name, heard.release)]
        assert heard.acquire(timeout=WAIT_SECONDS)  # once it hears at all
        unwatch.append(far.watch("foreign", foreign.set))

        assert near.release(lease, timeout_seconds=CALL_SECONDS) is ReleaseVerdict.RELEASED

        assert heard.acquire(timeout=WAIT_SECONDS)
        assert not foreign.is_set()
        for each in unwatch:
            each()


def test_the_listener_ends_when_nobody_watches(redis_space: RedisSpace) -> None:
    with redis_space.store() as store:
        leases = leases_of(store)
        for _ in range(2):
            heard = threading.Event()
            unwatch = leases.watch("settle", heard.set)
            assert heard.wait(WAIT_SECONDS)
            [thread] = _listeners()
            unwatch()
            thread.join(WAIT_SECONDS)
            assert _listeners() == []


def _listeners() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "threadmill-lease-listener"]


def test_a_term_survives_a_crash_of_the_server() -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey_process(*options) as server, RedisSpace(server.url, "shop").store() as store:
        leases = leases_of(store)
        lease = leases.acquire("a", "me", ttl_seconds=TTL, timeout_seconds=CALL_SECONDS).lease
        server.kill()
        with pytest.raises(StoreUnavailableError):
            leases.renew(lease, ttl_seconds=TTL, timeout_seconds=0.5)
        server.start()

        again = leases.renew(lease, ttl_seconds=TTL, timeout_seconds=CALL_SECONDS)
        assert again is RenewVerdict.RENEWED
