"""The edge cases of starting and stopping one thread."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.engine.bench import WAIT_SECONDS, arrives, eventually
from threadmill_sa.engine.service import Service


class Counting(Service):
    """Counts its turns; can be told to fail."""

    def __init__(self) -> None:
        super().__init__("threadmill-test")
        self.turns = 0
        self.opened = 0
        self.refuse = False
        self.die = False
        self.stuck: threading.Event | None = None

    def _open(self) -> None:
        if self.refuse:
            raise ValueError("refused")
        self.opened += 1

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turns += 1
            if self.die:
                raise SystemExit
            if self.stuck is not None:
                self.stuck.wait(WAIT_SECONDS)
            self._wait(60)


def test_a_stop_before_the_start_is_nothing():
    service = Counting()

    assert service.stop(0)

    service.start()
    assert service.running
    assert service.stop(WAIT_SECONDS)


def test_a_second_start_is_nothing_while_it_runs():
    service = Counting()

    service.start()
    service.start()

    assert service.opened == 1
    assert service.stop(WAIT_SECONDS)
    assert service.stop(WAIT_SECONDS)
    assert not service.running


def test_it_starts_again_after_a_stop():
    service = Counting()
    service.start()
    service.stop(WAIT_SECONDS)

    service.start()

    assert service.running
    assert service.opened == 2
    service.stop(WAIT_SECONDS)


def test_a_start_that_raises_leaves_no_thread_and_may_be_repeated():
    service = Counting()
    service.refuse = True
    with pytest.raises(ValueError, match="refused"):
        service.start()
    service.refuse = False

    service.start()

    assert (service.running, service.opened) == (True, 1)
    service.stop(WAIT_SECONDS)


def test_a_start_is_refused_while_the_old_thread_has_not_ended():
    service = Counting()
    service.stuck = threading.Event()
    service.start()
    eventually(lambda: service.turns == 1, "the first turn")

    assert not service.stop(0)
    with pytest.raises(RuntimeError, match="has not ended yet"):
        service.start()

    service.stuck.set()
    assert service.stop(WAIT_SECONDS)


def test_wakes_during_a_turn_cause_one_more_turn():
    service = Counting()
    service.stuck = threading.Event()
    service.start()
    eventually(lambda: service.turns == 1, "the first turn")

    for _ in range(5):
        service.wake()
    service.stuck.set()

    eventually(lambda: service.turns == 2, "one more turn")
    service.stop(WAIT_SECONDS)
    assert service.turns == 2


def test_a_loop_that_dies_is_told(caplog: pytest.LogCaptureFixture):
    service = Counting()
    service.die = True

    with caplog.at_level(logging.ERROR):
        service.start()
        eventually(lambda: not service.running, "the end of the thread")

    assert "service 'threadmill-test' ended by an error" in caplog.text


def test_a_stop_from_its_own_thread_does_not_wait_for_itself():
    answers = []
    done = threading.Event()

    class SelfStopping(Service):
        def _run(self) -> None:
            answers.append(self.stop(WAIT_SECONDS))
            done.set()

    SelfStopping("threadmill-test").start()

    assert arrives(done)
    assert answers == [False]
