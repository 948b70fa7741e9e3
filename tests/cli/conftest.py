"""A small application, as a module that the command line imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tools import SHOP
from tests.fixtures.sql import engine_for
from threadmill_sa import Cron, Every, Threadmill


@pytest.fixture
def shop_directory(tmp_path: Path) -> Path:
    """A directory with the module `shop`."""
    directory = tmp_path / "app"
    directory.mkdir()
    (directory / "shop.py").write_text(SHOP)
    return directory


@pytest.fixture
def shop(shop_directory: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory with the module `shop`, on a fresh SQLite file."""
    monkeypatch.chdir(shop_directory)
    monkeypatch.setenv("SHOP_URL", sqlite_url)
    monkeypatch.setenv("SHOP_DIRECTORY", str(shop_directory))
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("shop", None)
    yield shop_directory
    found = sys.modules.pop("shop", None)
    if found is not None:
        found.tm.close()
        found.engine.dispose()


@pytest.fixture
def stocked_url(sql_url: str) -> str:
    """A database of each kind in turn, with two registered tasks."""
    return stock(sql_url)


@pytest.fixture
def url(sqlite_url: str) -> str:
    """A SQLite file with two registered tasks."""
    return stock(sqlite_url)


def stock(url: str) -> str:
    with engine_for(url) as engine:
        tm = Threadmill(engine)

        @tm.job("pump")
        def pump(payload: dict[str, int] | None = None) -> None: ...

        tm.recurring("outbox-pump", pump, Every(minutes=10), payload={"batch": 50})
        tm.recurring("nightly", pump, Cron("30 2 * * *", zone="Europe/Berlin"), enabled=False)
        tm.register()
        tm.close()
    return url
