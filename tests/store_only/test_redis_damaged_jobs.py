"""Jobs that a hand or another program has deleted or damaged: each stops only itself."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.resources import files
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace, connect
from tests.store_only.redis_books import check_books
from threadmill_sa import JobContext, Threadmill
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, JobId, NodeId, OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    ids_of,
    insert,
    new_job,
    new_node,
    new_task,
    one_instance,
    outcome,
    run_all,
)

FIELDS = (
    "state", "state_at", "created_at", "scheduled_at", "started_at", "attempt", "attempt_token",
    "owner_node_id", "entries", "queue", "handler", "place", "cron_task_name", "rest",
)  # fmt: skip
HOUR = timedelta(hours=1)


class Hand:
    """What somebody with a plain client does to the keys of a store."""

    def __init__(self, space: RedisSpace) -> None:
        self._client: Any = connect(space.url)
        self.name = KeySpace(space.prefix).name

    def delete_row(self, job: JobId) -> None:
        assert self._client.hdel(self.name("rows"), job.hex) == 1

    def write(self, job: JobId, packed: bytes) -> None:
        self._client.hset(self.name("rows"), job.hex, packed)

    def edit(self, job: JobId, field: str, value: object) -> None:
        row = msgspec.msgpack.decode(self._client.hget(self.name("rows"), job.hex))
        row[FIELDS.index(field)] = value
        self.write(job, msgspec.msgpack.encode(row))

    def add(self, key: str, member: bytes) -> None:
        self._client.zadd(self.name(key), {member: 0})

    def members(self, key: str) -> list[bytes]:
        found: list[bytes] = self._client.zrange(self.name(key), 0, -1)
        return found

    def left(self) -> dict[str, int]:
        """How much there is of each key that a job leaves its traces in."""
        sizes = dict.fromkeys(("rows", "payloads", "trail", "counters"), self._client.hlen)
        sizes["index"] = self._client.zcard
        return {key: size(self.name(key)) for key, size in sizes.items()}

    def remove(self, key: str) -> None:
        self._client.delete(self.name(key))

    def count(self, field: str, value: str) -> None:
        self._client.hset(self.name("counters"), field, value)


@pytest.fixture
def hand(redis_space: RedisSpace) -> Hand:
    return Hand(redis_space)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "threadmill_sa.redis")


def take(store: RedisStore, limit: int, queues: list[str] | None) -> list[ClaimedJob]:
    return store.jobs.claim(new_node(), queues=queues, handlers=["work"], limit=limit, now=T0)


def finish(store: RedisStore, node: NodeId, outcomes: list[AttemptOutcome]) -> list[str]:
    return [str(verdict) for verdict in store.jobs.finish(node, outcomes, now=T0)]


@pytest.mark.parametrize(
    ("queues", "limit"), [(None, 1), (None, 10), (["default"], 1), (["default"], 10)]
)
def test_a_ready_job_whose_row_was_deleted_is_forgotten_and_the_others_are_claimed(
    redis_store: RedisStore,
    redis_space: RedisSpace,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    queues: list[str] | None,
) -> None:
    hand = Hand(redis_space)
    first, second, third = insert(redis_store, 3, payload="1")
    hand.delete_row(first.id)

    claimed = take(redis_store, limit, queues)

    assert ids_of(claimed) == ids_of([second, third][:limit])
    check_books(redis_space)
    [line] = caplog.messages
    assert str(first.id) in line
    assert hand.name("rows") in line
    claim(redis_store, new_node(), limit)
    assert len(caplog.messages) == 1


def test_the_deleted_row_of_an_instance_lets_go_of_its_task(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand
) -> None:
    redis_store.recurring.register(new_task(), now=T0)
    [done] = redis_store.recurring.materialize(["pump"], one_instance, now=T0)
    hand.delete_row(done.jobs[0].id)

    assert claim(redis_store, new_node()) == []
    check_books(redis_space)

    held: list[bool] = []
    redis_store.recurring.materialize(
        ["pump"],
        lambda reading: held.append(reading.unfinished) or one_instance(reading),  # type: ignore[func-returns-value]
        now=T0,
    )
    assert held == [False]
    check_books(redis_space)


def test_a_delayed_job_whose_row_was_deleted_holds_up_no_promotion(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = insert(redis_store, 3, run_at=T0)
    hand.delete_row(jobs[0].id)

    assert redis_store.jobs.promote(limit=1, now=T0) == 1
    assert redis_store.jobs.promote(limit=10, now=T0) == 1

    check_books(redis_space)
    assert [str(jobs[0].id) in line for line in caplog.messages] == [True]


def test_a_held_job_whose_row_was_deleted_holds_up_no_reclaim(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand
) -> None:
    insert(redis_store, 3)
    node = new_node()
    held = claim(redis_store, node, 3)
    hand.delete_row(held[0].id)

    assert finish(redis_store, node, [outcome(held[0])]) == ["lost"]
    ended = redis_store.jobs.reclaim(
        lambda orphan: outcome(next(job for job in held if job.id == orphan.id)),
        silent_since=AFTER_ALL,
        limit=10,
        now=T0,
    )

    assert [orphan.id for orphan, _ in ended] == ids_of(held[1:])
    check_books(redis_space)


@pytest.mark.parametrize("task", [None, "pump"])
def test_a_job_whose_row_was_deleted_is_left_out_of_a_listing_and_unknown(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand, task: str | None
) -> None:
    redis_store.recurring.register(new_task(), now=T0)
    made = [
        redis_store.recurring.materialize(["pump"], one_instance, now=T0)[0].jobs[0]
        for _ in range(3)
    ]
    run_all(redis_store)
    hand.delete_row(made[1].id)

    listed = redis_store.jobs.list(task=task)

    assert [job.id for job in listed] == [made[2].id, made[0].id]
    assert redis_store.jobs.get(made[1].id) is None
    assert redis_store.jobs.counts()[JobState.SUCCEEDED] == 2
    # What is left points to nothing, and is met by nobody but a listing of its kind.
    redis_store.jobs.list(task="pump")
    redis_store.jobs.remove_old(JobState.SUCCEEDED, older_than_seconds=0.0, limit=1, now=T0 - HOUR)
    assert not any(
        made[1].id.hex.encode() in member and not member.startswith(b"f\0")
        for member in hand.members("index")
    )


JUNK: dict[str, list[object]] = {
    "state": ["WAITING", 7, None],
    "attempt": ["one", None, -1, 1.5, 2**31],
    "attempt_token": [False, 2**40],
    "entries": ["many", 2**40],
    "created_at": ["yesterday", 7, "9" * 30],
    "rest": ["{", "{}", '{"priority": "high"}'],
    "queue": [7],
    "handler": [None],
    "place": ["x"],
    "cron_task_name": [7],
}
PLACELESS = {"queue", "handler", "place", "cron_task_name"}
CASES: list[tuple[str, object]] = [
    (field, value) for field, values in JUNK.items() for value in values
]


@pytest.mark.parametrize(("field", "value"), CASES)
def test_a_ready_job_with_a_damaged_field_is_set_aside_alone_and_is_told(
    redis_store: RedisStore,
    hand: Hand,
    caplog: pytest.LogCaptureFixture,
    field: str,
    value: object,
) -> None:
    damaged, sound = insert(redis_store, 2)
    hand.edit(damaged.id, field, value)
    with pytest.raises(StoreInvariantError) as told:
        redis_store.jobs.get(damaged.id)
    assert (told.value.job_id, told.value.field) == (str(damaged.id), field)

    node = new_node()
    assert ids_of(claim(redis_store, node, 1)) == [sound.id]
    assert claim(redis_store, node, 1) == []

    [line] = caplog.messages
    assert str(damaged.id) in line
    assert repr(field) in line
    counts = redis_store.jobs.counts()
    assert counts[JobState.ENQUEUED] == 0
    assert counts[JobState.PROCESSING] == 1
    assert redis_store.jobs.queue_depths() == {}
    assert counts[JobState.QUARANTINED] == (field not in PLACELESS)


def test_the_scripts_have_the_bounds_of_the_model() -> None:
    source = (files("threadmill_sa.stores.redis") / "lua" / "lib" / "rows.lua").read_text()
    numbers = re.findall(r"\[(\w+)\] = (\d+)", source)

    assert {name: int(number) for name, number in numbers} == {
        "ATTEMPT": limits.COUNT_MAX,
        "TOKEN": limits.COUNT_MAX,
        "ENTRIES": limits.HISTORY_MAX,
    }


def test_a_history_without_end_holds_up_nobody(
    redis_store: RedisStore, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading and removing go through the entries that the row speaks of."""
    first, second = insert(redis_store, 2)
    run_all(redis_store)
    hand.edit(first.id, "entries", 2**40)

    with pytest.raises(StoreInvariantError, match="entries"):
        redis_store.jobs.get(first.id)
    assert redis_store.jobs.remove_old(JobState.SUCCEEDED, **OLD) == 2

    assert redis_store.jobs.get(second.id) is None
    assert redis_store.jobs.counts()[JobState.QUARANTINED] == 1
    assert ["entries" in line for line in caplog.messages] == [True]


