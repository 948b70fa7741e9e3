"""The stages, and what was performed on them as lines at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy

import pytest

from tests.fixtures import summaries
from tests.fixtures.servers import EMBEDDED, Server, postgres_keys
from tests.races.performing import TALLIES
from tests.races.sqlstages import PostgresStage, SqliteStage
from tests.races.stages import MemoryStage, Stage, closing

SEATS = 3  # the most actors of one schedule


@pytest.fixture(scope="package")
def embedded_stage(postgres_servers: Callable[[str], Server]) -> Iterator[Stage]:
    with postgres_servers(EMBEDDED).fresh_database() as url, closing(_postgres(url)) as stage:
        yield stage


@pytest.fixture(scope="package", params=[key for key in postgres_keys() if key != EMBEDDED])
def other_stage(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Stage]:
    """A stage on the PostgreSQL that the environment names; without one there is no such test."""
    server = postgres_servers(request.param)
    with server.fresh_database() as url, closing(_postgres(url)) as stage:
        yield stage


@pytest.fixture(scope="package")
def recording_stage(postgres_servers: Callable[[str], Server]) -> Iterator[Stage]:
    """One where every nudge and every run leaves its record."""
    with (
        postgres_servers(EMBEDDED).fresh_database() as url,
        closing(PostgresStage(url, SEATS, record=True)) as stage,
    ):
        yield stage


def _postgres(url: str) -> PostgresStage:
    return PostgresStage(url, SEATS)


@pytest.fixture(scope="package")
def sqlite_stage(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    path = tmp_path_factory.mktemp("races") / "threadmill.db"
    copy(sqlite_template, path)
    with closing(SqliteStage(f"sqlite:///{path}", SEATS)) as stage:
        yield stage


@pytest.fixture(scope="package")
def memory_stage() -> Stage:
    return MemoryStage(SEATS)


summaries.tell(
    "races", lambda: [f"{label}: {tally.line()}" for label, tally in sorted(TALLIES.items())]
)
