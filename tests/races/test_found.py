"""Races that once went wrong, each along every schedule of its own."""

from __future__ import annotations

import pytest

from tests.races.actors import EDIT, RENEW, TRIGGER, Kind
from tests.races.performing import Performance, needs_of, prepare
from tests.races.stages import Stage


@pytest.mark.parametrize(("other", "switches"), [(EDIT, 2), (RENEW, 1)], ids=["edit", "renew"])
@pytest.mark.parametrize("kind", ["embedded", "sqlite", "memory"])
def test_a_trigger_beside_a_registration_never_queues_the_older_handler(
    request: pytest.FixtureRequest, kind: str, other: Kind, switches: int
) -> None:
    """The definition was read in a transaction of its own, before the lock of the insert."""
    stage: Stage = request.getfixturevalue(f"{kind}_stage")
    pair = [TRIGGER, other]
    prepare(stage, needs_of(pair))

    runs = Performance(stage, pair, "found before").everything(switches=switches)

    assert runs >= 2