OLD: Any = {"older_than_seconds": 0.0, "limit": 10, "now": T0 + HOUR}


@pytest.mark.parametrize(
    ("field", "value"), [("attempt", "one"), ("entries", None), ("state", 7), ("place", 1)]
)
def test_a_damaged_finished_job_is_set_aside_and_leaves_nothing_behind(
    redis_store: RedisStore,
    hand: Hand,
    caplog: pytest.LogCaptureFixture,
    field: str,
    value: object,
) -> None:
    damaged, _ = insert(redis_store, 2, payload="1")
    run_all(redis_store)
    hand.edit(damaged.id, field, value)
    for _ in range(2):
        assert len(redis_store.jobs.list()) == 1
    assert ["left out" in line for line in caplog.messages] == [True]

    assert redis_store.jobs.remove_old(JobState.SUCCEEDED, **OLD) == 2
    assert redis_store.jobs.remove_old(JobState.SUCCEEDED, **OLD) == 0

    counts = redis_store.jobs.counts()
    assert counts[JobState.SUCCEEDED] == 0
    assert counts[JobState.QUARANTINED] == (field != "place")
    assert len(caplog.messages) == 2
    assert str(damaged.id) in caplog.messages[1]
    if field != "place":
        old: Any = OLD | {"now": T0 + 2 * HOUR}
        assert redis_store.jobs.remove_old(JobState.QUARANTINED, **old) == 1
        assert hand.left() == {"rows": 0, "payloads": 0, "trail": 0, "index": 0, "counters": 0}


