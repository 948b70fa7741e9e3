"""The user's own client, however it is set up; and those that are refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from redis import BlockingConnectionPool, ConnectionPool, Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.cache import CacheConfig
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.fixtures.valkey import RedisSpace, connect, valkey_process
from tests.store_only.redis_books import check_books
from threadmill_sa import Every, JobContext, Threadmill
from threadmill_sa.errors import (
    CannotJoinError,
    InvalidNameError,
    StoreAccessError,
    StoreInvariantError,
    StoreUnavailableError,
    UnknownTaskError,
    UnsupportedStoreError,
)
from threadmill_sa.model.job import NewJob
from threadmill_sa.stores.redis.checks import POOL_MIN
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import T0, insert, new_job

NAME = "r\u00e4port \U0001f9f5"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decode_responses": True},
        {"decode_responses": True, "encoding": "latin-1"},
        {"encoding": "utf-16"},
        {"health_check_interval": 1},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_any_way_of_decoding_gives_the_same(
    redis_space: RedisSpace, options: dict[str, Any], protocol: int
) -> None:
    ran: list[tuple[str, str]] = []
    with redis_space.client(protocol=protocol, **options) as client:
        tm = Threadmill.redis(client, redis_space.prefix)

        @tm.job(NAME, queue=NAME)
        def work(ctx: JobContext, text: str) -> str:
            ran.append((ctx.cron_origin or "", text))
            return text

        tm.recurring(NAME, work, Every(minutes=10), payload=NAME)
        tm.register()
        tm.nudge(NAME)
        job_id = tm.enqueue(work, NAME)

        assert tm.run_until_idle() == 2
        assert tm.run_until_idle(now=tm.get_recurring(NAME).next_run_at) == 1

        job = tm.get_job(job_id)
        assert job is not None
        assert (job.result, job.queue, job.handler) == (f'"{NAME}"', NAME, NAME)
        assert [task.name for task in tm.list_recurring()] == [NAME]
        assert tm.store.jobs.queue_depths() == {}
        tm.store.check_ready()
        tm.close()
    assert set(ran) == {("", NAME), ("nudge", NAME), ("schedule", NAME)}
    check_books(redis_space)


def test_two_prefixes_on_one_server_do_not_meet(redis_space: RedisSpace) -> None:
    with redis_space.client() as client:
        one = RedisStore(client, prefix=redis_space.prefix)
        other = RedisStore(client, prefix=f"{redis_space.prefix}-2")
        insert(one, 2)

        assert len(one.jobs.list()) == 2
        assert other.jobs.list() == []


@pytest.mark.parametrize("prefix", ["a{b", "a}", "{a}", "", "x" * 129, "line\nbreak"])
def test_a_prefix_that_could_move_the_slot_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidNameError, match="prefix"):
        Threadmill.redis(Redis(), prefix)


def test_a_client_that_cannot_serve_is_refused_with_the_cure() -> None:
    single: Any = Redis()
    single.connection = single.connection_pool.make_connection()  # as single_connection_client
    refused: list[tuple[Any, str]] = [
        (AsyncRedis(), "aenqueue_many"),
        (Redis(protocol=3, cache_config=CacheConfig()), "client-side cache"),
        (Redis().pipeline(), "pipeline"),
        (RedisCluster.__new__(RedisCluster), "one hash slot"),
        ("redis://localhost", "redis.Redis"),
        (single, "single connection"),
    ]
    for client, words in refused:
        with pytest.raises(UnsupportedStoreError, match=words):
            Threadmill.redis(client)


def test_a_store_is_described_without_its_password() -> None:
    client = Redis.from_url("redis://user:secret@host.example:7000/3")

    assert RedisStore(client).describe() == "redis host.example:7000 db 3 prefix 'threadmill'"


def test_nobody_at_the_address_is_an_outage() -> None:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    with Redis(unix_socket_path="/nowhere/at-all", retry=Retry(NoBackoff(), 0)) as client:
        tm = Threadmill.redis(client)
        with pytest.raises(StoreUnavailableError, match="/nowhere/at-all"):
            tm.nudge("pump")


def test_a_user_without_rights_is_told_so(redis_space: RedisSpace) -> None:
    user = f"tm-{redis_space.prefix}"
    with redis_space.client() as admin:
        admin.acl_setuser(user, enabled=True, nopass=True, keys=["other:*"], commands=["+@all"])
        try:
            with (
                redis_space.store(username=user, password="x") as store,
                pytest.raises(StoreAccessError, match="refused access"),
            ):
                insert(store)
        finally:
            admin.acl_deluser(user)


@pytest.mark.parametrize("options", [{}, {"password": "wrong"}, {"protocol": 2}])
def test_a_wrong_password_is_named_as_the_cause(options: dict[str, Any]) -> None:
    with valkey_process() as server:
        with connect(server.url) as admin:
            admin.config_set("requirepass", "right")
        with connect(server.url, **options) as client:
            store = RedisStore(client)
            for call in (store.check_ready, lambda: insert(store)):
                with pytest.raises(StoreAccessError, match="the username and password"):
                    call()


def test_a_database_that_is_not_there_is_named_as_the_cause() -> None:
    with valkey_process() as server, connect(server.url.replace("db=0", "db=99")) as client:
        store = RedisStore(client)
        for call in (store.check_ready, lambda: insert(store)):
            with pytest.raises(UnsupportedStoreError, match=r"db 99 .* no such database"):
                call()


def test_applications_that_share_a_prefix_run_their_own_jobs_alone(
    redis_space: RedisSpace,
) -> None:
    """Two that set none share it: each takes the jobs of its own handlers, and no other's."""
    ran: list[str] = []
    with redis_space.client() as client:
        shop = Threadmill.redis(client, redis_space.prefix)
        blog = Threadmill.redis(client, redis_space.prefix)
        shop.job("ship")(lambda: ran.append("ship"))
        blog.job("publish")(lambda: ran.append("publish"))
        shop.recurring("shipping", "ship", Every(minutes=10))
        blog.recurring("publishing", "publish", Every(minutes=10))
        shop.register()
        blog.register()
        for name in ("shipping", "publishing"):
            shop.nudge(name)

        assert shop.run_until_idle() == 1
        assert ran == ["ship"]
        assert blog.run_until_idle() == 1
        assert ran == ["ship", "publish"]
        shop.close()
        blog.close()
    check_books(redis_space)


