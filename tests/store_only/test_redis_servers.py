"""Servers that cannot keep the promises are refused; those that come back have kept them."""

from __future__ import annotations

import logging
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from redis.sentinel import Sentinel

from tests.fixtures.valkey import RedisSpace, ValkeyProcess, connect, valkey_process
from tests.store_only.redis_books import check_books
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import (
    StoreInvariantError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.stores.redis import gateway
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    insert,
    new_node,
    new_task,
    nudge,
    one_instance,
    outcome,
    run_all,
    view,
)

PREFIX = "shop"


@contextmanager
def store_on(server: ValkeyProcess) -> Iterator[RedisStore]:
    with RedisSpace(server.url, PREFIX).store() as store:
        yield store


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_evicting_server_is_refused_unless_it_is_trusted(policy: str) -> None:
    options = ("--maxmemory", "50mb", "--maxmemory-policy", policy)
    with valkey_process(*options) as server, connect(server.url) as client:
        with pytest.raises(UnsupportedStoreError, match=policy):
            RedisStore(client).check_ready()
        RedisStore(client, trust_memory_policy=True).check_ready()


def test_the_check_comes_before_a_node_starts_and_not_with_a_nudge() -> None:
    with valkey_process("--maxmemory-policy", "allkeys-lru") as server, connect(server.url) as c:
        tm = Threadmill.redis(c, PREFIX)
        tm.job("work")(lambda: None)
        tm.recurring("pump", "work", Every(minutes=10))
        tm.register()
        tm.nudge("pump")
        with pytest.raises(UnsupportedStoreError, match="allkeys-lru"):
            tm.run_until_idle()
        with pytest.raises(UnsupportedStoreError, match="allkeys-lru"), tm.node():
            pass
        tm.close()


def test_a_server_without_an_append_only_file_is_advised(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "threadmill_sa.redis")
    with valkey_process() as server, store_on(server) as store:
        store.check_ready()
    assert "appendonly yes" in caplog.text
    caplog.clear()
    with valkey_process("--appendonly", "yes") as server, store_on(server) as store:
        store.check_ready()
    assert caplog.text == ""


