"""The connection dies at each script in turn: before it is sent, and after, its answer lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from redis import ConnectionPool, Redis
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as ClientConnectionError

from tests.fixtures.valkey import RedisSpace, fresh_space
from tests.store_only.redis_books import check_books
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import (
    StoreAccessError,
    StoreInvariantError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, OrphanedJob, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.redis.faults import translate
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.stores import FaultingStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    BEFORE_ALL,
    T0,
    claim,
    instances,
    new_job,
    new_node,
    new_task,
    one_instance,
    outcome,
    seconds,
    view,
)

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, Moment] = ("before", "after")
SCRIPTS = {b"EVALSHA", b"EVAL"}
DUE = T0 + seconds(600)


@dataclass(slots=True)
class Strike:
    """Which script of the run meets a dead connection, and when."""

    number: int = 0  # from 1; 0 is none
    moment: Moment = "before"
    seen: int = 0
    struck: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hits(self) -> bool:
        with self.lock:
            self.seen += 1
            self.struck = self.struck or self.seen == self.number
            return self.seen == self.number


class MortalConnection(UnixDomainSocketConnection):
    """Dies as `strike` says."""

    def __init__(self, *, strike: Strike, **options: Any) -> None:
        super().__init__(**options)
        self._strike = strike
        self._loses_answer = False

    def send_command(self, *words: Any, **options: Any) -> None:
        hit = words[0] in SCRIPTS and self._strike.hits()
        if hit and self._strike.moment == "before":
            self.disconnect()
            raise ClientConnectionError("the connection is dead")
        super().send_command(*words, **options)
        self._loses_answer = hit

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        loses, self._loses_answer = self._loses_answer, False
        try:
            return super().read_response(*arguments, **options)
        finally:
            if loses:  # also one that asks for the whole script
                self.disconnect()
                raise ClientConnectionError("the answer is lost")


@pytest.fixture
def space(redis_servers: Callable[[str], str]) -> Iterator[RedisSpace]:
    with fresh_space(redis_servers("valkey")) as found:
        yield found


@contextmanager
def mortal_store(space: RedisSpace, strike: Strike) -> Iterator[RedisStore]:
    path = space.url.removeprefix("unix://").partition("?")[0]
    pool = ConnectionPool(connection_class=MortalConnection, path=path, strike=strike)
    with Redis(connection_pool=pool) as client:
        client.script_flush()  # so that each script is sent whole the first time, in every life
        yield RedisStore(client, prefix=space.prefix)
    pool.disconnect()


class Life:
    """One of everything. A step that failed is simply done again, as callers do."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.node = NodeInfo(new_node(), "host", 1, None, 2)
        self.jobs = [new_job(payload="1") for _ in range(3)]
        self.manual = new_job(cron_task_name="pump")
        self.held: list[ClaimedJob] = []
        self.revisions: list[int] = []

    def steps(self) -> list[Callable[[], object]]:
        recurring, jobs = self.store.recurring, self.store.jobs
        return [
            lambda: recurring.register(new_task(), now=T0),
            lambda: recurring.register(new_task(payload="2"), now=T0),
            lambda: self.store.nodes.beat(self.node, []),
            self._insert,
            self._claim,
            self._beat,
            self._finish,
            lambda: jobs.promote(limit=10, now=DUE),
            self._nudge,
            lambda: recurring.nominate(after=None, limit=9, now=T0),
            lambda: recurring.materialize(["pump"], one_instance, now=T0),
            lambda: recurring.set_enabled("pump", enabled=False, now=T0),
            lambda: recurring.set_enabled("pump", enabled=True, now=T0),
            self._trigger,
            self._nudge,
            lambda: recurring.clear_cron_nudge("pump", frozenset(self.revisions[-1:])),
            self._reclaim,
            lambda: recurring.register(new_task("other"), now=T0),
            lambda: recurring.delete("other"),
            lambda: jobs.get(self.jobs[0].id),
            jobs.list,
            lambda: recurring.get("pump"),
            recurring.list,
            self.store.nodes.list,
            lambda: self.store.nodes.remove_stale(silent_since=BEFORE_ALL),
            lambda: self.store.nodes.remove(self.node.id),
        ]

    def live(self) -> None:
        for step in self.steps():
            try:
                step()
            except StoreUnavailableError:
                step()

    def _insert(self) -> None:
        # After a lost answer the ids are there already, which says that nothing is to do.
        with suppress(StoreInvariantError):
            self.store.jobs.insert(self.jobs, now=T0)

    def _trigger(self) -> None:
        with suppress(StoreInvariantError):
            self.store.recurring.trigger("pump", lambda _: self.manual, now=T0)

    def _claim(self) -> None:
        self.held = claim(self.store, self.node.id, 3)

    def _beat(self) -> None:
        self.store.nodes.beat(self.node, [HeldJob(job.id, job.attempt_token) for job in self.held])

    def _finish(self) -> None:
        kinds = (OutcomeKind.SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.RELEASED)
        ends = [outcome(job, kind) for job, kind in zip(self.held, kinds, strict=False)]
        self.store.jobs.finish(self.node.id, ends, now=T0)

    def _nudge(self) -> None:
        answer = self.store.recurring.request_cron_nudge("pump", now=T0)
        assert answer.verdict is NudgeVerdict.ACCEPTED
        assert answer.revision is not None
        self.revisions.append(answer.revision)

    def _reclaim(self) -> None:
        def fail(orphan: OrphanedJob) -> AttemptOutcome:
            return AttemptOutcome(
                orphan.id, orphan.attempt_token, OutcomeKind.FAILED, "engine.orphan"
            )

        claim(self.store, new_node(), at=DUE)
        self.store.jobs.reclaim(fail, silent_since=AFTER_ALL, limit=10, now=DUE)


