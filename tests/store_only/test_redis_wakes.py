"""Wakes by publish and subscribe, and what happens when the listener is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from tests.fixtures.valkey import RedisSpace
from threadmill_sa import Every, Threadmill
from threadmill_sa.stores.redis.wakes import RedisWakes

WAIT_SECONDS = 30.0


class Ear:
    """Counts wakes and waits for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_beyond(self, count: int) -> int:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count > count, WAIT_SECONDS)
            return self.count


def _quietly(ear: Ear, send: Callable[[], None]) -> None:
    before = ear.count
    send()
    ear.wait_beyond(before)


def test_a_wake_reaches_the_listeners_of_every_process(redis_space: RedisSpace) -> None:
    with redis_space.store() as one, redis_space.store() as other, redis_space.store() as third:
        ears = Ear(), Ear()
        for store, ear in zip((one, other), ears, strict=True):
            assert store.wakes is not None
            store.wakes.listen(ear)
            ear.wait_beyond(0)  # the confirmation
        assert third.wakes is not None
        third.wakes.notify()

        assert [ear.wait_beyond(1) for ear in ears] == [2, 2]


def test_a_burst_is_few_wakes_and_its_last_is_not_lost(redis_space: RedisSpace) -> None:
    with redis_space.store() as one, redis_space.store() as other:
        assert one.wakes is not None
        assert other.wakes is not None
        ear = Ear()
        one.wakes.listen(ear)
        ear.wait_beyond(0)
        for _ in range(10_000):
            other.wakes.notify()
        ear.wait_beyond(1)
        _quietly(ear, other.wakes.notify)

        assert ear.count < 1000


def test_a_channel_can_be_used_again_after_its_end(redis_space: RedisSpace) -> None:
    with redis_space.store() as store:
        wakes, ear = store.wakes, Ear()
        assert wakes is not None
        for _ in range(2):
            wakes.listen(ear)
            ear.wait_beyond(ear.count)
            _quietly(ear, wakes.notify)
            wakes.close()
        assert "threadmill-wake-listener" not in {each.name for each in threading.enumerate()}


def test_a_lost_listener_is_built_again(
    redis_space: RedisSpace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "threadmill_sa.wakes")
    with redis_space.client() as admin, redis_space.client(client_name="listener") as client:
        wakes, ear = RedisWakes(client, f"{{{redis_space.prefix}}}:wakes"), Ear()
        wakes.listen(ear)
        heard = ear.wait_beyond(0)
        for each in admin.client_list(_type="pubsub"):
            if each["name"] == "listener":
                admin.client_kill_filter(_id=each["id"])
        heard = ear.wait_beyond(heard)
        _quietly(ear, wakes.notify)
        wakes.close()


def test_a_wake_alone_starts_jobs_and_nudges_of_another_client(redis_space: RedisSpace) -> None:
    with redis_space.client() as near, redis_space.client() as far:
        node, producer = (Threadmill.redis(each, redis_space.prefix) for each in (near, far))
        done = threading.Semaphore(0)
        for tm in (node, producer):
            tm.job("work")(done.release)
        node.recurring("pump", "work", Every(minutes=10))
        with node.node(workers=1, tick=100, poll=100):
            producer.enqueue("work")
            assert done.acquire(timeout=WAIT_SECONDS)
            producer.nudge("pump")
            assert done.acquire(timeout=WAIT_SECONDS)
        node.close()
        producer.close()
