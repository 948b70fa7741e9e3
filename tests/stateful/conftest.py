"""The stores of the machines, and the summary of what they explored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine

from tests.fixtures import summaries
from tests.fixtures.servers import Server
from tests.stateful.world import postgres_sessions, sqlite_sessions

MEMORY, SQLITE = "memory", "sqlite"
EXPLORED: dict[str, Counter[str]] = {}


@pytest.fixture
def explored(request: pytest.FixtureRequest) -> Counter[str]:
    """What this test explores, for the summary of the run."""
    return EXPLORED.setdefault(request.node.name, Counter())


@pytest.fixture
def open_engine(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Callable[[str], Engine]]:
    """An engine on a fresh database of a kind; for the store in memory one beside it."""
    with ExitStack() as stack:

        def make(name: str) -> Engine:
            if name in {MEMORY, SQLITE}:
                return stack.enter_context(sqlite_sessions(request.getfixturevalue("sqlite_url")))
            url = stack.enter_context(postgres_servers(name).fresh_database())
            return stack.enter_context(postgres_sessions(url))

        yield make


def _line(name: str, counter: Counter[str]) -> str:
    found = counter.copy()
    steps, examples = found.pop("steps", 0), found.pop("examples", 0)
    rest = ", ".join(f"{count} {what}" for what, count in sorted(found.items()) if count)
    return f"{name}: {steps} steps in {examples} examples; {rest}"


summaries.tell(
    "state machines: steps explored", lambda: [_line(*each) for each in EXPLORED.items()]
)
