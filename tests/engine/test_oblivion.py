"""A node whose registration is gone from the store: who is told, and who is not."""

from __future__ import annotations

import logging

import pytest

from tests.engine.beating import EVERY, Beating, World
from threadmill_sa.model.limits import NODE_STALE_SECONDS


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def beating(world: World) -> Beating:
    beating = Beating(world)
    beating.beat()
    world.pass_seconds(EVERY)
    return beating


def test_a_registration_that_is_gone_between_two_beats_is_noticed_once(
    world: World, beating: Beating
) -> None:
    beating.beat()
    assert beating.told == 0

    beating.lose()
    world.pass_seconds(EVERY)
    beating.beat()
    beating.beat()

    assert beating.told == 1


def test_a_node_that_others_swept_away_in_its_silence_is_not_told(
    world: World, beating: Beating, caplog: pytest.LogCaptureFixture
) -> None:
    """What an operator deleted meanwhile must not come back."""
    beating.lose()
    world.pass_seconds(NODE_STALE_SECONDS)

    with caplog.at_level(logging.WARNING):
        beating.beat()

    assert beating.told == 0
    assert "call register()" in caplog.text
    beating.beat()
    beating.lose()
    world.pass_seconds(EVERY)
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