def test_the_deleted_row_of_a_finished_job_takes_its_payload_along(
    redis_store: RedisStore, hand: Hand
) -> None:
    [job] = insert(redis_store, payload="1")
    run_all(redis_store)
    hand.delete_row(job.id)

    redis_store.jobs.remove_old(JobState.SUCCEEDED, **OLD)

    assert hand.left() == {"rows": 0, "payloads": 0, "trail": 0, "index": 0, "counters": 0}


@pytest.mark.parametrize("field", ["state", "attempt", "attempt_token", "entries", "created_at"])
def test_a_job_that_says_what_it_is_of_is_quarantined_with_what_was_wrong(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand, field: str
) -> None:
    [job] = insert(redis_store, payload="1")
    hand.edit(job.id, field, "junk")

    claim(redis_store, new_node())

    found = redis_store.jobs.get(job.id)
    assert found is not None
    assert (found.state, found.payload) == (JobState.QUARANTINED, "1")
    [entry] = found.history
    assert entry.reason == failure.QUARANTINE
    assert repr(field) in (entry.message or "")
    assert [listed.id for listed in redis_store.jobs.list(state=JobState.QUARANTINED)] == [job.id]
    check_books(redis_space)


def test_a_quarantine_is_told_after_the_history_that_there_is(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand
) -> None:
    insert(redis_store)
    node = new_node()
    [held] = claim(redis_store, node)
    finish(redis_store, node, [outcome(held, OutcomeKind.RELEASED)])
    hand.edit(held.id, "entries", "many")

    claim(redis_store, new_node())

    found = redis_store.jobs.get(held.id)
    assert found is not None
    assert [entry.state for entry in found.history] == ["FAILED", "ENQUEUED", "QUARANTINED"]
    check_books(redis_space)


