"""A signal between any two lines of the start: everything that had begun is undone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

import pytest

from tests.engine.bench import engine_threads
from threadmill_sa import JobContext, JobId, Threadmill
from threadmill_sa.cli import draining
from threadmill_sa.engine import service
from threadmill_sa.engine.processing import crew, node, workers
from threadmill_sa.engine.processing.crew import Crew
from threadmill_sa.model.state import JobState

TRACED = {str(module.__file__) for module in (draining, crew, node, service, workers)}
STARTING = {"run_until_signal", "start", "_build", "_open", "_info", "job", "_main", "node"}
LINES_MIN = 60  # a sweep that saw less has not seen the start


@pytest.fixture(autouse=True)
def _no_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep this process, and give it its signals back."""
    monkeypatch.setattr(draining, "_exit_soon", lambda _: None)
    numbers = (signal.SIGTERM, signal.SIGINT)
    # Not the default, which a signal that comes late would end this process by.
    kept = {number: signal.signal(number, _late) for number in numbers}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def _late(_number: int, _frame: FrameType | None) -> None:
    """A signal after the worker has ended."""


class Start:
    """One worker in this process, on a store in memory with two jobs that never end."""

    def __init__(self) -> None:
        self.tm = Threadmill.in_memory()
        self.tm.job("hold")(self._hold)
        self.job_ids = [self.tm.enqueue("hold") for _ in range(2)]

    def run(self) -> int:
        """Until a signal, which comes by itself once the node runs."""
        # To the process: one that a thread raises for itself wakes no other.
        later = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGTERM])
        try:
            return draining.run_until_signal(
                lambda: self.tm.node(workers=2, grace=0.0, tick=0.05, poll=0.01),
                announce=lambda _: later.start(),
                tell=lambda _: None,
            )
        finally:
            later.cancel()

    def check(self) -> None:
        assert engine_threads() == []
        assert self.tm.store.nodes.list() == []
        for job_id in self.job_ids:
            assert self._state(job_id) == (JobState.ENQUEUED, 0)
        self.tm.close()

    def _state(self, job_id: JobId) -> tuple[JobState, int]:
        job = self.tm.get_job(job_id)
        assert job is not None
        return job.state, job.attempt

    @staticmethod
    def _hold(ctx: JobContext) -> None:
        ctx.wait_cancelled(60)
        ctx.check_in()


class Interruption:
    """Raises SIGTERM before line number `at` of the start, counted as they are run."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.place = ""

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        return self._line if code.co_filename in TRACED and code.co_name in STARTING else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and _listens():
            self._left -= 1
            if not self._left:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGTERM)
        return self._line if self._left > 0 else None


def _listens() -> bool:
    """Whether a signal would interrupt the start now."""
    handler = signal.getsignal(signal.SIGTERM)
    signals = getattr(handler, "__self__", None)
    return isinstance(signals, draining.Signals) and signals._starting


def test_a_signal_right_after_the_last_part_has_started_gives_its_claims_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, start = Crew.start, Start()

    def interrupted(self: Crew) -> None:
        begin(self)
        claimed = self._book.holds
        while len(claimed()) < len(start.job_ids):
            threading.Event().wait(0.005)
        raise draining.StartInterruptedError

    monkeypatch.setattr(Crew, "start", interrupted)

    assert start.run() == 0
    start.check()


def test_a_signal_while_the_handlers_are_installed_ends_the_process_cleanly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install, start = signal.signal, Start()

    def at_once(number: Any, handler: Any) -> Any:
        before = install(number, handler)
        if getattr(handler, "__func__", None) is draining.Signals._handle:
            monkeypatch.setattr(signal, "signal", install)
            signal.raise_signal(signal.SIGTERM)
        return before

    monkeypatch.setattr(signal, "signal", at_once)

    assert start.run() == 0
    start.check()


def test_a_signal_before_any_line_of_the_start_leaves_nothing_behind() -> None:
    places: list[str] = []
    while True:
        start = Start()
        with Interruption(len(places) + 1) as interruption:
            assert start.run() == 0, interruption.place
        if not interruption.place:
            break
        places.append(interruption.place)
        start.check()
    start.check()

    assert len(places) > LINES_MIN
