"""A key that holds something else than ours: a script fails whole, and tears nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import check_books
from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import ClaimedJob, JobId, NodeId, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.redis.keys import KEYS, KeySpace
from threadmill_sa.stores.redis.misfits import Misfit
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    insert,
    new_job,
    new_node,
    new_task,
    nudge,
    one_instance,
    outcome,
    run_all,
)


class Place:
    """A store with something of everything."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.node: NodeId = new_node()
        store.recurring.register(new_task(), now=T0)
        store.recurring.register(new_task("other"), now=T0)
        store.nodes.beat(self.info, [])
        insert(store, payload="1")
        run_all(store)
        [self.held] = self._held()
        self.ready: JobId = insert(store, payload="2")[0].id
        insert(store, run_at=T0)
        nudge(store)

    @property
    def info(self) -> NodeInfo:
        return NodeInfo(self.node, "host", 1, None, 2)

    def _held(self) -> list[ClaimedJob]:
        insert(self.store, payload="3")
        return claim(self.store, self.node)

    def reclaim(self) -> object:
        return self.store.jobs.reclaim(
            lambda _: outcome(self.held), silent_since=AFTER_ALL, limit=9, now=T0
        )

    def set_aside(self) -> None:
        row = self.store._gateway.command("HGET", "rows", self.ready.hex)
        misfit = Misfit(self.ready.hex.encode(), row, wrong="a hand")
        self.store._jobs._misfits.set_aside([misfit], now=T0)

    def remove_old(self) -> object:
        return self.store.jobs.remove_old(
            JobState.SUCCEEDED, older_than_seconds=0.0, limit=9, now=T0
        )

    def forget(self) -> object:
        return self.store._gateway.run("task_forget", names=b"\x91\x92\xa4pump\xc3")

    def clear(self) -> object:
        view = self.store.recurring.get("pump")
        assert view is not None
        return self.store.recurring.clear_cron_nudge("pump", view.nudge_revisions)

    def trigger(self) -> object:
        recurring = self.store.recurring
        return recurring.trigger(
            "pump", lambda task: new_job(cron_task_name=task.name, payload="1"), now=T0
        )


Work = Callable[[Place], object]
WORKS: dict[str, Work] = {
    "insert": lambda at: insert(at.store, payload="1"),
    "insert delayed": lambda at: insert(at.store, run_at=T0),
    "claim": lambda at: claim(at.store, at.node, 9),
    "finish": lambda at: at.store.jobs.finish(at.node, [outcome(at.held)], now=T0),
    "retry": lambda at: at.store.jobs.finish(
        at.node, [outcome(at.held, OutcomeKind.RETRY, retry_seconds=1.0)], now=T0
    ),
    "promote": lambda at: at.store.jobs.promote(limit=9, now=T0),
    "reclaim": Place.reclaim,
    "delete": lambda at: at.store.jobs.delete(at.ready, now=T0),
    "remove old": Place.remove_old,
    "set aside": Place.set_aside,
    "beat": lambda at: at.store.nodes.beat(at.info, [HeldJob(at.held.id, at.held.attempt_token)]),
    "leave": lambda at: at.store.nodes.remove(at.node),
    "sweep nodes": lambda at: at.store.nodes.remove_stale(silent_since=AFTER_ALL),
    "register": lambda at: at.store.recurring.register(new_task("third"), now=T0),
    "edit": lambda at: at.store.recurring.register(new_task(queue="far"), now=T0),
    "mend": lambda at: at.store.recurring.register(new_task(), now=T0),
    "pause": lambda at: at.store.recurring.set_enabled("pump", enabled=False, now=T0),
    "drop": lambda at: at.store.recurring.delete("pump"),
    "forget": Place.forget,
    "nudge": lambda at: nudge(at.store),
    "nudge another": lambda at: nudge(at.store, name="other"),
    "clear": Place.clear,
    "tick": lambda at: at.store.recurring.materialize(["pump"], one_instance, now=T0),
    "trigger": Place.trigger,
}


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recording"])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_a_key_of_another_type_fails_a_script_before_it_writes(
    redis_space: RedisSpace, redis_client: Any, work: Work, *, record: bool
) -> None:
    name = KeySpace(redis_space.prefix).name
    failed = set()
    for key in KEYS:
        with redis_space.store(record_nudges=record) as store:
            place = Place(store)
            before = _all(redis_client, redis_space, but=key)
            existed = bool(redis_client.exists(name(key)))
            if existed:
                redis_client.rename(name(key), name("kept"))
            redis_client.set(name(key), "junk")
            try:
                work(place)
            except StoreInvariantError:
                failed.add(key)
                assert _all(redis_client, redis_space, but=key) == before, key
                redis_client.delete(name(key))
                if existed:
                    redis_client.rename(name("kept"), name(key))
                check_books(redis_space)
            redis_client.delete(name("kept"), *redis_space.names())

    assert failed


def _all(client: Any, space: RedisSpace, *, but: str) -> dict[str, object]:
    name = KeySpace(space.prefix).name
    dumps = {key: client.dump(name(key)) for key in KEYS}
    # What a hash holds may be kept in another order; what is drawn is never given again.
    return {key: dump for key, dump in dumps.items() if key not in (but, "sequences")}
