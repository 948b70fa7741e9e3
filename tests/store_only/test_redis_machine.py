"""The state machine of nudges on Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from redis import Redis
from sqlalchemy import Engine

from tests.fixtures.valkey import RedisSpace, fresh_space
from tests.stateful.machine import NudgeMachine
from tests.stateful.profiles import LONG, SHORT
from tests.stateful.test_nudge_machine import _small_bounds, release_one_job_again_and_again
from tests.stateful.timetable import STARTS
from tests.stateful.world import _create_rows, sqlite_sessions
from tests.store_only.redis_books import check_books
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing import ManualClock

__all__ = ["_small_bounds"]  # applies to every test here


class SilentStore(RedisStore):
    """Sends no wakes: they are hints, and would only start threads."""

    wakes = None


class RedisWorld:
    """Redis beside a database of the callers that knows nothing of it."""

    name = "redis"

    def __init__(self, space: RedisSpace, client: Redis, engine: Engine) -> None:
        self.engine = engine
        self.clock = ManualClock(STARTS[0])
        self.steps: Counter[str] = Counter()
        self._space, self._client = space, client
        self._stores = cycle(SilentStore(client, prefix=space.prefix) for _ in range(3))
        _create_rows(engine)

    def reset(self) -> None:
        check_books(self._space)  # of the example before
        self._client.delete(*self._space.names())

    def connect(self) -> JobStore:
        return next(self._stores)

    def state_rows(self) -> int | None:
        fields: Any = self._client.hkeys(self._space.names()[7])
        return len([field for field in fields if field.startswith(b"s:")])


@pytest.fixture
def world(redis_servers: Callable[[str], str], sqlite_url: str) -> Iterator[RedisWorld]:
    with (
        fresh_space(redis_servers("valkey")) as space,
        space.client() as client,
        sqlite_sessions(sqlite_url) as engine,
    ):
        yield RedisWorld(space, client, engine)


def search(world: RedisWorld, chosen: settings) -> None:
    factory: Any = lambda: NudgeMachine(world)  # noqa: E731 - annotated as a class there
    run_state_machine_as_test(factory, settings=chosen)


def test_every_promise_holds_after_every_step(world: RedisWorld) -> None:
    search(world, settings(SHORT, max_examples=6))


def test_a_job_that_moves_back_within_one_instant_is_seen_to_have_moved(world: RedisWorld) -> None:
    machine = NudgeMachine(world)
    release_one_job_again_and_again(machine)
    machine.teardown()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_a_long_search(world: RedisWorld) -> None:
    search(world, settings(LONG, max_examples=500))
