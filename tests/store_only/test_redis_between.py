"""Each script that writes what was read before: what happened since counts as if it came first.

An operation reads, decides, and writes by a script that compares. Whatever comes in between, the
end is that of the two operations one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import check_books
from threadmill_sa.engine.recurring.planner import Planner
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.recurring import CronTask
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import T0, instances, new_task, nudge, seconds

DUE = T0 + seconds(600)
LATER = DUE + seconds(60)


@dataclass
class Scene:
    """One store, whose jobs are numbered by the instant they are made at."""

    store: RedisStore

    def __post_init__(self) -> None:
        self.plan = Planner(lambda at: UUID(int=int(at.timestamp())))
        self.store.recurring.register(new_task(), now=T0)

    def triggered(self, task: CronTask) -> NewJob:
        job = JobId(UUID(int=99))
        return NewJob(id=job, handler=task.handler, cron_task_name=task.name)

    def ending(self) -> list[Any]:
        """All that can be told apart: the epoch and what ticks look at as well."""
        recurring = self.store.recurring
        return [
            recurring.get("pump"),
            recurring.nominate(after=None, limit=9, now=LATER),
            [(job.id, job.handler) for job in instances(self.store)],
            recurring.request_cron_nudge("pump", now=LATER),
        ]


Act = Callable[[Scene], Any]

OPERATIONS: dict[str, tuple[str, Act]] = {
    "pause": (
        "task_flip",
        lambda scene: scene.store.recurring.set_enabled("pump", enabled=False, now=LATER),
    ),
    "edit": (
        "task_edit",
        lambda scene: scene.store.recurring.register(new_task(handler="edited"), now=LATER),
    ),
    "register again": (
        "task_mend",
        lambda scene: scene.store.recurring.register(new_task(), now=LATER),
    ),
    "trigger": (
        "task_materialize",
        lambda scene: scene.store.recurring.trigger("pump", scene.triggered, now=LATER),
    ),
    "tick": (
        "task_materialize",
        lambda scene: scene.store.recurring.materialize(["pump"], scene.plan, now=LATER),
    ),
}


def _renew(scene: Scene) -> None:
    scene.store.recurring.delete("pump")
    scene.store.recurring.register(new_task(handler="renewed"), now=DUE)


def _pause_for_a_while(scene: Scene) -> None:
    for enabled in (False, True):
        scene.store.recurring.set_enabled("pump", enabled=enabled, now=DUE)


HAPPENINGS: dict[str, Act] = {
    "delete": lambda scene: scene.store.recurring.delete("pump"),
    "delete, register": _renew,
    "edit": lambda scene: scene.store.recurring.register(new_task(handler="other"), now=DUE),
    "pause": lambda scene: scene.store.recurring.set_enabled("pump", enabled=False, now=DUE),
    "pause, resume": _pause_for_a_while,
    "tick": lambda scene: scene.store.recurring.materialize(["pump"], scene.plan, now=DUE),
    "nudge": lambda scene: nudge(scene.store, DUE),
}


@pytest.mark.parametrize("happening", HAPPENINGS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_comes_between_reading_and_writing_came_first(
    redis_space: RedisSpace,
    redis_store: RedisStore,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    happening: str,
) -> None:
    writing, operate = OPERATIONS[operation]
    happen = HAPPENINGS[happening]
    with monkeypatch.context() as patch, redis_space.store() as another:
        scene, others = Scene(redis_store), Scene(another)
        run, calls = redis_store._gateway.run, count()

        def run_late(name: str, /, *rest: Any, **arguments: Any) -> Any:
            if name == writing and next(calls) == 0:
                happen(others)
            return run(name, *rest, **arguments)

        patch.setattr(redis_store._gateway, "run", run_late)
        found = [operate(scene), *scene.ending()]
    assert next(calls) > 0
    check_books(redis_space)

    with redis_space.client() as client:
        client.delete(*redis_space.names())
    scene = Scene(redis_store)
    happen(scene)
    assert found == [operate(scene), *scene.ending()]
