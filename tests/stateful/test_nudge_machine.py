"""The machine on every store: a short search by default, a long one in make test-long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from sqlalchemy import Engine

from tests.fixtures.servers import EMBEDDED, postgres_keys
from tests.stateful.conftest import MEMORY, SQLITE
from tests.stateful.machine import NudgeMachine
from tests.stateful.model import CATCH_UP_MAX
from tests.stateful.profiles import LONG, SHORT, search
from tests.stateful.world import MemoryWorld, SqlWorld, World
from threadmill_sa.engine.recurring import materializer, planner

SHORT_EXAMPLES = {MEMORY: 50, SQLITE: 30, EMBEDDED: 30}
LONG_EXAMPLES = {MEMORY: 2000, SQLITE: 800}  # others: 500


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that short examples cross them."""
    monkeypatch.setattr(planner, "CATCH_UP_MAX", CATCH_UP_MAX)
    monkeypatch.setattr(materializer, "MATERIALIZE_BATCH", 2)
    monkeypatch.setattr(materializer, "TICK_PAGE", 2)


def explore(engine: Engine, name: str, explored: Counter[str], chosen: settings) -> None:
    world: World = (MemoryWorld if name == MEMORY else SqlWorld)(engine, explored)
    search(lambda: NudgeMachine(world), chosen)


@pytest.mark.timeout(600)  # ten times what it needs
@pytest.mark.parametrize("name", SHORT_EXAMPLES)
def test_every_promise_holds_after_every_step(
    name: str, open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    explore(open_engine(name), name, explored, settings(SHORT, max_examples=SHORT_EXAMPLES[name]))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [MEMORY, SQLITE, *postgres_keys()])
def test_every_promise_holds_in_a_long_search(
    name: str, open_engine: Callable[[str], Engine], explored: Counter[str]
) -> None:
    examples = LONG_EXAMPLES.get(name, 500)
    explore(open_engine(name), name, explored, settings(LONG, max_examples=examples))
