"""One node keeps house for the others, to save work; whatever becomes of its lease, all goes on.

Where a test sets RELIEVED_TICK_SECONDS to an hour, nothing but what it names can cause a turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine

from tests.engine.bench import WAIT_SECONDS, Bench, arrives, eventually
from tests.engine.test_maintenance import claim_as_dead_node
from tests.fixtures.servers import Server, postgres_keys
from tests.fixtures.valkey import fresh_space, redis_keys
from threadmill_sa.clock import SystemClock
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.engine.processing import maintenance_lease
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.engine.processing.maintenance_lease import MaintenanceLease
from threadmill_sa.model.lease import MAINTENANCE_LEASE, AcquireAnswer, AcquireVerdict, Lease
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import Every
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.store import JobStore, StoreCapabilities
from threadmill_sa.stores.memory.leases import MemoryLeases
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing.stores import ForwardingStore

MEMORY = "memory"
HOUR = 3600.0
TICKS, TICK = "recurring.nominate", 0.03
Opener = Callable[[], Bench]


class ClockedStore(ForwardingStore):
    """A store in memory that passes for one with a clock of its own, so that nodes campaign."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return replace(self.inner.capabilities, own_clock=True)


@pytest.fixture(params=[MEMORY, *postgres_keys(), *redis_keys()])
def opener(
    request: pytest.FixtureRequest,
    postgres_servers: Callable[[str], Server],
    redis_servers: Callable[[str], str],
) -> Iterator[Opener]:
    """Opens benches on one store; each has connections and counts of its own, as a process has."""
    with ExitStack() as stack:
        make = _store_maker(request.param, postgres_servers, redis_servers, stack)

        def open_bench() -> Bench:
            bench = Bench(make())
            stack.callback(bench.store.close)
            stack.callback(bench.close)
            return bench

        yield open_bench


def _store_maker(
    key: str,
    postgres_servers: Callable[[str], Server],
    redis_servers: Callable[[str], str],
    stack: ExitStack,
) -> Callable[[], JobStore]:
    if key == MEMORY:
        store = ClockedStore(MemoryStore())
        return lambda: store
    if key in redis_keys():
        space = stack.enter_context(fresh_space(redis_servers(key)))
        return lambda: RedisStore(_client(space, stack), prefix=space.prefix)
    url = stack.enter_context(postgres_servers(key).fresh_database())

    def make() -> JobStore:
        engine = create_engine(url)
        stack.callback(engine.dispose)
        return SqlStore(engine)

    return make


def _client(space: Any, stack: ExitStack) -> Redis:
    client: Redis = stack.enter_context(space.client())
    return client


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(ClockedStore(MemoryStore()))
    yield bench
    bench.close()


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relieved nodes take no turn of their own."""
    monkeypatch.setattr("threadmill_sa.model.limits.RELIEVED_TICK_SECONDS", HOUR)


@pytest.fixture
def lease_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the ttl of the engine's lease."""
    return lambda ttl: monkeypatch.setattr(maintenance_lease, "Timings", partial(Timings, ttl=ttl))


def leases_of(bench: Bench) -> Leases:
    leases = bench.store.inner.leases
    assert leases is not None
    return leases


def let_a_dead_node_hold(bench: Bench) -> None:
    """The lease as a node leaves it that was killed a moment ago."""
    leases_of(bench).acquire(MAINTENANCE_LEASE, "dead", ttl_seconds=HOUR, timeout_seconds=5)


def holder(bench: Bench) -> str | None:
    view = leases_of(bench).peek(MAINTENANCE_LEASE)
    return None if view is None else view.holder


def start_relieved(bench: Bench, **options: Any) -> None:
    """Start a node that has heard of another holder, and whose first turns are over."""
    bench.node(tick=TICK, **options).start()
    eventually(lambda: bench.store.calls("leases.watch"), "the first answer")
    stands_still(bench)


def stands_still(bench: Bench) -> None:
    """Wait until the node takes no turn for the time of several."""
    never = threading.Event()

    def still() -> bool:
        before = bench.store.calls(TICKS)
        never.wait(10 * TICK)
        return bench.store.calls(TICKS) == before

    eventually(still, "a node without turns")


def ticks_on(bench: Bench, turns: int = 5, *, after: Callable[[], None] | None = None) -> None:
    """Wait for so many more ticks, once `after` is done."""
    before = bench.store.calls(TICKS)
    if after is not None:
        after()
    eventually(lambda: bench.store.calls(TICKS) >= before + turns, f"{turns} more ticks")


