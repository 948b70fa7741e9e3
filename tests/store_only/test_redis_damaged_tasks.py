"""Recurring tasks, nodes and leases that a hand has deleted or damaged: each stops only itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import check_books
from threadmill_sa import Cron, JobContext, Threadmill
from threadmill_sa.errors import StoreInvariantError, UnknownTaskError
from threadmill_sa.model.job import NodeId
from threadmill_sa.model.node import NodeInfo
from threadmill_sa.spi.recurring import TickResult
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing import ManualClock
from threadmill_sa.testing.suite.tools import new_node

T0 = datetime(2027, 1, 4, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Host:
    """A process with two hourly tasks, and a hand on the keys of the one named `bad`."""

    def __init__(self, client: Redis, space: RedisSpace) -> None:
        self._client: Any = client
        self._space = space
        self.name = KeySpace(space.prefix).name
        self.clock = ManualClock(T0)
        self.ran: list[str | None] = []
        self.tm = self.start()

    def start(self) -> Threadmill:
        tm = Threadmill.redis(self._client, self._space.prefix, clock=self.clock)

        @tm.job("work")
        def work(ctx: JobContext) -> None:
            self.ran.append(ctx.cron_task_name)

        for name in ("bad", "good"):
            tm.recurring(name, work, Cron("0 * * * *"))
        return tm

    def tick(self) -> dict[str, TickResult]:
        return {outcome.name: outcome.result for outcome in self.tm.tick()}

    def write(self, kind: str, value: bytes | None) -> None:
        if value is None:
            assert self._client.hdel(self.name("tasks"), f"{kind}:bad") == 1
        else:
            self._client.hset(self.name("tasks"), f"{kind}:bad", value)

    def edit(self, kind: str, field: str, value: object) -> None:
        kept = msgspec.json.decode(self._client.hget(self.name("tasks"), f"{kind}:bad"))
        assert field in kept
        self.write(kind, msgspec.json.encode(kept | {field: value}))

    def add(self, key: str, member: bytes) -> None:
        self._client.zadd(self.name(key), {member: 0})

    def members(self, key: str) -> list[bytes]:
        found: list[bytes] = self._client.zrange(self.name(key), 0, -1)
        return found


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "threadmill_sa")


@pytest.fixture
def host(redis_client: Redis, redis_space: RedisSpace) -> Iterator[Host]:
    host = Host(redis_client, redis_space)
    host.tm.run_until_idle()
    yield host
    host.tm.close()


DAMAGES: list[tuple[str, bytes | None]] = [
    ("d", b"junk"),
    ("d", b"\xff\xfe"),
    ("d", b"{}"),
    ("d", None),
    ("g", b"junk"),
    ("g", b"1:many"),
    ("g", None),
    ("s", b"[]"),
    ("s", b'{"next_run_at": 99999999999999999999}'),
    ("s", b'{"next_run_at": "soon"}'),
    ("s", None),
]


@pytest.mark.parametrize(("kind", "value"), DAMAGES)
def test_a_damaged_task_is_broken_alone_and_told_once(
    host: Host, caplog: pytest.LogCaptureFixture, kind: str, value: bytes | None
) -> None:
    host.write(kind, value)
    host.clock.advance(HOUR)

    assert host.tick() == {"bad": TickResult.BROKEN, "good": TickResult.MATERIALIZED}
    host.tick()

    assert ["'bad'" in line for line in caplog.messages if "append-only" not in line] == [True]
    assert [task.name for task in host.tm.list_recurring()] == ["good"]
    with pytest.raises(StoreInvariantError, match="'bad' is damaged") as told:
        host.tm.get_recurring("bad")
    assert told.value.task == "bad"


@pytest.mark.parametrize(("kind", "value"), DAMAGES)
def test_a_process_that_declares_the_damaged_task_mends_it(
    host: Host, redis_space: RedisSpace, kind: str, value: bytes | None
) -> None:
    host.write(kind, value)
    host.clock.advance(HOUR)

    assert host.tm.register() == {"bad": "updated", "good": "unchanged"}

    host.clock.advance(HOUR)
    host.tm.run_until_idle()
    assert sorted(filter(None, host.ran)) == ["bad", "good"]
    check_books(redis_space)


def test_a_paused_task_with_a_damaged_definition_stays_paused_when_it_is_mended(
    host: Host,
) -> None:
    host.tm.set_enabled("bad", False)
    host.write("d", b"junk")

    host.tm.register()

    assert not host.tm.get_recurring("bad").enabled


def test_a_fire_that_was_due_is_not_lost_with_the_definition(host: Host) -> None:
    host.clock.advance(HOUR)
    host.write("d", b"junk")
    host.tm.tick()

    host.tm.register()
    host.tm.run_until_idle()

    assert sorted(filter(None, host.ran)) == ["bad", "good"]


def test_a_damaged_task_can_be_deleted(host: Host, redis_space: RedisSpace) -> None:
    host.write("d", b"junk")

    host.tm.delete_recurring("bad")

    with pytest.raises(UnknownTaskError):
        host.tm.get_recurring("bad")
    check_books(redis_space)


def test_a_task_with_a_damaged_field_names_it(host: Host) -> None:
    host.edit("d", "priority", "high")

    with pytest.raises(StoreInvariantError, match=r"definition: .*priority"):
        host.tm.get_recurring("bad")


@pytest.mark.parametrize("key", ["due", "nudged"])
@pytest.mark.parametrize("member", [b"\xff\xfe", b"nobody"])
def test_a_name_of_no_task_is_taken_out_and_told_once(
    host: Host, redis_space: RedisSpace, caplog: pytest.LogCaptureFixture, key: str, member: bytes
) -> None:
    host.add(key, member)
    host.clock.advance(HOUR)

    outcomes = host.tick()
    host.tick()

    assert outcomes["bad"] == outcomes["good"] == TickResult.MATERIALIZED
    assert member not in host.members(key)
    [line] = [line for line in caplog.messages if "append-only" not in line]
    assert host.name(key) in line
    assert member.decode(errors="backslashreplace") in line.replace("\\\\", "\\")
    check_books(redis_space)


def test_a_name_that_is_registered_meanwhile_is_not_taken_out(
    redis_store: RedisStore, redis_client: Any, redis_space: RedisSpace
) -> None:
    """Between the reading of an unknown name and its end somebody registers the task."""
    host = Host(redis_client, redis_space)
    host.tm.register()

    assert (
        redis_store._gateway.run("task_forget", names=msgspec.msgpack.encode([["bad", False]]))
        == []
    )

    assert b"bad" in host.members("due")
    host.tm.close()


def test_a_nudge_of_a_damaged_task_is_served_when_it_is_mended(host: Host) -> None:
    host.write("d", b"junk")
    host.tm.nudge("bad")
    host.tm.run_until_idle()
    assert host.ran == []

    host.tm.register()
    host.tm.run_until_idle()

    assert host.ran == ["bad"]


@pytest.mark.parametrize("info", [b"junk", None])
def test_a_damaged_node_is_left_out_of_a_listing(
    redis_store: RedisStore, redis_client: Any, redis_space: RedisSpace, info: bytes | None
) -> None:
    node, other = (NodeInfo(new_node(), "host", 1, None, 2) for _ in range(2))
    for each in (node, other):
        redis_store.nodes.beat(each, [])
    nodes = KeySpace(redis_space.prefix).name("nodes")
    if info is None:
        redis_client.hdel(nodes, f"{node.id.hex}:info")
    else:
        redis_client.hset(nodes, f"{node.id.hex}:info", info)
    redis_client.zadd(KeySpace(redis_space.prefix).name("beats"), {b"\xff": 1})

    assert [view.id for view in redis_store.nodes.list()] == [other.id]
    redis_store.nodes.beat(node, [])
    redis_store.nodes.remove_stale(older_than_seconds=60.0)
    listed: list[NodeId] = [view.id for view in redis_store.nodes.list()]
    assert listed == [node.id, other.id]


@pytest.mark.parametrize("packed", [b"junk", b"\x91\xc0", b"\xff"])
def test_a_damaged_lease_is_left_out_of_a_listing_and_refuses_alone(
    redis_store: RedisStore, redis_client: Any, redis_space: RedisSpace, packed: bytes
) -> None:
    leases = redis_store.leases
    assert leases is not None
    leases.acquire("good", "me", ttl_seconds=30.0, timeout_seconds=5.0)
    redis_client.hset(KeySpace(redis_space.prefix).name("leases"), "bad", packed)

    assert [view.name for view in leases.list()] == ["good"]
    assert leases.peek("bad") is None
    with pytest.raises(StoreInvariantError):
        leases.acquire("bad", "me", ttl_seconds=30.0, timeout_seconds=5.0)
    assert leases.acquire("other", "me", ttl_seconds=30.0, timeout_seconds=5.0).lease.term == 1
