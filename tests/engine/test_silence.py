"""Whose silence counts: by the store's clock, which may jump, and by a process that may sleep."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

import pytest

from tests.engine.beating import EVERY, TIMEOUT, Beating, World
from tests.engine.bench import AT_ONCE, Bench, arrives, eventually
from threadmill_sa.clock import SystemClock, suspend_proof_seconds
from threadmill_sa.engine.processing import crew
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, JobId, OrphanedJob, OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.testing.suite.tools import insert, seconds

HOUR = 3600.0


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def observer(world: World) -> Beating:
    return Beating(world)


@pytest.fixture
def other(world: World) -> Beating:
    """A node that holds a job."""
    insert(world.store)
    other = Beating(world)
    other.claim()
    return other


def taken_back(world: World, observer: Beating) -> list[JobId]:
    """What the observer takes from silent nodes, as its housekeeping does."""
    since = observer.silent_since()
    if since is None:
        return []

    def fail(orphan: OrphanedJob) -> AttemptOutcome:
        return AttemptOutcome(orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.ORPHAN)

    ended = world.store.jobs.reclaim(fail, silent_since=since, limit=10)
    return [orphan.id for orphan, _ in ended]


def live(world: World, *nodes: Beating, beats: int) -> None:
    """Let the nodes beat as they do."""
    for _ in range(beats):
        for node in nodes:
            node.beat()
        world.pass_seconds(EVERY)


def test_a_node_that_died_is_silent_after_the_timeout_and_not_before(
    world: World, observer: Beating, other: Beating
) -> None:
    live(world, observer, other, beats=4)
    live(world, observer, beats=2)
    world.pass_seconds(EVERY - 0.001)
    assert taken_back(world, observer) == []

    world.pass_seconds(0.001)

    assert taken_back(world, observer) == [other.held[0].job_id]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_jump_of_the_stores_clock_makes_nobody_silent(
    world: World,
    observer: Beating,
    other: Beating,
    jump: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    live(world, observer, other, beats=4)

    world.jump(jump)
    assert taken_back(world, observer) == []  # before anybody has beaten
    observer.beat()
    assert taken_back(world, observer) == []  # before the other one has
    live(world, other, observer, beats=4)
    assert observer.silent_since() is not None
    assert taken_back(world, observer) == []

    assert caplog.text.count("the store's clock moved") == 2  # each node tells it once


def test_a_node_that_dies_after_a_jump_is_silent_in_its_time(
    world: World, observer: Beating, other: Beating
) -> None:
    live(world, observer, other, beats=4)
    world.jump(HOUR)
    live(world, observer, other, beats=4)

    live(world, observer, beats=4)

    assert taken_back(world, observer) == [other.held[0].job_id]


@pytest.mark.parametrize("drift", [TIMEOUT / 2 - 1, -TIMEOUT / 2 + 1])
def test_a_jump_that_is_too_small_to_be_told_makes_nobody_silent(
    world: World, observer: Beating, other: Beating, drift: float
) -> None:
    live(world, observer, other, beats=4)
    world.pass_seconds(4.0)

    world.jump(drift)
    observer.beat()

    assert observer.silent_since() is not None
    assert taken_back(world, observer) == []


def test_a_machine_that_slept_judges_nobody_before_all_can_have_beaten(
    world: World, observer: Beating, other: Beating, caplog: pytest.LogCaptureFixture
) -> None:
    live(world, observer, other, beats=4)

    world.pass_seconds(HOUR)
    assert taken_back(world, observer) == []
    observer.beat()
    world.pass_seconds(EVERY)
    assert taken_back(world, observer) == []
    live(world, other, observer, beats=3)

    assert observer.silent_since() is not None
    assert taken_back(world, observer) == []
    assert "the store's clock moved" not in caplog.text


def test_a_node_that_the_store_has_forgotten_judges_nobody(
    world: World, observer: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it knows of the store's clock is as old as its last registration."""
    live(world, observer, beats=4)
    monkeypatch.setattr(world.store.nodes, "list", list)

    observer.beat()

    assert observer.silent_since() is None


@pytest.mark.parametrize("slept", [False, True], ids=["the clock jumps", "the machine slept"])
def test_an_hour_that_nobody_saw_takes_no_job_from_a_living_node(
    any_bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    slept: bool,
) -> None:
    """On SQLite and in memory it is the store's clock too, on a server the processes' alone."""
    bench, gate, hidden = any_bench, threading.Event(), [0.0]
    monkeypatch.setattr(SystemClock, "now", ahead(SystemClock.now, hidden))
    if slept:
        monkeypatch.setattr(
            crew, "suspend_proof_seconds", lambda: suspend_proof_seconds() + hidden[0]
        )
    bench.declare(lambda: arrives(gate), backoff=AT_ONCE)
    job_id = bench.enqueue()
    nodes = [bench.node(heartbeat=0.25, heartbeat_timeout=1.0, tick=0.25) for _ in range(2)]

    with nodes[0], nodes[1], caplog.at_level(logging.WARNING):
        bench.wait_state(job_id, JobState.PROCESSING)
        housekeeping(bench, passes=8)  # both may judge
        hidden[0] = HOUR
        housekeeping(bench, passes=8)
        gate.set()
        job = bench.wait_state(job_id, JobState.SUCCEEDED)

    assert job.attempt == 1
    assert "stopped beating" not in caplog.text
    assert "emptied or restored" not in caplog.text
    own_clock = bench.store.capabilities.own_clock
    assert ("the store's clock moved" in caplog.text) is (slept is own_clock)


def housekeeping(bench: Bench, *, passes: int) -> None:
    done = bench.store.calls("recurring.sweep_nudges") + passes
    eventually(lambda: bench.store.calls("recurring.sweep_nudges") >= done, "housekeeping")


def ahead(
    now: Callable[[SystemClock], datetime], hidden: list[float]
) -> Callable[[SystemClock], datetime]:
    return lambda clock: now(clock) + seconds(hidden[0])