@pytest.mark.parametrize("packed", [b"", b"junk", b"\xc1", b"\x80", b"\x93\x01", b"\x91\xa1\xff"])
def test_a_row_that_is_none_is_kept_and_stops_nobody(
    redis_store: RedisStore, hand: Hand, caplog: pytest.LogCaptureFixture, packed: bytes
) -> None:
    damaged, sound = insert(redis_store, 2)
    hand.write(damaged.id, packed)

    assert [job.id for job in redis_store.jobs.list()] == [sound.id]
    assert ids_of(run_all(redis_store)) == [sound.id]

    with pytest.raises(StoreInvariantError, match=str(damaged.id)):
        redis_store.jobs.get(damaged.id)
    assert [job.id for job in redis_store.jobs.list()] == [sound.id]
    told = [line for line in caplog.messages if "no longer listed" in line]
    assert [str(damaged.id) in line for line in told] == [True]


def test_bytes_that_are_no_text_in_a_row_end_its_job_alone(
    redis_store: RedisStore, hand: Hand
) -> None:
    damaged, sound = insert(redis_store, 2)
    hand.edit(damaged.id, "cron_task_name", "name")
    row = redis_store._gateway.command("HGET", "rows", damaged.id.hex)
    hand.write(damaged.id, row.replace(b"\xa4name", b"\xa4\xff\xff\xff\xff"))

    assert ids_of(run_all(redis_store)) == [sound.id]

    assert redis_store.jobs.counts()[JobState.QUARANTINED] == 1
    with pytest.raises(StoreInvariantError, match=str(damaged.id)):
        redis_store.jobs.get(damaged.id)


def test_a_damaged_delayed_job_holds_up_no_promotion(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand
) -> None:
    jobs = insert(redis_store, 3, run_at=T0)
    hand.edit(jobs[1].id, "attempt", "one")

    assert redis_store.jobs.promote(limit=10, now=T0) == 2

    found = redis_store.jobs.get(jobs[1].id)
    assert found is not None
    assert found.state is JobState.QUARANTINED
    check_books(redis_space)


@pytest.mark.parametrize(("field", "value"), [("attempt", "one"), ("rest", "{"), ("owner", None)])
def test_a_damaged_held_job_holds_up_no_reclaim(
    redis_store: RedisStore, hand: Hand, field: str, value: object
) -> None:
    insert(redis_store, 3)
    held = claim(redis_store, new_node(), 3)
    if field == "owner":
        field, value = "owner_node_id", "nobody"
    hand.edit(held[1].id, field, value)

    def reclaim() -> list[JobId]:
        ended = redis_store.jobs.reclaim(
            lambda orphan: outcome(next(job for job in held if job.id == orphan.id)),
            silent_since=AFTER_ALL,
            limit=10,
            now=T0,
        )
        return [orphan.id for orphan, _ in ended]

    assert reclaim() == [held[0].id, held[2].id]
    assert reclaim() == []
    assert redis_store.jobs.counts()[JobState.PROCESSING] == 0
    assert redis_store.jobs.counts()[JobState.QUARANTINED] == 1