def test_a_user_with_our_keys_and_channel_alone_can_do_everything(redis_space: RedisSpace) -> None:
    user = f"tm-{redis_space.prefix}"
    ours = f"{{{redis_space.prefix}}}:*"
    with redis_space.client() as admin:
        admin.acl_setuser(
            user, enabled=True, nopass=True, keys=[ours], channels=[ours], commands=["+@all"]
        )
        try:
            with redis_space.client(username=user, password="x") as client:
                tm = Threadmill.redis(client, redis_space.prefix)
                tm.job("work")(lambda: None)
                tm.recurring("pump", "work", Every(minutes=10))
                tm.register()
                tm.nudge("pump")
                assert tm.run_until_idle() == 1
                tm.close()
        finally:
            admin.acl_deluser(user)


def test_a_key_that_holds_something_else_is_named(redis_space: RedisSpace) -> None:
    with redis_space.client() as client, redis_space.store() as store:
        client.set(redis_space.names()[0], "not ours")
        with pytest.raises(StoreInvariantError, match="prefix of its own"):
            insert(store)


def test_with_a_session_the_write_waits_for_the_commit(redis_space: RedisSpace) -> None:
    engine = create_engine("sqlite://")
    with redis_space.client() as client:
        tm = Threadmill.redis(client, redis_space.prefix)
        tm.job("work")(lambda: None)
        tm.recurring("pump", "work", Every(minutes=10))
        tm.register()
        with Session(engine) as session, session.begin():
            receipt = tm.nudge("pump", session)
            tm.enqueue("work", session=session)
            before = tm.get_recurring("pump").nudge_revisions, len(tm.list_jobs())
        after = tm.get_recurring("pump").nudge_revisions, len(tm.list_jobs())
        with Session(engine) as session, session.begin() as transaction:
            tm.nudge("pump", session)
            tm.enqueue("work", session=session)
            transaction.rollback()
        rolled_back = tm.get_recurring("pump").nudge_revisions, len(tm.list_jobs())
        tm.close()
    engine.dispose()

    assert receipt.mode == "after_commit"
    assert before == (frozenset(), 0)
    assert (len(after[0]), after[1]) == (1, 1)
    assert rolled_back == after


def test_joining_is_refused_and_the_session_stays_usable(redis_space: RedisSpace) -> None:
    engine = create_engine("sqlite://")
    with redis_space.client() as client:
        tm = Threadmill.redis(client, redis_space.prefix)
        with Session(engine) as session, session.begin():
            with pytest.raises(CannotJoinError, match="after_commit"):
                tm.nudge("pump", session, mode="join_transaction")
            with pytest.raises(UnknownTaskError):
                tm.nudge("pump", session)
            session.connection().exec_driver_sql("select 1")
        tm.close()
    engine.dispose()


@pytest.mark.parametrize("pool", [ConnectionPool, BlockingConnectionPool])
@pytest.mark.parametrize("most", [1, POOL_MIN - 1])
def test_a_pool_that_is_too_small_for_a_node_is_refused_when_it_starts(
    redis_space: RedisSpace, pool: type[ConnectionPool], most: int
) -> None:
    with Redis(connection_pool=pool.from_url(redis_space.url, max_connections=most)) as client:
        tm = Threadmill.redis(client, redis_space.prefix)
        tm.job("work")(lambda: None)
        with pytest.raises(UnsupportedStoreError, match=rf"{most}: a node needs {POOL_MIN}"):
            tm.node().start()
        with pytest.raises(UnsupportedStoreError):
            tm.run_until_idle()
        tm.close()