def _scripts_of_a_life(space: RedisSpace) -> int:
    strike = Strike()
    with mortal_store(space, strike) as store:
        Life(store).live()
    return strike.seen


def _survives(url: str, number: int, moment: Moment) -> None:
    strike = Strike(number, moment)
    with fresh_space(url) as space, mortal_store(space, strike) as store:
        life = Life(store)
        life.live()

        assert strike.struck, number
        check_books(space)
        stored = {job.id for job in store.jobs.list()}
        assert {job.id for job in life.jobs} | {life.manual.id} <= stored
        assert 2 <= len(instances(store)) <= 3  # one for the nudge, one manual, no more
        assert view(store).nudge_revisions == frozenset()
        assert (view(store).payload, view(store).enabled) == ("2", True)
        # What a lost claim held came back by its silence: nothing is stuck.
        assert store.jobs.counts()[JobState.PROCESSING] == 0


def test_a_life_survives_a_dead_connection_at_each_of_its_scripts(
    redis_servers: Callable[[str], str],
) -> None:
    url = redis_servers("valkey")
    with fresh_space(url) as space:
        total = _scripts_of_a_life(space)
    assert total > 30

    for number in range(1, total + 1):
        _survives(url, number, MOMENTS[number % 2])


@pytest.mark.long
def test_a_life_survives_the_other_death_at_each_of_its_scripts(
    redis_servers: Callable[[str], str],
) -> None:
    url = redis_servers("valkey")
    with fresh_space(url) as space:
        total = _scripts_of_a_life(space)

    for number in range(1, total + 1):
        _survives(url, number, MOMENTS[(number + 1) % 2])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_is_never_sent_again(space: RedisSpace, moment: Moment) -> None:
    strike = Strike(moment=moment)
    with mortal_store(space, strike) as store:
        store.recurring.register(new_task(), now=T0)
        first = store.recurring.request_cron_nudge("pump").revision
        strike.number = strike.seen + 1
        with pytest.raises(StoreUnavailableError, match=r"the (connection|answer) is"):
            store.recurring.request_cron_nudge("pump")

        third = store.recurring.request_cron_nudge("pump").revision
        assert first is not None
        assert third == first + (2 if moment == "after" else 1)


def test_an_interrupted_call_leaves_no_answer_for_the_next(space: RedisSpace) -> None:
    class Interrupt(BaseException):
        pass

    with space.client() as client:
        store = RedisStore(client, prefix=space.prefix)
        store.recurring.register(new_task(), now=T0)
        store.recurring.request_cron_nudge("pump")
        assert view(store).enabled  # the server knows both scripts
        [connection] = client.connection_pool._available_connections
        honest = connection.read_response

        def interrupted(**_: Any) -> None:
            connection.read_response = honest
            raise Interrupt

        connection.read_response = interrupted
        # The answer is still on its way when the next call looks whether the connection is clean.
        connection.can_read = lambda *_, **__: False
        with pytest.raises(Interrupt):
            store.recurring.request_cron_nudge("pump")

        assert view(store).name == "pump"


def test_an_engine_on_redis_survives_an_outage_of_every_role(space: RedisSpace) -> None:
    with space.store() as inner:
        store = FaultingStore(inner)
        tm = Threadmill(store)
        done = threading.Event()
        tm.job("work")(done.set)
        tm.recurring("pump", "work", Every(minutes=10))
        tm.register()
        with tm.node(workers=2, tick=0.05, poll=0.05):
            for operation in ("jobs.claim", "recurring.nominate", "nodes.beat", "jobs.promote"):
                store.fail(operation, times=3)
            store.fail("jobs.finish", times=1, after=True)
            tm.nudge("pump")
            assert done.wait(30)
        tm.close()

        assert [job.state for job in inner.jobs.list()] == [JobState.SUCCEEDED]
    check_books(space)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClientConnectionError("gone"), StoreUnavailableError),
        (OSError("no route"), StoreUnavailableError),
        (ReadOnlyError("You can't write against a read only replica."), StoreUnavailableError),
        (ResponseError("MISCONF Redis is configured to save RDB"), StoreUnavailableError),
        (
            ResponseError(
                "Error running script (call to f_ab): @user_script:5: @user_script: 5:"
                " -OOM command not allowed when used memory > 'maxmemory'."
            ),
            StoreUnavailableError,
        ),
        (
            ResponseError(
                "Error running script (call to f_ab): @user_script:5: @user_script: 5:"
                " -WRONGTYPE Operation against a key holding the wrong kind of value"
            ),
            StoreInvariantError,
        ),
        (ResponseError("NOPERM this user has no permissions"), StoreAccessError),
        (AuthenticationError("Authentication required."), StoreAccessError),
        (ResponseError("MOVED 12 127.0.0.1:7001"), UnsupportedStoreError),
        (ResponseError("user_script:7: attempt to index nil"), StoreInvariantError),
        (ResponseError(""), StoreInvariantError),
    ],
)
def test_an_error_of_the_server_is_told_by_what_can_be_done(
    error: Exception, expected: type[Exception]
) -> None:
    told = translate(error, "redis host:1")

    assert type(told) is expected
    assert "redis host:1" in told.message
