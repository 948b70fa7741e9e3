"""A forked child waits for no thread that stayed in its parent."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import create_engine

from threadmill_sa import Threadmill
from threadmill_sa._util.forks import ChildLock
from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.clock import SystemClock
from threadmill_sa.engine.processing import wakes
from threadmill_sa.engine.recurring.coalescer import NudgeCoalescer
from threadmill_sa.model.nudge import NudgeOutcome, NudgeVerdict
from threadmill_sa.session import hooks
from threadmill_sa.stores.sql.numbering import RevisionBlocks
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.stores.sql.waker import Waker

WAIT_SECONDS = 10

ACCEPTED = NudgeOutcome(NudgeVerdict.ACCEPTED, revision=1)


def child_ends(work: Callable[[], bool]) -> bool:
    """Return whether `work` is true in a forked child; an alarm ends a child that hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking with threads
        child = os.fork()
    if child == 0:  # pragma: no cover  Another process.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT_SECONDS)
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_nudge_in_a_forked_child_waits_for_no_write_of_its_parent() -> None:
    begun, go, parent = threading.Event(), threading.Event(), os.getpid()

    def write(name: str) -> NudgeOutcome:
        if os.getpid() == parent:
            begun.set()
            assert go.wait(WAIT_SECONDS)
        return ACCEPTED

    coalescer = NudgeCoalescer(write)
    thread = threading.Thread(target=coalescer.request, args=("pump",))
    thread.start()
    assert begun.wait(WAIT_SECONDS)

    answered = child_ends(lambda: coalescer.request("pump") == ACCEPTED)
    go.set()
    thread.join(WAIT_SECONDS)

    assert answered
    assert coalescer.request("pump") == ACCEPTED


def test_a_forked_child_makes_ids_while_a_thread_of_its_parent_held_the_lock() -> None:
    source = Uuid7Source()
    now = datetime(2030, 1, 1, tzinfo=UTC)

    with source._lock:
        answered = child_ends(lambda: source(now).version == 7)

    assert answered


def test_a_forked_child_draws_revisions_while_a_thread_of_its_parent_held_the_lock() -> None:
    blocks = RevisionBlocks()

    with blocks._lock:
        drew = child_ends(lambda: blocks.next(lambda: 7000) == 7000)

    assert drew


def test_a_forked_child_wakes_others_while_a_thread_of_its_parent_held_the_lock() -> None:
    waker = Waker("threadmill_test", connect=refuse, clock=SystemClock())

    def wakes() -> bool:
        waker.notify()
        waker.close()
        return True

    with waker._lock:
        woke = child_ends(wakes)

    assert woke


def refuse() -> object:
    raise OSError("no server here")


def test_a_lock_held_in_the_parent_is_free_in_a_forked_child() -> None:
    lock, held, go = ChildLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            assert go.wait(WAIT_SECONDS)

    def take() -> bool:
        with lock:
            return True

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_SECONDS)

    answered = child_ends(take)
    go.set()
    thread.join(WAIT_SECONDS)

    assert answered


def test_every_lock_a_producer_meets_is_free_in_a_forked_child(tmp_path: Path) -> None:
    store = SqlStore(create_engine(f"sqlite:///{tmp_path / 'jobs.db'}"))
    tm = Threadmill(store)
    locks = [tm._preparing, store._building, hooks.counters._lock, hooks._install_lock]

    assert all(isinstance(lock, ChildLock) for lock in [*locks, wakes._lock])
    tm.close()
