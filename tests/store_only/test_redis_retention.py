"""Removing finished jobs where a hand has been at the keys of the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import STATE, STATE_AT, check_books
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import DeleteVerdict, OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.redis.keys import KEYS, KeySpace
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import (
    T0,
    claim,
    ids_of,
    insert,
    new_node,
    outcome,
    run_all,
    seconds,
)

DAY = 86_400.0


@pytest.fixture
def store(redis_client: Redis, redis_space: RedisSpace) -> Iterator[RedisStore]:
    store = RedisStore(redis_client, prefix=redis_space.prefix)
    yield store
    store.close()


class Hand:
    def __init__(self, client: Any, prefix: str) -> None:
        self._client, self._name = client, KeySpace(prefix).name

    def left(self) -> list[str]:
        """The keys that hold anything."""
        return [key for key in KEYS if self._client.exists(self._name(key))]

    def list_as_finished(self, identity: str, *, at: int = 0) -> None:
        self._client.zadd(self._name("index"), {f"f\0SUCCEEDED\0{at:016d}{identity}": 0})

    def edit(self, identity: str, position: int, value: object) -> None:
        row = msgspec.msgpack.decode(self._client.hget(self._name("rows"), identity))
        row[position] = value
        self._client.hset(self._name("rows"), identity, msgspec.msgpack.encode(row))


@pytest.fixture
def hand(redis_client: Redis, redis_space: RedisSpace) -> Hand:
    return Hand(redis_client, redis_space.prefix)


def _remove(store: RedisStore, limit: int, state: JobState = JobState.SUCCEEDED) -> int:
    return store.jobs.remove_old(state, older_than_seconds=DAY, limit=limit, now=T0 + seconds(DAY))


def test_the_books_are_right_after_each_delete(store: RedisStore, redis_space: RedisSpace) -> None:
    delayed = insert(store, delay_seconds=5.0, cron_task_name="pump", payload="1")
    ended = insert(store, cron_task_name="pump", payload="1")
    run_all(store)
    ready = insert(store, cron_task_name="pump", payload="1")

    for job in [*delayed, *ended, *ready]:
        assert store.jobs.delete(job.id, now=T0) is DeleteVerdict.DELETED
        check_books(redis_space)


def test_nothing_is_left_of_jobs_that_were_removed(
    store: RedisStore, hand: Hand, redis_space: RedisSpace
) -> None:
    insert(store, 2, cron_task_name="pump", payload="1")
    node = new_node()
    first, second = claim(store, node)
    failed = outcome(second, OutcomeKind.RETRY, message="boom")
    store.jobs.finish(node, [outcome(first, result="7"), failed], now=T0)
    store.jobs.delete(second.id, now=T0)

    assert _remove(store, 9) == 1
    check_books(redis_space)
    assert _remove(store, 9, JobState.DELETED) == 1

    check_books(redis_space)
    assert hand.left() == []


def test_an_entry_of_a_finished_job_that_no_row_bears_out_holds_up_no_removal(
    store: RedisStore, hand: Hand, redis_space: RedisSpace
) -> None:
    old = insert(store, 2)
    run_all(store)
    [waiting] = insert(store)
    for identity in (uuid4().hex, uuid4().hex, waiting.id.hex):
        hand.list_as_finished(identity)

    handled = [_remove(store, 2) for _ in range(4)]

    assert handled == [2, 2, 1, 0]
    assert ids_of(store.jobs.list()) == [waiting.id]
    assert all(store.jobs.get(job.id) is None for job in old)
    check_books(redis_space)


@pytest.mark.parametrize("instant", [False, "soon", None, -1])
def test_a_finished_job_whose_instant_was_spoilt_can_be_deleted_and_stops_no_other(
    store: RedisStore, hand: Hand, instant: object
) -> None:
    spoilt, other = insert(store, 2)
    run_all(store)
    hand.edit(spoilt.id.hex, STATE_AT, instant)

    assert store.jobs.delete(spoilt.id, now=T0) is DeleteVerdict.DELETED
    assert _remove(store, 9) == 2  # the other one, and the entry that was the spoilt one's

    assert store.jobs.get(other.id) is None
    assert store.jobs.counts()[JobState.SUCCEEDED] == 0
    assert store.jobs.counts()[JobState.DELETED] == 1


def test_a_job_with_a_damaged_row_is_told_as_such_when_it_is_to_be_deleted(
    store: RedisStore, hand: Hand
) -> None:
    [job] = insert(store)
    hand.edit(job.id.hex, STATE, 7)

    with pytest.raises(StoreInvariantError, match=f"job {job.id} has a damaged row"):
        store.jobs.delete(job.id, now=T0)


def test_a_state_that_a_newer_release_has_ended_a_job_in_is_not_removed(
    store: RedisStore, hand: Hand
) -> None:
    [job] = insert(store)
    run_all(store)
    hand.edit(job.id.hex, STATE, "ARCHIVED")

    assert _remove(store, 9) == 1
    assert _remove(store, 9) == 0
