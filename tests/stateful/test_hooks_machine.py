"""Deferred writes and their rows, on every kind of database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import Engine

from tests.fixtures.servers import EMBEDDED, postgres_keys
from tests.stateful.conftest import SQLITE
from tests.stateful.hooks_machine import Desk, HooksMachine
from tests.stateful.profiles import LONG, SHORT, search
from tests.stateful.world import sqlite_sessions
from threadmill_sa.session import hooks


@pytest.fixture(autouse=True)
def _listening() -> None:
    hooks.install()


@pytest.fixture
def other_file(tmp_path: Path) -> Iterator[Engine]:
    with sqlite_sessions(f"sqlite:///{tmp_path / 'other.db'}") as engine:
        yield engine


@pytest.fixture
def explore(
    open_engine: Callable[[str], Engine], other_file: Engine, explored: Counter[str]
) -> Callable[[str, settings], None]:
    def run(name: str, chosen: settings) -> None:
        engine = open_engine(name)
        desk = Desk((engine, other_file if name == SQLITE else engine), explored)
        search(lambda: HooksMachine(desk), chosen)

    return run


@pytest.mark.timeout(600)  # ten times what it needs
@pytest.mark.parametrize("name", [SQLITE, EMBEDDED])
def test_a_write_happens_exactly_when_its_row_is_committed(
    name: str, explore: Callable[[str, settings], None]
) -> None:
    explore(name, settings(SHORT, max_examples=20))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [SQLITE, *postgres_keys()])
def test_a_write_happens_exactly_when_its_row_is_committed_in_a_long_search(
    name: str, explore: Callable[[str, settings], None]
) -> None:
    explore(name, settings(LONG, max_examples=1500))
