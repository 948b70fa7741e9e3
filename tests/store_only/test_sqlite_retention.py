"""Removing finished jobs of a file that a hand has edited: SQLite keeps any value anywhere."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from threadmill_sa.model.job import OutcomeKind
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.sql.store import SqlStore
from threadmill_sa.testing.suite.tools import T0, claim, ids_of, insert, new_node, outcome, seconds


@pytest.fixture
def store(sqlite_engine: Engine) -> SqlStore:
    """Three jobs that have failed, with a history."""
    store = SqlStore(sqlite_engine)
    insert(store, 3)
    node = new_node()
    held = claim(store, node)
    store.jobs.finish(node, [outcome(job, OutcomeKind.FAILED) for job in held], now=T0)
    return store


def _edit(engine: Engine, column: str, value: object) -> None:
    """Set a column of the oldest job."""
    with engine.begin() as connection:
        connection.execute(
            text(
                f"UPDATE threadmill_jobs SET {column} = :value"
                " WHERE id = (SELECT min(id) FROM threadmill_jobs)"
            ),
            {"value": value},
        )


def _remove(store: SqlStore) -> int:
    return store.jobs.remove_old(
        JobState.FAILED, older_than_seconds=1.0, limit=10, now=T0 + seconds(1)
    )


@pytest.mark.parametrize("value", ["mine", b"\x00\xff", 7])
def test_what_is_no_id_holds_up_no_removal(
    store: SqlStore, sqlite_engine: Engine, value: object
) -> None:
    _edit(sqlite_engine, "id", value)

    assert _remove(store) == 3

    assert store.jobs.counts()[JobState.FAILED] == 0
    with sqlite_engine.connect() as connection:
        told = connection.scalar(text("SELECT count(*) FROM threadmill_job_history"))
    assert told == 1  # of the job whose id was overwritten


def test_a_job_whose_instant_was_spoilt_stays_and_holds_up_no_other(
    store: SqlStore, sqlite_engine: Engine
) -> None:
    spoilt = store.jobs.list()[-1]
    _edit(sqlite_engine, "state_at", "soon")

    assert _remove(store) == 2

    assert store.jobs.counts()[JobState.FAILED] == 1
    store.jobs.delete(spoilt.id, now=T0)
    assert ids_of(store.jobs.list(state=JobState.DELETED)) == [spoilt.id]
