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
from threadmill_sa.stores.redis import materializing
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing import ManualClock
from threadmill_sa.testing.suite.tools import BEFORE_ALL, new_node, new_task

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

    def count(self, value: str) -> None:
        self._client.hset(self.name("counters"), "t:bad", value)

    def counted(self) -> bytes | None:
        stored: bytes | None = self._client.hget(self.name("counters"), "t:bad")
        return stored

    def nudge_half(self, half: str) -> None:
        """Leave half of a pending nudge: its revision, or its request."""
        if half == "revision":
            self._client.zrem(self.name("nudged"), "bad")
        else:
            self._client.hdel(self.name("tasks"), "r:bad")

    def wipe(self, key: str) -> None:
        self._client.delete(self.name(key))

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


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "append-only" not in line]


NO_COUNTS = ["junk", "", "0", "-3", "5", "1", "01", "1.5", "9" * 30]


@pytest.mark.parametrize("value", NO_COUNTS)
def test_a_counter_that_no_instance_bears_out_stops_no_task(
    host: Host, redis_space: RedisSpace, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    host.count(value)
    host.clock.advance(HOUR)

    assert host.tm.run_until_idle() == 2
    host.clock.advance(HOUR)
    assert host.tm.run_until_idle() == 2

    assert sorted(filter(None, host.ran)) == ["bad", "bad", "good", "good"]
    [line] = told(caplog)
    assert "'bad'" in line
    assert repr(value) in line
    check_books(redis_space)


@pytest.mark.parametrize("value", NO_COUNTS[:4])
def test_a_counter_begins_anew_from_what_is_unfinished(
    host: Host, redis_space: RedisSpace, value: str
) -> None:
    """A run, asked for by hand or made by a tick, waits: it holds its task, and only so long."""
    host.count(value)
    host.tm.trigger("bad")
    host.clock.advance(HOUR)

    assert host.tick()["bad"] == TickResult.HELD
    assert host.counted() == b"1"
    check_books(redis_space)
    host.tm.run_until_idle()

    assert host.ran.count("bad") == 2
    check_books(redis_space)


@pytest.mark.parametrize("value", ["junk", "-3", "1.5"])
def test_a_counter_is_none_of_a_running_instance(host: Host, value: str) -> None:
    """While the instance waits, its task is held, and the counter can be counted on again."""
    host.tm.trigger("bad")
    host.count(value)
    host.tm.nudge("bad")

    assert host.tick()["bad"] == TickResult.HELD

    assert host.counted() == b"1"


def test_a_counter_is_counted_anew_though_old_instances_are_many(
    host: Host, redis_space: RedisSpace
) -> None:
    for _ in range(12):
        host.tm.nudge("bad")
        host.tm.run_until_idle()
    host.count("5")
    host.tm.nudge("bad")

    assert host.tm.run_until_idle() == 1
    check_books(redis_space)


def test_an_old_instance_that_is_unfinished_holds_its_task(
    host: Host, redis_space: RedisSpace
) -> None:
    """Younger ones have ended, so the newest instances do not bear the counter out."""
    jobs = [host.tm.trigger("bad") for _ in range(13)]
    for job in jobs[1:]:
        host.tm.delete_job(job)
    host.count("9")
    host.clock.advance(HOUR)

    assert host.tick()["bad"] == TickResult.HELD
    assert host.counted() == b"1"
    host.tm.run_until_idle()
    assert host.ran.count("bad") == 2
    check_books(redis_space)


def test_a_counter_that_may_be_right_is_not_checked_at_any_price(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materializing, "RECOUNT_MAX", 2)
    jobs = [host.tm.trigger("good") for _ in range(3)]
    host.count("5")
    host.clock.advance(HOUR)

    assert host.tick()["bad"] == TickResult.HELD
    host.tm.delete_job(jobs[0])
    assert host.tick()["bad"] == TickResult.MATERIALIZED


@pytest.mark.parametrize("half", ["revision", "request"])
def test_half_of_a_nudge_is_served_with_the_next_fire_and_told_once(
    host: Host, redis_space: RedisSpace, caplog: pytest.LogCaptureFixture, half: str
) -> None:
    host.tm.nudge("bad")
    host.nudge_half(half)
    host.clock.advance(HOUR)

    host.tm.run_until_idle()
    host.clock.advance(HOUR)
    host.tm.run_until_idle()

    assert host.ran.count("bad") == host.ran.count("good") == 2
    assert ["half of a pending nudge" in line for line in told(caplog)] == [True]
    check_books(redis_space)


@pytest.mark.parametrize("half", ["revision", "request"])
def test_half_of_a_nudge_is_made_whole_by_the_next_one(
    host: Host, redis_space: RedisSpace, half: str
) -> None:
    host.tm.nudge("bad")
    host.nudge_half(half)
    host.tm.nudge("bad")
    check_books(redis_space)

    host.tm.run_until_idle()

    assert host.ran == ["bad"]
    check_books(redis_space)


def test_a_nudge_by_the_servers_clock_makes_a_lost_request_anew(
    redis_store: RedisStore, redis_client: Any, redis_space: RedisSpace
) -> None:
    redis_store.recurring.register(new_task())
    redis_store.recurring.request_cron_nudge("pump")
    redis_client.delete(KeySpace(redis_space.prefix).name("nudged"))

    redis_store.recurring.request_cron_nudge("pump")

    assert redis_store.recurring.nominate(after=None, limit=1) == ["pump"]
    check_books(redis_space)


def test_a_nudge_whose_request_was_taken_is_found_by_a_registration(
    host: Host, redis_space: RedisSpace, caplog: pytest.LogCaptureFixture
) -> None:
    host.tm.nudge("bad")
    host.nudge_half("revision")

    assert host.tm.register() == {"bad": "updated", "good": "unchanged"}
    assert host.tm.register() == {"bad": "unchanged", "good": "unchanged"}
    host.tm.run_until_idle()

    assert host.ran == ["bad"]
    assert ["'bad'" in line for line in told(caplog)] == [True]
    check_books(redis_space)


def test_a_request_without_a_nudge_is_served(host: Host, redis_space: RedisSpace) -> None:
    host.add("nudged", b"bad")

    host.tm.run_until_idle()

    assert host.ran == ["bad"]
    check_books(redis_space)


@pytest.mark.parametrize("score", [1.5, float("inf"), -1e300])
def test_a_request_at_no_instant_is_served(
    host: Host, redis_space: RedisSpace, redis_client: Any, score: float
) -> None:
    host.tm.nudge("bad")
    redis_client.zadd(host.name("nudged"), {"bad": score})

    assert host.tm.get_recurring("bad").nudge_requested_at is None
    host.tm.run_until_idle()

    assert host.ran == ["bad"]
    check_books(redis_space)


def test_a_nudge_whose_revision_is_none_is_served(host: Host, redis_space: RedisSpace) -> None:
    host.tm.nudge("bad")
    host.write("r", b"junk")

    assert host.tm.get_recurring("bad").nudge_revisions == frozenset()
    host.tm.run_until_idle()

    assert host.ran == ["bad"]
    check_books(redis_space)


def test_tasks_that_were_wiped_with_a_pending_nudge_fire_again_after_a_registration(
    host: Host, redis_space: RedisSpace
) -> None:
    host.tm.nudge("bad")
    host.wipe("tasks")

    assert host.tm.register() == {"bad": "created", "good": "created"}
    host.tm.run_until_idle()
    host.clock.advance(HOUR)
    host.tm.run_until_idle()

    assert host.ran == ["bad", "bad", "good"]
    check_books(redis_space)


@pytest.mark.parametrize("at", [None, "+inf", "1"])
def test_a_task_that_no_tick_looks_for_is_put_back_by_a_registration(
    host: Host,
    redis_space: RedisSpace,
    redis_client: Any,
    caplog: pytest.LogCaptureFixture,
    at: str | None,
) -> None:
    if at is None:
        redis_client.zrem(host.name("due"), "bad")
    else:
        redis_client.zadd(host.name("due"), {"bad": at})

    assert host.tm.register() == {"bad": "updated", "good": "unchanged"}
    assert host.tm.register() == {"bad": "unchanged", "good": "unchanged"}

    check_books(redis_space)
    assert ["'bad'" in line for line in told(caplog)] == [True]
    host.clock.advance(HOUR)
    host.tm.run_until_idle()
    assert sorted(filter(None, host.ran)) == ["bad", "good"]


def test_a_paused_task_is_where_it_belongs(host: Host) -> None:
    host.tm.set_enabled("bad", False)

    assert host.tm.register() == {"bad": "unchanged", "good": "unchanged"}


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
    redis_store.nodes.remove_stale(silent_since=BEFORE_ALL)
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