def test_of_three_idle_nodes_one_ticks(opener: Opener) -> None:
    benches = [opener() for _ in range(3)]
    for bench in benches:
        bench.node(tick=TICK, heartbeat=0.05, heartbeat_timeout=0.4).start()
    watched = ("recurring.nominate", "jobs.promote", "jobs.fold_counts", "jobs.reclaim")

    def counts(operation: str) -> list[int]:
        return [bench.store.calls(operation) for bench in benches]

    def span() -> dict[str, list[int]]:
        """What each node did while the busiest ticked twenty times."""
        before = {operation: counts(operation) for operation in watched}
        first = before["recurring.nominate"]
        eventually(
            lambda: any(
                now >= then + 20
                for now, then in zip(counts("recurring.nominate"), first, strict=True)
            ),
            "twenty ticks",
        )
        return {
            operation: sorted(
                now - then for now, then in zip(counts(operation), before[operation], strict=True)
            )
            for operation in watched
        }

    found: dict[str, list[int]] = {}

    def settled() -> bool:
        found.update(span())
        return found["recurring.nominate"][1] <= 1

    eventually(settled, "two nodes that leave the ticks to the third")
    found = span()

    for operation in ("recurring.nominate", "jobs.promote", "jobs.fold_counts"):
        assert found[operation][1] <= 1, found
        assert found[operation][2] >= 3, found
    assert found["jobs.reclaim"][0] >= 3, found  # orphans are everybody's


@pytest.mark.usefixtures("never_by_itself")
def test_a_relieved_node_takes_every_wake_at_once(opener: Opener) -> None:
    bench = opener()
    ran = threading.Event()
    bench.declare(ran.set)
    bench.register("pump")
    let_a_dead_node_hold(bench)
    start_relieved(bench, poll=HOUR)
    bench.nudge("pump")
    assert not ran.wait(10 * TICK)  # nobody else would run it

    bench.nodes[0].wake()

    assert arrives(ran)


@pytest.mark.usefixtures("never_by_itself")
def test_a_wake_at_the_moment_of_a_turn_that_is_left_out_is_taken(bench: Bench) -> None:
    let_a_dead_node_hold(bench)
    start_relieved(bench)
    [node] = bench.nodes
    node.stop()
    quick = bench.node(tick=0.001)  # a turn is due whenever a wake comes
    quick.start()
    eventually(lambda: bench.store.calls("leases.watch") == 2, "the first answer")
    stands_still(bench)

    for _ in range(200):
        ticks_on(bench, 1, after=quick.wake)


@pytest.mark.usefixtures("never_by_itself")
def test_orphans_are_taken_back_by_relieved_nodes_as_by_all(opener: Opener) -> None:
    bench = opener()
    bench.declare(lambda: None)
    job_id = claim_as_dead_node(bench)
    let_a_dead_node_hold(bench)
    bench.node(tick=TICK, heartbeat=0.05, heartbeat_timeout=0.3).start()

    job = bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.attempt == 2