class _OldServer(socketserver.StreamRequestHandler):
    """Speaks as much of the protocol as a client needs to ask for INFO."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            parts = []
            for _ in range(int(line[1:])):
                length = int(self.rfile.readline()[1:])
                parts.append(self.rfile.read(length + 2)[:-2])
            if parts[0].upper() == b"INFO":
                text = b"redis_version:6.0.20\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(text), text))
            else:
                self.wfile.write(b"+OK\r\n")


def test_a_server_that_is_too_old_is_refused() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with (
            Redis(port=server.server_address[1], protocol=2) as client,
            pytest.raises(UnsupportedStoreError, match=r"version 6\.0\.20"),
        ):
            RedisStore(client).check_ready()
        server.shutdown()


@contextmanager
def replica_of(primary: ValkeyProcess) -> Iterator[ValkeyProcess]:
    """A server that has caught up with `primary` and follows it."""
    with valkey_process("--replicaof", "127.0.0.1", str(_port(primary))) as replica:
        with connect(primary.url) as client:
            client.set("something", "to follow")
            assert client.wait(1, 30_000) == 1
        yield replica


def _port(server: ValkeyProcess) -> int:
    with connect(server.url, decode_responses=True) as client:
        return int(client.config_get("port")["port"])


@contextmanager
def primary_server(*options: str) -> Iterator[ValkeyProcess]:
    """A server that also listens on a port, which replicas need."""
    with valkey_process("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0", *options) as it:
        with connect(it.url) as client:
            client.config_set("port", _free_port())
        yield it


def _free_port() -> int:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as probe:
        return int(probe.server_address[1])


def test_a_replica_is_refused() -> None:
    with primary_server() as primary, replica_of(primary) as it, store_on(it) as store:
        with pytest.raises(UnsupportedStoreError, match="is a replica"):
            store.check_ready()
        with pytest.raises(StoreUnavailableError, match="read only"):
            insert(store)


def test_a_promoted_replica_goes_on_where_the_primary_ended() -> None:
    with primary_server() as primary, replica_of(primary) as replica:
        node = new_node()
        with connect(primary.url) as client:
            store = RedisStore(client, prefix=PREFIX)  # WAIT is for the writes of its connection
            store.recurring.register(new_task(), now=T0)
            old = nudge(store)
            insert(store, 3)
            held = claim(store, node, 2)
            assert client.wait(1, 30_000) == 1
            with connect(replica.url) as follower:
                follower.replicaof("NO", "ONE")
            # Accepted by the old primary alone: what asynchronous replication may lose.
            nudge(store)
            insert(store)
            store.jobs.finish(node, [outcome(held[0])], now=T0)
        primary.kill()

        with store_on(replica) as store:
            store.check_ready()
            assert store.jobs.counts()[JobState.PROCESSING] == 2
            assert view(store).nudge_revisions == {old}
            check_books(RedisSpace(replica.url, PREFIX))
            # The claims come back by their silence, the nudge is served, and nothing is stuck.
            ended = store.jobs.reclaim(
                lambda orphan: outcome(next(job for job in held if job.id == orphan.id)),
                silent_since=AFTER_ALL,
                limit=10,
                now=T0,
            )
            [done] = store.recurring.materialize(["pump"], one_instance, now=T0)
            run_all(store)
            assert (len(ended), done.result) == (2, TickResult.MATERIALIZED)
            assert store.jobs.counts()[JobState.SUCCEEDED] == 4
            assert nudge(store) != old
            check_books(RedisSpace(replica.url, PREFIX))


def test_a_primary_that_sentinel_names_is_used() -> None:
    port = _free_port()
    with (
        primary_server() as primary,
        valkey_process(
            "--port", str(port), sentinel=f"sentinel monitor shop 127.0.0.1 {_port(primary)} 1"
        ),
    ):
        sentinel = Sentinel([("127.0.0.1", port)])
        with sentinel.master_for("shop", decode_responses=True) as client:
            tm = Threadmill.redis(client, PREFIX)
            tm.job("work")(lambda: None)
            tm.recurring("pump", "work", Every(minutes=10))
            tm.register()
            tm.nudge("pump")
            assert tm.run_until_idle() == 1
            leases = tm.store.leases
            assert leases is not None
            answer = leases.acquire("a", "me", ttl_seconds=30.0, timeout_seconds=5.0)
            assert answer.lease.term == 1
            assert tm.store.describe() == "redis sentinel service shop db 0 prefix 'shop'"
            tm.close()
        for each in sentinel.sentinels:
            each.close()
        check_books(RedisSpace(primary.url, PREFIX))


def test_a_write_can_wait_for_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    with primary_server() as primary, connect(primary.url) as client:
        store = RedisStore(client, prefix=PREFIX, wait_replicas=1)
        store.recurring.register(new_task(), now=T0)
        with pytest.raises(StoreUnavailableError, match="0 of 1 replicas"):
            nudge(store)
        assert len(view(store).nudge_revisions) == 1  # written all the same

        with replica_of(primary) as replica, store_on(replica) as follower:
            monkeypatch.setattr(gateway, "WAIT_REPLICAS_SECONDS", 30.0)  # on a busy machine
            # The script is unknown in the middle of what was sent at once.
            client.script_flush()
            revision = nudge(store)
            [job] = insert(store)

            assert view(follower).nudge_revisions == {revision}
            assert follower.jobs.get(job.id) is not None
            with pytest.raises(StoreInvariantError):
                store.jobs.insert([job])
            assert client.ping()


def test_a_killed_server_comes_back_with_all_it_acknowledged() -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey_process(*options) as server, store_on(server) as store:
        store.recurring.register(new_task(), now=T0)
        insert(store, 5, payload='"kept"')
        [first, second] = claim(store, node := new_node(), 2)
        store.jobs.finish(node, [outcome(first)], now=T0)
        revision = nudge(store)
        before = store.recurring.list(), store.jobs.list(), store.jobs.counts()

        server.kill()
        with pytest.raises(StoreUnavailableError):
            nudge(store)
        server.start()

        assert (store.recurring.list(), store.jobs.list(), store.jobs.counts()) == before
        assert store.jobs.finish(node, [outcome(second)], now=T0) == ["recorded"]
        assert nudge(store) == revision + 1
        check_books(RedisSpace(server.url, PREFIX))


def test_a_server_that_is_full_refuses_the_write_and_serves_again_afterwards() -> None:
    with valkey_process() as server, store_on(server) as store, connect(server.url) as client:
        store.recurring.register(new_task(), now=T0)
        client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreUnavailableError, match="memory"):
            insert(store, payload='"' + "x" * 200_000 + '"')
        with pytest.raises(StoreUnavailableError):
            nudge(store)
        assert store.jobs.list() == []
        client.config_set("maxmemory", "0")

        insert(store)

        assert store.recurring.request_cron_nudge("pump").verdict is NudgeVerdict.ACCEPTED
        check_books(RedisSpace(server.url, PREFIX))


def test_in_cluster_mode_no_script_leaves_its_slot() -> None:
    options = ("--port", str(_free_port()), "--cluster-enabled", "yes")
    bus = ("--cluster-port", str(_free_port()))  # its own choice may be above the highest port
    with valkey_process(*options, *bus) as server, connect(server.url) as client:
        slot = client.execute_command("CLUSTER KEYSLOT", f"{{{PREFIX}}}:rows")
        client.config_set("cluster-require-full-coverage", "no")
        with store_on(server) as store, pytest.raises(StoreUnavailableError):
            insert(store)  # the slot is nobody's yet
        client.execute_command("CLUSTER ADDSLOTS", slot)
        _until_it_serves(client)
        with pytest.raises(ResponseError):
            client.get("{another}:key")

        with store_on(server) as store:
            store.check_ready()
            store.recurring.register(new_task("{another}", queue="{b}"), now=T0)
            nudge(store, name="{another}")
            assert store.recurring.nominate(after=None, limit=9, now=T0) == ["{another}"]
            store.recurring.materialize(["{another}"], one_instance, now=T0)
            insert(store, 3, delay_seconds=0.0)
            store.jobs.promote(limit=10, now=T0)
            assert len(run_all(store)) == 4
            assert len(store.recurring.list()) == 1
            assert store.recurring.delete("{another}")
        check_books(RedisSpace(server.url, PREFIX))


def _until_it_serves(client: Redis) -> None:
    pause = threading.Event()
    for _ in range(500):
        if client.execute_command("CLUSTER INFO")["cluster_state"] == "ok":
            return
        pause.wait(0.02)
    raise AssertionError("the cluster does not serve")


def test_foreign_keys_are_neither_read_nor_touched() -> None:
    with valkey_process() as server, connect(server.url) as client, store_on(server) as store:
        client.mset({f"foreign:{number}": number for number in range(1000)})
        store.recurring.register(new_task(), now=T0)
        nudge(store)
        store.recurring.materialize(["pump"], one_instance, now=T0)
        run_all(store)
        commands = client.info("commandstats")
        ours = {key.decode() for key in client.keys("*") if not key.startswith(b"foreign:")}

    assert {"cmdstat_keys", "cmdstat_scan"}.isdisjoint(commands)
    assert ours <= set(RedisSpace(server.url, PREFIX).names())
