"""A server that cannot write for a while is an outage, and refuses no outcome for good."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.engine.bench import eventually
from threadmill_sa import Threadmill
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits
from threadmill_sa.model.state import JobState

FULL, OUT_OF_MEMORY, IO_ERROR, CANCELLED = "53100", "53200", "58030", "57014"
LARGE = "x" * 50_000  # more than the free pages of the file
ENOUGH_TRIES = 2 * limits.COMPLETE_REFUSALS_MAX + 2

_TRIGGER = """
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'trouble' USING errcode = '{state}';
END $$;
CREATE TRIGGER trouble BEFORE UPDATE ON threadmill_jobs FOR EACH ROW
WHEN (NEW.state = 'SUCCEEDED') EXECUTE FUNCTION trouble()
"""


class Trouble:
    """Makes the writes of results fail, by the database's own means, until it is mended."""

    def __init__(self, engine: Engine, state: str) -> None:
        self._engine = engine
        self._full = self.tries = 0
        if engine.dialect.name == "sqlite":
            event.listen(engine, "checkout", self._limit)
        else:
            self._execute(_TRIGGER.format(state=state))
        event.listen(engine, "handle_error", self._count)

    def fill(self) -> None:
        """From the next transaction on the SQLite file may not grow."""
        self._full = 1

    def mend(self) -> None:
        self._full = 0
        if self._engine.dialect.name != "sqlite":
            self._execute("DROP TRIGGER trouble ON threadmill_jobs")

    def _execute(self, statements: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(statements))

    def _limit(self, connection: Any, *_: object) -> None:
        pages = 1 if self._full else 1_000_000_000  # 1 means: as many as there are
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def _count(self, *_: object) -> None:
        self.tries += 1


@pytest.mark.parametrize("state", [FULL, OUT_OF_MEMORY, IO_ERROR, CANCELLED])
def test_a_success_outlives_a_server_that_cannot_write_it(
    sql_engine: Engine,
    state: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sql_engine.dialect.name == "sqlite" and state != FULL:
        pytest.skip("SQLite's own codes are in the test of the one file")
    monkeypatch.setattr(limits, "OUTAGE_PAUSE_MIN_SECONDS", 0.002)
    trouble = Trouble(sql_engine, state)
    tm = Threadmill(sql_engine)

    @tm.job("report", max_attempts=1)
    def report() -> str:
        trouble.fill()
        return LARGE

    job_id = tm.enqueue(report)
    with caplog.at_level(logging.INFO), tm.node(workers=1, poll=0.02):
        eventually(lambda: trouble.tries >= ENOUGH_TRIES, "several tries")
        trouble.mend()
        eventually(lambda: tm.list_jobs(state=JobState.SUCCEEDED), "the success")

    job = tm.get_job(job_id)
    assert job is not None
    assert LARGE in (job.result or "")
    tm.close()


def test_a_full_or_read_only_file_is_an_unavailable_store(sqlite_engine: Engine) -> None:
    tm = Threadmill(sqlite_engine)
    tm.job("work")(lambda: None)
    limit = "max_page_count = 1"

    @event.listens_for(sqlite_engine, "checkout")
    def spoil(connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA {limit}")

    with pytest.raises(StoreUnavailableError, match="database or disk is full"):
        tm.enqueue_many([("work", None)] * 2000)
    limit = "query_only = 1"
    with pytest.raises(StoreUnavailableError, match="readonly database"):
        tm.enqueue("work")
    limit = "query_only = 0"

    assert tm.list_jobs() == []
    tm.close()
