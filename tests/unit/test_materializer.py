from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.engine.recurring.materializer import Materializer
from threadmill_sa.errors import StoreInvariantError, StoreUnavailableError
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, NodeId, OutcomeKind
from threadmill_sa.model.limits import CATCH_UP_MAX, MATERIALIZE_BATCH, TICK_PAGE
from threadmill_sa.model.recurring import CronTask, MissedRunPolicy
from threadmill_sa.model.trigger import Every, timing_fingerprint, trigger_text
from threadmill_sa.spi.recurring import Plan, Recurring, TaskOutcome, TickResult
from threadmill_sa.stores.memory import MemoryStore

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
DUE = T0 + timedelta(minutes=10)
TEN = Every(minutes=10)
KIND, VALUE, _ = trigger_text(TEN)


def register(store: MemoryStore, *names: str, **fields: Any) -> None:
    for name in names:
        task = CronTask(name, KIND, VALUE, "UTC", "relay", timing_fingerprint(TEN), **fields)
        store.recurring.register(task, now=T0)


@dataclass
class Faulty:
    """The memory store's tasks, whose commits fail while they name one of `bad`."""

    inner: Recurring
    bad: set[str] = field(default_factory=set)
    error: Exception = field(default_factory=lambda: RuntimeError("constraint violated"))
    out_after: int | None = None  # commits until the store is out
    batches: list[list[str]] = field(default_factory=list)
    waits: set[bool] = field(default_factory=set)
    nominate: Any = None

    def __post_init__(self) -> None:
        self.nominate = self.inner.nominate

    def materialize(
        self,
        names: Sequence[str],
        plan: Plan,
        *,
        wait: bool = False,
        now: datetime | None = None,
    ) -> list[TaskOutcome]:
        self.batches.append(list(names))
        self.waits.add(wait)
        if self.out_after is not None and len(self.batches) > self.out_after:
            raise StoreUnavailableError("store is out")
        if self.bad.intersection(names):
            raise self.error
        return self.inner.materialize(names, plan, wait=wait, now=now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def setup(*names: str) -> tuple[MemoryStore, Faulty, Materializer]:
    store = MemoryStore()
    register(store, *names)
    faulty = Faulty(store.recurring)
    return store, faulty, Materializer(cast("Recurring", faulty), Uuid7Source())


def test_a_pass_over_nothing_writes_nothing() -> None:
    _, faulty, materializer = setup("a")

    assert materializer.tick(now=T0) == []
    assert faulty.batches == []


def test_a_pass_runs_what_is_due_and_what_is_nudged() -> None:
    store, _, materializer = setup("a", "b", "c")
    store.recurring.request_cron_nudge("b", now=T0)

    early = materializer.tick(now=T0)
    late = materializer.tick(now=DUE)

    assert [(each.name, each.result) for each in early] == [("b", TickResult.MATERIALIZED)]
    assert [(each.name, each.result) for each in late] == [
        ("a", TickResult.MATERIALIZED),
        ("b", TickResult.HELD),
        ("c", TickResult.MATERIALIZED),
    ]


def test_batches_are_bounded_and_pages_follow_until_the_end() -> None:
    names = [f"task-{number:05}" for number in range(TICK_PAGE + 1)]
    _, faulty, materializer = setup(*names)

    outcomes = materializer.tick(now=DUE)

    assert [each.name for each in outcomes] == names
    assert max(len(batch) for batch in faulty.batches) == MATERIALIZE_BATCH
    assert [name for batch in faulty.batches for name in batch] == names


def test_a_page_full_of_held_tasks_starves_no_later_one() -> None:
    held = [f"a-{number:05}" for number in range(TICK_PAGE)]
    store, _, materializer = setup(*held)
    materializer.tick(now=DUE)
    register(store, "z")

    outcomes = materializer.tick(now=DUE + timedelta(minutes=10))

    assert outcomes[-1].name == "z"
    assert outcomes[-1].result is TickResult.MATERIALIZED
    assert {each.result for each in outcomes[:-1]} == {TickResult.HELD}


@pytest.mark.parametrize("pages", [1, 2])
def test_a_store_whose_pages_come_again_is_told_so_and_ends_the_pass(pages: int) -> None:
    names = [f"task-{number:05}" for number in range(pages * TICK_PAGE)]
    _, faulty, materializer = setup(*names)
    asked: list[str | None] = []

    def nominate(*, after: str | None, limit: int, now: datetime | None = None) -> list[str]:
        asked.append(after)
        assert len(asked) <= pages + 1, "it is asked again and again"
        beginning = limit * ((len(asked) - 1) % pages)
        return names[beginning : beginning + limit]

    faulty.nominate = nominate

    with pytest.raises(StoreInvariantError, match=f"after '{names[-1]}'") as raised:
        materializer.tick(now=DUE)

    assert raised.value.facts["task"] == names[TICK_PAGE - 1]
    assert [name for batch in faulty.batches for name in batch] == names  # each of them once


def test_a_failing_task_leaves_the_others_of_its_batch_untouched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, faulty, materializer = setup("a", "bad", "c")
    faulty.bad = {"bad"}

    outcomes = materializer.tick(now=DUE)

    assert [each.name for each in outcomes] == ["a", "c"]
    view = store.recurring.get("bad")
    assert view is not None
    assert (view.next_run_at, view.broken_reason) == (DUE, None)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "recurring.materialize_failed task='bad'" in record.getMessage()
    assert record.exc_info is not None


def test_a_fault_that_stays_is_logged_once_and_again_after_a_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, faulty, materializer = setup("bad")
    for bad in ({"bad"}, {"bad"}, set[str](), {"bad"}):
        faulty.bad = bad
        store.recurring.request_cron_nudge("bad", now=T0)
        materializer.tick(now=T0)

    assert len(caplog.records) == 2


def test_a_fault_that_passes_costs_no_fire() -> None:
    _, faulty, materializer = setup("bad")
    faulty.bad = {"bad"}
    materializer.tick(now=DUE)
    faulty.bad = set()

    [done] = materializer.tick(now=DUE + timedelta(seconds=1))

    assert done.jobs[0].fire_time == DUE


def test_a_store_that_is_out_ends_the_pass_at_once() -> None:
    _, faulty, materializer = setup("a", "b")
    faulty.bad, faulty.error = {"a"}, StoreUnavailableError("store is out")

    with pytest.raises(StoreUnavailableError):
        materializer.tick(now=DUE)

    assert faulty.batches == [["a", "b"]]


def test_a_store_that_goes_out_during_the_single_tries_ends_the_pass() -> None:
    _, faulty, materializer = setup("a", "b")
    faulty.bad = {"b"}
    faulty.out_after = 1

    with pytest.raises(StoreUnavailableError):
        materializer.tick(now=DUE)

    assert faulty.batches == [["a", "b"], ["a"]]


def test_the_wish_to_wait_reaches_the_store() -> None:
    _, faulty, materializer = setup("a")

    materializer.tick(now=DUE, wait=True)

    assert faulty.waits == {True}


def test_a_broken_task_is_reported_with_its_reason() -> None:
    store, _, materializer = setup("good")
    bad = CronTask("bad", KIND, "soon", "UTC", "relay", "bad")
    store.recurring.register(bad, now=T0)

    outcomes = materializer.tick(now=T0 + timedelta(minutes=1))

    [done] = outcomes
    assert (done.name, done.result) == ("bad", TickResult.BROKEN)
    assert "soon" in (done.broken_reason or "")


def test_a_catch_up_backlog_is_worked_off_pass_by_pass() -> None:
    store, _, materializer = setup()
    register(store, "a", missed_run_policy=MissedRunPolicy.CATCH_UP)
    now = T0 + timedelta(minutes=10 * (CATCH_UP_MAX + 2))
    node = NodeId(uuid4())

    made = []
    for _ in range(4):
        made.append(sum(len(each.jobs) for each in materializer.tick(now=now)))
        claimed = store.jobs.claim(node, queues=None, handlers=["relay"], limit=500, now=now)
        ends = [
            AttemptOutcome(job.id, job.attempt_token, OutcomeKind.SUCCEEDED, failure.SUCCESS)
            for job in claimed
        ]
        store.jobs.finish(node, ends, now=now)

    assert made == [CATCH_UP_MAX, 2, 0, 0]
