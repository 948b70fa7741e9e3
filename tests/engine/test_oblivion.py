"""A node whose registration is gone from the store: who is told, and who is not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.engine.processing import heartbeats
from threadmill_sa.engine.processing.attempts import AttemptBook
from threadmill_sa.engine.processing.heartbeats import Heartbeats
from threadmill_sa.model.limits import NODE_STALE_SECONDS
from threadmill_sa.model.node import NodeInfo
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.testing import ManualClock
from threadmill_sa.testing.suite.tools import T0, new_node, seconds


class Beating:
    """Beats of one node by hand; `told` counts who was told that the store has lost it."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.store = MemoryStore(self.clock)
        self.node = NodeInfo(new_node(), "host", 1, None, 2)
        self.told = 0
        self.failing = False
        self._beats = Heartbeats(
            "beats",
            self.store.nodes,
            self.node,
            AttemptBook(2),
            every_seconds=15.0,
            timeout_seconds=60.0,
            monotonic=time.monotonic,
            on_lost=lambda _: None,
            on_forgotten=self._tell,
        )

    def _tell(self) -> None:
        self.told += 1
        if self.failing:
            raise RuntimeError("the store is out")

    def beat(self) -> None:
        self.clock.advance(seconds(15))
        self._beats._beat()

    def lose(self) -> None:
        self.store.nodes.remove(self.node.id)


@pytest.fixture
def beating() -> Beating:
    beating = Beating()
    beating.beat()
    return beating


@pytest.fixture
def leap(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many seconds pass on the clock that goes on in a suspension."""

    def leap(count: float) -> None:
        moved = suspend_proof_seconds() + count
        monkeypatch.setattr(heartbeats, "suspend_proof_seconds", lambda: moved)

    return leap


def test_a_registration_that_is_gone_between_two_beats_is_noticed_once(beating: Beating) -> None:
    beating.beat()
    assert beating.told == 0

    beating.lose()
    beating.beat()
    beating.beat()

    assert beating.told == 1


def test_a_node_that_others_swept_away_in_its_silence_is_not_told(
    beating: Beating, leap: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What an operator deleted meanwhile must not come back."""
    beating.lose()
    leap(NODE_STALE_SECONDS)

    with caplog.at_level(logging.WARNING):
        beating.beat()

    assert beating.told == 0
    assert "call register()" in caplog.text
    beating.beat()
    beating.lose()
    beating.beat()
    assert beating.told == 1


def test_who_could_not_be_told_is_told_again(beating: Beating) -> None:
    beating.lose()
    beating.failing = True
    with pytest.raises(RuntimeError):
        beating.beat()
    beating.failing = False

    beating.beat()
    beating.beat()

    assert beating.told == 2
