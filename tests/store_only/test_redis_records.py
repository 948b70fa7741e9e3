"""Records of nudges and runs beside scripts that do not record, and what they cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import InvalidValueError
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.redis.keys import KeySpace
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing import CoverageReport, assert_every_nudge_covered
from threadmill_sa.testing.suite.tools import T0, new_id, new_task, nudge

PUMP = "pump"
READING, WRITING = ["EVALSHA", "HMGET", "ZSCORE", "HINCRBY"], ["HSET", "ZADD"]


def recording(client: Redis, space: RedisSpace) -> Threadmill:
    tm = Threadmill.redis(client, space.prefix, record_nudges=True)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))
    tm.register()
    return tm


def end_pause(store: JobStore) -> None:
    store.recurring.set_enabled(PUMP, enabled=False)
    store.recurring.set_enabled(PUMP, enabled=True)


def clear(store: JobStore) -> None:
    found = store.recurring.get(PUMP)
    assert found is not None
    store.recurring.clear_cron_nudge(PUMP, found.nudge_revisions)


@pytest.mark.parametrize("drop", [end_pause, clear])
def test_nudges_dropped_by_a_process_that_does_not_record_are_excused(
    redis_client: Redis,
    redis_space: RedisSpace,
    redis_store: RedisStore,
    drop: Callable[[JobStore], None],
) -> None:
    tm = recording(redis_client, redis_space)
    tm.nudge(PUMP)
    drop(redis_store)
    tm.run_until_idle()
    assert assert_every_nudge_covered(tm) == CoverageReport(1, 0, 0, 1)

    tm.nudge(PUMP)
    tm.run_until_idle()

    assert assert_every_nudge_covered(tm) == CoverageReport(2, 1, 2, 0)
    tm.close()


def test_a_nudge_that_a_process_without_records_accepts_moves_no_record(
    redis_space: RedisSpace, redis_store: RedisStore
) -> None:
    with redis_space.store(record_nudges=True) as store:
        records = store.records
        assert records is not None
        store.recurring.register(new_task(), now=T0)
        nudge(redis_store)
        records.record_run(PUMP, new_id(), 1, now=T0)
        nudge(redis_store)
        revision = nudge(store)

        audit = records.audit(None, examples=9)

    assert (audit.nudges, audit.covered) == (1, 0)
    assert [each.revision for each in audit.examples] == [revision]


def test_off_is_off(redis_client: Redis, redis_space: RedisSpace, redis_store: RedisStore) -> None:
    tm = Threadmill(redis_store)
    tm.job("relay")(lambda: None)
    tm.recurring(PUMP, "relay", Every(hours=1))
    tm.register()
    tm.nudge(PUMP)
    tm.run_until_idle()
    tm.nudge(PUMP)
    clear(redis_store)
    end_pause(redis_store)

    name = KeySpace(redis_space.prefix).name
    assert redis_client.exists(name("tasks")) == 1
    assert redis_client.exists(name("nudge_records"), name("snapshots")) == 0
    with pytest.raises(InvalidValueError, match="RedisStore records nothing"):
        Threadmill(redis_store, record_nudges=True)


@pytest.mark.parametrize("record", [False, True])
def test_a_record_is_one_command_more_in_the_script_that_accepts(
    redis_space: RedisSpace, *, record: bool
) -> None:
    with redis_space.client() as other, redis_space.store(record_nudges=record) as store:
        store.recurring.register(new_task(), now=T0)
        nudge(store)  # by now the server knows the script
        with other.monitor() as monitor, redis_space.client() as third:
            nudge(store)
            third.echo(redis_space.prefix)
            sent: list[str] = []
            while sent[-1:] != ["ECHO"]:
                seen = monitor.next_command()["command"]
                if redis_space.prefix in seen:
                    sent.append(seen.split()[0].upper())

    assert sent[:-1] == [*READING, *(["HSET"] if record else []), *WRITING]