def test_a_row_that_changes_while_it_is_set_aside_is_left(
    redis_store: RedisStore, redis_space: RedisSpace, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner ends the attempt between the reading of an orphan and its quarantine."""
    insert(redis_store)
    node = new_node()
    [held] = claim(redis_store, node)
    packed = redis_store._gateway.command("HGET", "rows", held.id.hex)
    hand.edit(held.id, "owner_node_id", "nobody")
    run = redis_store._gateway.run

    def mended(name: str, *rest: Any, **arguments: Any) -> Any:
        if name == "job_set_aside":
            hand.write(held.id, packed)
            assert finish(redis_store, node, [outcome(held)]) == ["recorded"]
        return run(name, *rest, **arguments)

    monkeypatch.setattr(redis_store._gateway, "run", mended)
    assert redis_store.jobs.reclaim(_never, silent_since=AFTER_ALL, limit=10, now=T0) == []

    assert redis_store.jobs.counts()[JobState.SUCCEEDED] == 1
    check_books(redis_space)


def _never(orphan: object) -> Any:
    raise AssertionError(f"{orphan} is no orphan")


MOVES: list[tuple[str, object, JobState]] = [
    ("state", "SUCCEEDED", JobState.SUCCEEDED),
    ("queue", "other", JobState.ENQUEUED),
    ("handler", "other", JobState.ENQUEUED),
    ("state", "SCHEDULED", JobState.SCHEDULED),
    ("place", "00000000", JobState.ENQUEUED),
]


@pytest.mark.parametrize(("field", "value", "state"), MOVES)
def test_a_row_that_was_edited_is_found_where_it_says_and_runs_once(
    redis_store: RedisStore,
    redis_space: RedisSpace,
    field: str,
    value: object,
    state: JobState,
) -> None:
    hand = Hand(redis_space)
    [job] = insert(redis_store)
    hand.edit(job.id, field, value)

    claimed = take(redis_store, 10, ["default"])
    claimed += take(redis_store, 10, ["default"])

    expected = [job.id] if field == "place" else []
    assert ids_of(claimed) == expected
    assert redis_store.jobs.counts()[JobState.PROCESSING if expected else state] == 1
    check_books(redis_space)


@pytest.mark.parametrize(
    ("key", "member"),
    [
        ("index", b"a\0work\x0000bad"),
        ("index", b"a\0work\0" + b"0" * 40),
        ("index", b"s\0ENQUEUED\0bad"),
        ("index", b"i\0pump\0bad"),
        ("delayed", b"\xff"),
        ("processing", b"junk"),
    ],
)
def test_a_member_that_names_no_job_stops_nobody(
    redis_store: RedisStore, hand: Hand, key: str, member: bytes
) -> None:
    hand.add(key, member)
    jobs = insert(redis_store, 2, handler="work")

    assert redis_store.jobs.promote(limit=10, now=T0) == 0
    assert redis_store.jobs.reclaim(_never, silent_since=AFTER_ALL, limit=10, now=T0) == []
    assert len(redis_store.jobs.list()) == 2
    assert redis_store.jobs.list(task="pump") == []
    for queues in (None, ["default"]):
        assert len(take(redis_store, 1, queues)) == 1

    assert member not in hand.members(key)
    assert redis_store.jobs.counts()[JobState.PROCESSING] == len(jobs)


@pytest.mark.parametrize("value", ["many", "-7", ""])
def test_a_counter_that_is_none_stops_nobody_and_holds_no_task(
    redis_store: RedisStore, hand: Hand, value: str
) -> None:
    redis_store.recurring.register(new_task(), now=T0)
    for field in ("s:ENQUEUED", "q:default", "t:pump"):
        hand.count(field, value)
    redis_store.recurring.materialize(["pump"], one_instance, now=T0)
    run_all(redis_store)

    held: list[bool] = []
    redis_store.recurring.materialize(
        ["pump"],
        lambda reading: held.append(reading.unfinished) or one_instance(reading),  # type: ignore[func-returns-value]
        now=T0,
    )
    assert held == [False]
    assert redis_store.jobs.counts()[JobState.SUCCEEDED] == 1


@pytest.mark.parametrize("value", ["many", "-7", ""])
def test_counts_are_told_without_a_counter_that_is_none(
    redis_store: RedisStore, hand: Hand, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    insert(redis_store, 2)
    insert(redis_store, queue="other")
    for field in ("s:ENQUEUED", "q:default", "q:empty"):
        hand.count(field, value)

    for _ in range(2):
        assert redis_store.jobs.counts()[JobState.ENQUEUED] == 3
        assert redis_store.jobs.queue_depths() == {"other": 1}

    assert len(caplog.messages) == 3
    assert all(repr(value.encode()) in line for line in caplog.messages)
    assert [field for field in ("s:ENQUEUED", "q:default") if repr(field) in caplog.text] == [
        "s:ENQUEUED",
        "q:default",
    ]


@pytest.mark.parametrize("value", ["many", "-7"])
def test_the_count_of_a_state_begins_anew_from_the_index(
    redis_store: RedisStore, redis_client: Any, hand: Hand, value: str
) -> None:
    insert(redis_store, 2)
    hand.count("s:ENQUEUED", value)

    insert(redis_store, queue="other")

    assert redis_client.hget(hand.name("counters"), "s:ENQUEUED") == b"3"
    hand.count("s:ENQUEUED", value)
    run_all(redis_store)
    assert not redis_client.hexists(hand.name("counters"), "s:ENQUEUED")
    assert redis_store.jobs.counts()[JobState.SUCCEEDED] == 3


@pytest.mark.parametrize("value", ["many", "-1", "-7"])
def test_a_guard_whose_counter_is_none_holds_until_it_is_counted(
    redis_store: RedisStore, hand: Hand, value: str
) -> None:
    """An instance is born and nothing else is done: it must not be left without its guard."""
    redis_store.recurring.register(new_task(), now=T0)
    hand.count("t:pump", value)
    make = redis_store.recurring.trigger
    assert make("pump", lambda task: new_job(cron_task_name=task.name), now=T0)

    held: list[bool] = []
    redis_store.recurring.materialize(
        ["pump"],
        lambda reading: held.append(reading.unfinished) or one_instance(reading),  # type: ignore[func-returns-value]
        now=T0,
    )
    assert held == [True]


def test_a_payload_that_was_deleted_is_not_taken_for_none(
    tm: Threadmill, redis_space: RedisSpace, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @tm.job("greet")
    def greet(name: str = "nobody") -> None:
        ran.append(name)

    lost = tm.enqueue(greet, "Ada")
    without = tm.enqueue(greet)
    hand.remove("payloads")
    kept = tm.enqueue(greet, "Bob")

    assert tm.run_until_idle() == 2

    assert ran == ["nobody", "Bob"]
    found = tm.get_job(lost)
    assert found is not None
    assert found.state is JobState.QUARANTINED
    assert "payload" in (found.history[-1].message or "")
    assert {job.id for job in tm.list_jobs(state="SUCCEEDED")} == {without, kept}
    assert [str(lost) in line for line in caplog.messages if "append-only" not in line] == [True]
    check_books(redis_space)


def test_a_job_of_an_older_release_does_not_say_whether_it_has_a_payload(
    redis_store: RedisStore, redis_client: Any, hand: Hand
) -> None:
    [job] = insert(redis_store, payload="1")
    row = msgspec.msgpack.decode(redis_client.hget(hand.name("rows"), job.id.hex))
    hand.write(job.id, msgspec.msgpack.encode(row[: len(FIELDS)]))

    assert [each.payload for each in claim(redis_store, new_node())] == ["1"]


def test_a_history_with_a_hole_is_shown_without_it(
    redis_store: RedisStore, redis_client: Any, hand: Hand
) -> None:
    [job] = insert(redis_store)
    node = new_node()
    [held] = claim(redis_store, node)
    finish(redis_store, node, [outcome(held, OutcomeKind.RETRY, retry_seconds=0.0)])
    redis_client.hdel(hand.name("trail"), f"{job.id.hex}:1")

    found = redis_store.jobs.get(job.id)

    assert found is not None
    assert len(found.history) == 1


@pytest.fixture
def tm(redis_client: Redis, redis_space: RedisSpace) -> Iterator[Threadmill]:
    tm = Threadmill.redis(redis_client, redis_space.prefix)
    yield tm
    tm.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda hand, job: hand.delete_row(job),
        lambda hand, job: hand.write(job, b"junk"),
        lambda hand, job: hand.edit(job, "attempt", "one"),
        lambda hand, job: hand.edit(job, "rest", "{"),
    ],
    ids=["deleted", "no row", "a number that is none", "settings that are none"],
)
def test_an_application_runs_all_but_the_damaged_one(
    tm: Threadmill, hand: Hand, damage: Callable[[Hand, UUID], None]
) -> None:
    ran: list[JobId] = []

    @tm.job("work")
    def work(ctx: JobContext) -> None:
        ran.append(ctx.id)

    jobs = [tm.enqueue(work) for _ in range(4)]
    damage(hand, jobs[0])

    assert tm.run_until_idle() == 3

    assert ran == jobs[1:]
    assert {job.id for job in tm.list_jobs(state="SUCCEEDED")} == set(ran)
    assert tm.get_job(JobId(uuid4())) is None