@pytest.mark.parametrize("pool", [ConnectionPool, BlockingConnectionPool])
def test_the_smallest_pool_serves_a_node_that_does_everything_at_once(
    redis_space: RedisSpace, pool: type[ConnectionPool]
) -> None:
    connections = pool.from_url(redis_space.url, max_connections=POOL_MIN)
    with Redis(connection_pool=connections) as client, redis_space.client() as producer:
        tm = Threadmill.redis(client, redis_space.prefix)
        done = threading.Semaphore(0)
        tm.job("work")(done.release)
        tm.recurring("pump", "work", Every(minutes=10))
        outside = Threadmill.redis(producer, redis_space.prefix)
        outside.job("work")(lambda: None)
        with tm.node(workers=4, heartbeat=0.05, heartbeat_timeout=5.0, poll=0.01, tick=0.01):
            leases = tm.store.leases
            assert leases is not None
            unwatch = leases.watch("a", lambda: None)
            ids = [outside.enqueue("work") for _ in range(100)]
            outside.nudge("pump")
            for _ in range(len(ids) + 1):
                assert done.acquire(timeout=30.0)
            unwatch()
        outside.close()
        tm.close()
    check_books(redis_space)


def test_calls_that_follow_each_other_need_one_connection(redis_space: RedisSpace) -> None:
    """The thread that sends a wake has the pool's only connection for a moment."""
    pool = ConnectionPool.from_url(redis_space.url, max_connections=1)
    with Redis(connection_pool=pool) as client, redis_space.client() as other:
        tm = Threadmill.redis(client, redis_space.prefix)
        tm.job("work")(lambda: None)
        for _ in range(200):
            tm.enqueue("work")
        tm.close()
        assert len(RedisStore(other, prefix=redis_space.prefix).jobs.list(limit=500)) == 200


def test_a_pool_that_stays_exhausted_is_an_outage_that_names_it(redis_space: RedisSpace) -> None:
    pool = ConnectionPool.from_url(redis_space.url, max_connections=1)
    with Redis(connection_pool=pool) as client:
        store = RedisStore(client, prefix=redis_space.prefix)
        held = pool.get_connection()
        with pytest.raises(StoreUnavailableError, match=r"all 1 connections .* max_connections"):
            insert(store)
        pool.release(held)
        insert(store)


def test_a_batch_that_the_server_does_not_take_is_told_with_its_size() -> None:
    with valkey_process() as server, connect(server.url) as client:
        client.config_set("client-query-buffer-limit", "1mb")
        tm = Threadmill.redis(client)
        tm.job("work")(lambda text: text)
        with pytest.raises(StoreUnavailableError, match=r"had 3 MB.*smaller batches"):
            tm.enqueue_many([("work", "x" * 100_000)] * 30)
        tm.enqueue_many([("work", "x")] * 3)
        assert len(tm.list_jobs()) == 3
        tm.close()


def test_a_mode_that_cannot_be_served_is_refused_at_construction() -> None:
    with pytest.raises(CannotJoinError, match=r"'join_transaction'.*redis.*'after_commit'"):
        Threadmill.redis(Redis(), enqueue_mode="join_transaction")


def test_instants_beyond_what_a_number_holds_are_kept(redis_store: RedisStore) -> None:
    from datetime import UTC, datetime

    far = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    old = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    job: NewJob = new_job(run_at=far, fire_time=old)

    redis_store.jobs.insert([job], now=T0)

    stored = redis_store.jobs.get(job.id)
    assert stored is not None
    assert (stored.scheduled_at, stored.fire_time) == (far, old)
    assert redis_store.jobs.promote(limit=10, now=T0) == 0


_FORKS = """
import os, sys, threading, warnings
from redis import Redis
from threadmill_sa import Every, Threadmill

warnings.simplefilter("ignore")
client = Redis.from_url(sys.argv[1])
tm = Threadmill.redis(client, sys.argv[2])
tm.job("work")(lambda: None)
tm.recurring("pump", "work", Every(minutes=10))
tm.register()
heard = threading.Event()
tm.store.wakes.listen(heard.set)
tm.store.leases.watch("a", lambda: None)
lease = tm.store.leases.acquire("a", "parent", ttl_seconds=60, timeout_seconds=5).lease
tm.nudge("pump")
assert heard.wait(10)
child = os.fork()
if child == 0:
    again = threading.Event()
    tm.store.wakes.listen(again.set)
    tm.nudge("pump")
    held = tm.store.leases.acquire("a", "child", ttl_seconds=60, timeout_seconds=5)
    os._exit(0 if again.wait(10) and held.lease == lease and tm.run_until_idle() == 1 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert tm.store.leases.renew(lease, ttl_seconds=60, timeout_seconds=5) == "renewed"
assert tm.list_jobs()[0].state == "SUCCEEDED"
tm.close()
"""


def test_a_forked_child_uses_nothing_of_its_parent(redis_space: RedisSpace) -> None:
    command = [sys.executable, "-c", _FORKS, redis_space.url, redis_space.prefix]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    check_books(redis_space)
