"""Depots of the tests, the server that they may maltreat, and the table of recoveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import RESULTS
from tests.fixtures import summaries
from tests.processes import recovery
from tests.processes.fleet import Depot, open_depot
from tests.processes.server import OwnServer, own_server

DepotOpener = Callable[..., Depot]


@pytest.fixture(scope="session")
def server() -> Iterator[OwnServer]:
    """A PostgreSQL of these tests' own."""
    with own_server() as running:
        yield running


@pytest.fixture
def database(server: OwnServer) -> Iterator[str]:
    """The name of a fresh migrated database of `server`."""
    with server.fresh_database() as name:
        yield name


@pytest.fixture
def open_at(tmp_path: Path) -> Iterator[DepotOpener]:
    """Opens a depot on a URL; closed, its workers killed, at the end."""
    with ExitStack() as stack:

        def opener(url: str, **options: Any) -> Depot:
            return stack.enter_context(open_depot(url, tmp_path, **options))

        yield opener


@pytest.fixture
def depot(sql_url: str, open_at: DepotOpener) -> Depot:
    """A depot on a fresh database of each kind in turn."""
    return open_at(sql_url)


@pytest.fixture
def own_depot(server: OwnServer, database: str, open_at: DepotOpener) -> Depot:
    """A depot on the server that may be maltreated."""
    return open_at(server.url(database))


def _recoveries() -> list[str]:
    if not recovery.ROWS:
        return []
    recovery.write(RESULTS)
    return list(recovery.lines())


summaries.tell("recovery", _recoveries)
