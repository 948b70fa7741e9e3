"""Operations of two processes, interleaved at each of their scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from typing import Any, cast

import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace, fresh_space
from tests.races.actors import DELETE, EDIT, FLIP, OTHERS, RENEW, TRIGGER, Kind
from tests.races.driver import Actor, Driver, Nobody, Step
from tests.races.performing import Performance, lengths, needs_of, prepare
from tests.races.schedules import count_all
from tests.races.stages import Seat, Stage, declared
from tests.store_only.redis_books import check_books
from threadmill_sa import Threadmill
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.stores.redis.store import RedisStore

SEATS = 2
PAIRS = tuple(combinations_with_replacement(OTHERS, 2))
# Each reads a task and writes it by a script of its own, if it is still what was read.
COMPARING = (FLIP, EDIT, TRIGGER)


class Quiet(RedisStore):
    """Without threads for wakes: the actors are all there is."""

    wakes = None


class Gated(Quiet):
    """Each script, and each command, is a gate of `actor`.

    The history tells an operation by its last script, which is the one that writes.
    """

    def __init__(self, client: Redis, prefix: str, actor: Actor) -> None:
        super().__init__(client, prefix=prefix)
        self._actor = actor
        self._last: Step | None = None
        self._exchange = self._gateway._exchange
        self._gateway._exchange = self._gated  # type: ignore[method-assign]
        self._told = {
            "jobs": cast("Jobs", _Told(self, "jobs", super().jobs)),
            "recurring": cast("Recurring", _Told(self, "recurring", super().recurring)),
        }

    @property
    def jobs(self) -> Jobs:
        return cast("Jobs", self._told["jobs"])

    @property
    def recurring(self) -> Recurring:
        return cast("Recurring", self._told["recurring"])

    def _gated(self, words: list[bytes], *rest: Any, **options: Any) -> Any:
        if not self._actor.performing:
            return self._exchange(words, *rest, **options)
        self._last = self._actor.reach("script", words[0].decode(), words[1])
        return self._exchange(words, *rest, **options)

    def tell(self, operation: str, binds: Any, result: Any) -> None:
        if self._actor.performing and self._last is not None:
            step, self._last = self._last, None
            step.kind, step.text, step.binds, step.result = "call", operation, binds, result


class _Told:
    """Every method of one role; its end is told to the history."""

    def __init__(self, store: Gated, name: str, inner: object) -> None:
        self._store, self._name, self._inner = store, name, inner

    def __getattr__(self, method: str) -> Callable[..., Any]:
        target = getattr(self._inner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = target(*args, **kwargs)
            self._store.tell(f"{self._name}.{method}", (args, kwargs), result)
            return result

        return call


class RedisStage(Stage):
    """A scene is built anew for each schedule."""

    def __init__(self, space: RedisSpace, client: Redis) -> None:
        self._space, self._client = space, client
        self.driver = Driver(SEATS, Nobody())
        super().__init__(self._threadmill(), self.driver)

    def _threadmill(self, actor: Actor | None = None) -> Threadmill:
        if actor is None:
            return Threadmill(Quiet(self._client, prefix=self._space.prefix))
        return Threadmill(Gated(self._client, self._space.prefix, actor))

    def _empty(self) -> None:
        self._client.delete(*self._space.names())
        if not self.seats:
            self.seats = [
                Seat(declared(self._threadmill(actor)), None) for actor in self.driver.actors
            ]

    def _save(self) -> None:
        pass

    def reset(self) -> None:
        self.build(self.needs or frozenset())
        super().reset()

    def _restore(self) -> None:
        pass

    def drain(self) -> bool:
        rests = super().drain()
        check_books(self._space)
        return rests


@pytest.fixture(scope="module")
def stage(redis_servers: Callable[[str], str]) -> Iterator[Stage]:
    with fresh_space(redis_servers("valkey")) as space, space.client() as client:
        yield RedisStage(space, client)


def _every_schedule(stage: Stage, pair: tuple[Kind, Kind]) -> None:
    prepare(stage, needs_of(pair))
    n, m = lengths(stage, pair)
    runs = Performance(stage, pair, "redis, scripts, all").everything(nominal=count_all(n, m))
    assert runs >= 1


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} x {pair[1]}")
@pytest.mark.long
def test_every_schedule(stage: Stage, pair: tuple[Kind, Kind]) -> None:
    _every_schedule(stage, pair)


def test_every_schedule_of_a_tick_with_each_other_operation(stage: Stage) -> None:
    tick = next(kind for kind in OTHERS if kind.name == "tick")
    for other in OTHERS:
        _every_schedule(stage, (tick, other))


@pytest.mark.parametrize("other", [DELETE, RENEW, *COMPARING], ids=str)
def test_every_schedule_of_two_operations_that_compare(stage: Stage, other: Kind) -> None:
    for comparing in COMPARING:
        _every_schedule(stage, (comparing, other))
