"""A database that cannot be reached is one error of ours, whatever the call and the driver."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from threadmill_sa import Every, JobId, Threadmill
from threadmill_sa.errors import StoreUnavailableError, UnsupportedStoreError


def _work() -> None:
    """Never run here."""


CALLS: dict[str, Callable[[Threadmill], object]] = {
    "nudge": lambda tm: tm.nudge("pump"),
    "enqueue": lambda tm: tm.enqueue("work"),
    "register": lambda tm: tm.register(),
    "list": lambda tm: tm.list_recurring(),
    "job": lambda tm: tm.get_job(JobId(uuid4())),
    "tick": lambda tm: tm.tick(),
    "run": lambda tm: tm.run_until_idle(),
    "node": lambda tm: tm.node().start(),
    "migrate": lambda tm: tm.schema.migrate(),
    "validate": lambda tm: tm.schema.validate(),
}


@pytest.fixture(params=["postgresql", "sqlite"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Threadmill]:
    """A Threadmill on a port where nobody listens, or on a file in no directory."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else's
        port = taken.getsockname()[1]
        url = {
            "postgresql": f"postgresql+psycopg://app:s3cret@127.0.0.1:{port}/shop",
            "sqlite": f"sqlite:///{tmp_path / 'missing' / 'shop.db'}",
        }[request.param]
        tm = Threadmill(create_engine(url))
        tm.job("work")(_work)
        tm.recurring("pump", "work", Every(minutes=10))
        yield tm
        tm.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_says_that_the_store_is_unavailable(nowhere: Threadmill, call: str) -> None:
    with pytest.raises(
        StoreUnavailableError, match=r"OperationalError: .*try again later"
    ) as told:
        CALLS[call](nowhere)

    assert "s3cret" not in str(told.value)


def test_a_named_schema_on_sqlite_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStoreError, match="schema 'jobs' cannot be used on SQLite"):
        Threadmill(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"), schema="jobs")
