"""Producers of every mode, nodes and lifecycle calls at once; at rest nothing may be missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.checker.conftest import Desk
from tests.promises.shop import background
from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import TaskDisabledError, UnknownTaskError
from threadmill_sa.testing import CoverageReport

WAIT_SECONDS = 30.0
PACE_SECONDS = 0.01  # between two nudges of one producer, so that one CPU can follow
TASK = "own"


class Storm:
    """One task under load; `began` is set by each of its runs."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.tm = desk, desk.tm
        self.began = threading.Event()
        self.tm.job("own-relay")(self.began.set)
        self.tm.recurring(TASK, "own-relay", Every(hours=1))
        self.tm.register()
        self._pause = threading.Event()  # never set

    def producers(self) -> list[Callable[[], None]]:
        modes: list[Callable[[], object]] = [
            lambda: self.tm.nudge(TASK),
            lambda: self._in_session(None),
            lambda: self._in_session("after_commit"),
        ]
        if self.tm.store.capabilities.concurrent_writers:
            modes += [
                lambda: self._in_session(None, "REPEATABLE READ"),
                lambda: self._in_session(None, "SERIALIZABLE"),
            ]
        return [self._paced(mode) for mode in modes]

    def _paced(self, work: Callable[[], object]) -> Callable[[], None]:
        def produce() -> None:
            self._pause.wait(PACE_SECONDS)
            try:
                work()
            except (TaskDisabledError, UnknownTaskError):
                return  # refused: nothing was promised

        return produce

    def _in_session(self, mode: str | None, isolation: str | None = None) -> None:
        with self.desk.transaction(isolation) as session:
            self.tm.nudge(TASK, session, mode=mode)

    def run_comes(self) -> None:
        self.began.clear()
        assert self.began.wait(WAIT_SECONDS), "no run came"

    @contextmanager
    def blowing(self, *, nodes: int) -> Iterator[None]:
        with ExitStack() as stack:
            for _ in range(nodes):
                stack.enter_context(self.tm.node(workers=2, tick=0.02, poll=0.02))
            stack.enter_context(background(*self.producers()))
            yield

    def calm(self) -> CoverageReport:
        report = self.desk.rest()
        assert report.nudges == report.covered + report.excused
        assert report.covered > 0
        return report


def test_every_nudge_is_covered_or_paused_away(desk: Desk) -> None:
    storm = Storm(desk)
    with storm.blowing(nodes=1):
        for _ in range(2):
            storm.run_comes()
            desk.tm.set_enabled(TASK, False)
            desk.tm.set_enabled(TASK, True)
        storm.run_comes()

    assert storm.calm().runs >= 3


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_nudge_of_a_long_storm_is_accounted_for(desk: Desk) -> None:
    storm, again = Storm(desk), Threadmill(desk.faults)
    again.job("own-relay")(lambda: None)
    again.recurring(TASK, "own-relay", Every(hours=1))
    with storm.blowing(nodes=2):
        for number in range(40):
            storm.run_comes()
            if number % 4 == 3:
                desk.tm.delete_recurring(TASK)
                again.register()
            elif number % 4 == 1:
                desk.tm.trigger(TASK)
            else:
                desk.tm.set_enabled(TASK, False)
                desk.tm.set_enabled(TASK, True)
        storm.run_comes()

    assert storm.calm().runs > 40