def test_while_the_holder_is_dead_nothing_waits_for_more_than_one_relieved_turn(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadmill_sa.model.limits.RELIEVED_TICK_SECONDS", 0.5)
    bench = opener()
    seen: dict[str, threading.Event] = {
        name: threading.Event() for name in ("schedule", "nudge", "delayed")
    }

    def handler(ctx: JobContext) -> None:
        seen[str(ctx.cron_origin or "delayed")].set()

    bench.declare(handler)
    bench.register("pump")
    let_a_dead_node_hold(bench)
    bench.node(tick=TICK).start()
    eventually(lambda: bench.store.calls("leases.watch"), "the first answer")

    bench.nudge("pump")
    bench.register("every", trigger=Every(seconds=0.2))
    bench.enqueue(delay_seconds=0.2)

    for what, event in seen.items():
        assert arrives(event), what
    assert holder(bench) == "dead"


@pytest.mark.usefixtures("never_by_itself")
def test_a_stopped_holder_hands_over_at_once(
    opener: Opener, lease_of: Callable[[float], None]
) -> None:
    lease_of(HOUR)  # it never runs out here: only the release and its hint can end it
    first, second = opener(), opener()
    first.node(tick=TICK).start()
    eventually(lambda: holder(first), "a holder")
    holds_first = holder(first)
    start_relieved(second)

    first.nodes[0].stop()

    ticks_on(second)
    assert holder(second) not in {None, holds_first}


@pytest.mark.usefixtures("never_by_itself")
def test_a_node_that_gets_no_answer_about_the_lease_ticks(
    opener: Opener, lease_of: Callable[[float], None]
) -> None:
    lease_of(1.5)
    first, second = opener(), opener()
    first.node(tick=TICK).start()
    eventually(lambda: holder(first), "a holder")
    start_relieved(second)

    second.store.fail("leases.acquire")

    ticks_on(second)
    assert holder(first) is not None
    second.store.mend()
    stands_still(second)


@pytest.mark.usefixtures("never_by_itself")
def test_a_holder_that_loses_the_lease_ticks_on_while_nobody_is_known_to_have_it(
    opener: Opener, lease_of: Callable[[float], None]
) -> None:
    lease_of(1.5)
    bench = opener()
    bench.node(tick=TICK).start()
    eventually(lambda: holder(bench), "a holder")

    for operation in ("leases.renew", "leases.acquire"):
        bench.store.fail(operation)
    eventually(lambda: holder(bench) is None, "the end of the lease")

    ticks_on(bench)


@pytest.mark.usefixtures("never_by_itself")
def test_everything_runs_where_no_call_about_leases_ever_works(opener: Opener) -> None:
    first, second = opener(), opener()
    origins: set[str] = set()
    for bench in (first, second):
        bench.declare(_noting(origins))
        for operation in ("acquire", "renew", "release", "watch"):
            bench.store.fail(f"leases.{operation}", RuntimeError("no such table"))
        bench.node(tick=TICK).start()
    first.register("pump")
    first.register("every", trigger=Every(seconds=0.1))
    first.nudge("pump")
    job_id = first.enqueue(delay_seconds=0.1)

    first.wait_state(job_id, JobState.SUCCEEDED)
    eventually(lambda: {"schedule", "nudge", "None"} <= origins, "a fire and a nudge")
    ticks_on(first)
    ticks_on(second)


def _noting(origins: set[str]) -> Callable[[JobContext], None]:
    def handler(ctx: JobContext) -> None:
        origins.add(str(ctx.cron_origin))

    return handler


def test_the_tasks_of_a_service_are_fired_by_another_that_keeps_house_and_run_at_their_own(
    opener: Opener,
) -> None:
    housekeeper, other = opener(), opener()
    ran: set[tuple[str, str]] = set()
    _serve(housekeeper, "a", ran)
    housekeeper.node(tick=TICK).start()
    eventually(lambda: holder(housekeeper), "a holder")
    keeps = holder(housekeeper)
    _serve(other, "b", ran)
    other.store.fail(TICKS)  # whatever of its own comes about was made by the housekeeper
    other.node(tick=TICK).start()

    other.nudge("b.nudged")

    wanted = {("a", "schedule"), ("b", "schedule"), ("b", "nudge")}
    eventually(lambda: ran >= wanted, "a fire of each and the nudge")
    assert ran == wanted
    assert holder(other) == keeps


def test_a_service_leaves_the_tasks_of_another_alone_although_it_knows_no_handler_of_them(
    opener: Opener,
) -> None:
    ran: set[tuple[str, str]] = set()
    other = opener()
    _serve(other, "b", ran)
    housekeeper = opener()
    _serve(housekeeper, "a", ran)
    housekeeper.node(tick=TICK).start()
    restarted = opener()
    _serve(restarted, "a", ran)
    eventually(lambda: ("a", "schedule") in ran, "a fire of its own")
    housekeeper.nodes[0].stop()
    restarted.node(tick=TICK, heartbeat=0.05).start()
    eventually(lambda: restarted.store.inner.jobs.list(task="b"), "a fire of the other service")
    ticks_on(restarted, 20)

    [waiting] = restarted.store.inner.jobs.list(task="b")
    task = restarted.store.inner.recurring.get("b")
    assert task is not None
    assert (waiting.state, waiting.attempt) == (JobState.ENQUEUED, 0)
    assert (task.enabled, task.broken_reason, task.in_flight_job_id) == (True, None, waiting.id)
    assert ("b", "schedule") not in ran

    other.node(tick=TICK).start()
    other.wait_state(waiting.id, JobState.SUCCEEDED)
    eventually(lambda: len(other.store.inner.jobs.list(task="b")) > 1, "the next fire")


def _serve(bench: Bench, name: str, ran: set[tuple[str, str]]) -> None:
    """One service of its own: a handler, a task that fires often and one that is only nudged."""

    def handler(ctx: JobContext) -> None:
        ran.add((name, str(ctx.cron_origin)))

    bench.declare(handler, name)
    bench.register(name, name, trigger=Every(seconds=0.2))
    bench.register(f"{name}.nudged", name)


@pytest.mark.usefixtures("never_by_itself")
def test_a_tick_that_fails_is_tried_again_at_the_nodes_own_cadence(bench: Bench) -> None:
    let_a_dead_node_hold(bench)
    start_relieved(bench)
    before = bench.store.calls(TICKS)
    bench.store.fail(TICKS, times=3)

    bench.nodes[0].wake()

    eventually(lambda: bench.store.calls(TICKS) == before + 4, "three failures and a success")
    stands_still(bench)


class Heard:
    """A lease that never starts, and a clock that stands: what it makes of each answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.alone = 0
        monkeypatch.setattr(maintenance_lease, "suspend_proof_seconds", lambda: self.now)
        self.lease = MaintenanceLease(
            MemoryLeases(SystemClock()),
            noise=lambda: 0.5,
            on_alone=self._count,
            timings=Timings(ttl=10),
        )

    def _count(self) -> None:
        self.alone += 1

    def answer(self, who: str, seconds: float) -> None:
        held = AcquireAnswer(AcquireVerdict.HELD, Lease(MAINTENANCE_LEASE, who, 1), seconds)
        self.lease.saw(held, None)

    @property
    def state(self) -> tuple[bool, int]:
        return self.lease.relieved, self.alone


def test_an_answer_relieves_until_the_next_one_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert not heard.lease.relieved

    heard.answer("another", 7.0)

    allowance = 0.2 * 10 + 10 / 3 / 2  # the jitter and one call
    heard.now += 7.0 + allowance - 0.01
    assert heard.state == (True, 0)
    heard.now += 0.02
    assert heard.state == (False, 0)


def test_only_another_holder_that_has_time_left_relieves(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    own = heard.lease._holder
    unrelieving: list[Callable[[], None]] = [
        lambda: heard.lease.saw(None, OSError("no route")),
        lambda: heard.answer("another", 0.0),
        lambda: heard.answer(own, 5.0),
        lambda: heard.lease.began(Lease(MAINTENANCE_LEASE, own, 2), heard.now + 9),
    ]

    for number, news in enumerate(unrelieving, start=1):
        heard.answer("another", 5.0)
        assert heard.lease.relieved
        news()
        assert heard.state == (False, number)
        news()
        assert heard.state == (False, number)  # told once


def test_a_stop_does_not_wait_for_a_lease_store_that_hangs(bench: Bench) -> None:
    node = bench.node(tick=TICK)
    node.start()
    eventually(lambda: holder(bench), "a holder")
    gate = bench.store.hold("leases.release")
    stopper = threading.Thread(target=node.stop)

    stopper.start()

    assert arrives(gate.reached)
    stopper.join(WAIT_SECONDS)
    assert not stopper.is_alive()  # the gate is still closed
    assert "threadmill-lease" not in [thread.name for thread in threading.enumerate()]
    gate.open()


@pytest.mark.parametrize("options", [{"wakes": False}, {"tick": 5.0}])
def test_nodes_for_which_it_would_save_nothing_do_not_campaign(
    bench: Bench, options: dict[str, Any]
) -> None:
    bench.node(**options).start()
    eventually(lambda: bench.store.calls(TICKS), "a tick")
    bench.nodes[0].stop()

    assert bench.store.calls("leases.acquire") == 0


@pytest.mark.parametrize("key", [MEMORY, "sqlite"])
def test_stores_without_a_clock_of_their_own_have_no_such_lease(
    request: pytest.FixtureRequest, key: str
) -> None:
    with ExitStack() as stack:
        store: JobStore = MemoryStore()
        if key == "sqlite":
            engine = create_engine(request.getfixturevalue("sqlite_url"))
            stack.callback(engine.dispose)
            store = SqlStore(engine)
        bench = Bench(store)
        stack.callback(bench.store.close)
        stack.callback(bench.close)
        bench.node().start()
        eventually(lambda: bench.store.calls(TICKS), "a tick")
        bench.nodes[0].stop()

        assert bench.store.calls("leases.acquire") == 0
