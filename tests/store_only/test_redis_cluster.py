"""A cluster of three: our keys are served by one of its nodes, wherever names would lead them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from redis import Redis, RedisCluster
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.fixtures.valkey import RedisSpace, ValkeyProcess, connect, valkey_process
from tests.store_only.redis_books import check_books
from threadmill_sa import Every, JobContext, Threadmill
from threadmill_sa.errors import UnsupportedStoreError
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import insert

NODES = 3
START_SECONDS = 60.0
WAIT_SECONDS = 30.0
PREFIX = "shop"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running nodes that have met and share all slots in equal ranges."""

    nodes: list[ValkeyProcess]
    ports: list[int]

    @property
    def owner(self) -> int:
        """The node that serves our slot."""
        slot = key_slot(f"{{{PREFIX}}}:rows".encode())
        return slot * NODES // REDIS_CLUSTER_HASH_SLOTS

    @property
    def others(self) -> list[int]:
        return [number for number in range(NODES) if number != self.owner]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ports = _free_ports(2 * NODES)
    served, buses = ports[:NODES], ports[NODES:]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                valkey_process(
                    *("--port", str(port), "--bind", "127.0.0.1"),
                    *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
                )
            )
            for port, bus in zip(served, buses, strict=True)
        ]
        clients = [stack.enter_context(connect(node.url)) for node in nodes]
        bounds = [-(-REDIS_CLUSTER_HASH_SLOTS * number // NODES) for number in range(NODES + 1)]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", served[0], buses[0])
        _until_all_serve(clients)
        yield Cluster(nodes, served)


def _until_all_serve(clients: list[Redis]) -> None:
    pause = threading.Event()
    for _ in range(int(START_SECONDS / 0.05)):
        told = [client.execute_command("CLUSTER INFO") for client in clients]
        if all(
            each["cluster_state"] == "ok" and each["cluster_known_nodes"] == str(NODES)
            for each in told
        ):
            return
        pause.wait(0.05)
    raise AssertionError(f"the cluster does not serve: {told}")


def test_a_cluster_client_is_refused_with_the_cure(cluster: Cluster) -> None:
    with (
        RedisCluster(host="127.0.0.1", port=cluster.ports[0]) as client,
        pytest.raises(UnsupportedStoreError, match=r"one hash slot.*node that serves it"),
    ):
        Threadmill.redis(client, PREFIX)


def test_a_node_of_another_slot_is_refused_with_the_cure_and_has_no_key(cluster: Cluster) -> None:
    words = rf"not serve our hash slot: 127\.0\.0\.1:{cluster.ports[cluster.owner]} does"
    for number in cluster.others:
        with connect(cluster.nodes[number].url) as client:
            store = RedisStore(client, prefix=PREFIX)
            with pytest.raises(UnsupportedStoreError, match=words):
                insert(store)
            with pytest.raises(UnsupportedStoreError, match=words):
                store.check_ready()
            assert client.dbsize() == 0


def test_no_key_leaves_its_slot_and_wakes_cross_the_cluster(cluster: Cluster) -> None:
    names = ["{another}", "a}b{c", "plain"]
    done = threading.Semaphore(0)
    with Redis(host="127.0.0.1", port=cluster.ports[cluster.owner]) as client:
        tm = Threadmill.redis(client, PREFIX, record_nudges=True)
        ran: list[str | None] = []

        @tm.job("{work}", queue="{queue}")
        def work(ctx: JobContext) -> None:
            ran.append(ctx.cron_task_name)
            done.release()

        for name in names:
            tm.recurring(name, work, Every(hours=1))
        # Its ticks are far apart: what runs soon runs because of a wake.
        with tm.node(tick=WAIT_SECONDS * 2, poll=WAIT_SECONDS * 2), tm.leader("{lead}") as leader:
            assert leader is not None
            with connect(cluster.nodes[cluster.owner].url) as producer:
                outside = Threadmill.redis(producer, PREFIX)
                outside.nudge_many(names)
                for _ in names:
                    assert done.acquire(timeout=WAIT_SECONDS)
                outside.close()
        tm.close()
        ours = client.dbsize()
        slot = key_slot(f"{{{PREFIX}}}:rows".encode())
        assert client.execute_command("CLUSTER COUNTKEYSINSLOT", slot) == ours > 0
    assert sorted(filter(None, ran)) == sorted(names)
    for number in cluster.others:
        with connect(cluster.nodes[number].url) as client:
            assert client.dbsize() == 0
    check_books(RedisSpace(cluster.nodes[cluster.owner].url, PREFIX))
