"""What an interrupt leaves behind, such as Ctrl-C in the middle of a statement."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy import Engine, event

from threadmill_sa import Threadmill
from threadmill_sa.model.job import NodeId


def test_an_interrupted_write_gives_the_file_back_while_its_error_is_still_held(
    sqlite_engine: Engine,
):
    tm = Threadmill(sqlite_engine)
    tm.job("work")(lambda: None)
    job_id = tm.enqueue("work")
    interrupts = [True]

    @event.listens_for(sqlite_engine, "after_cursor_execute")
    def interrupt(_conn: Any, _cursor: Any, statement: str, *_: object) -> None:
        if "threadmill_jobs" in statement and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as held:
        tm.store.jobs.claim(NodeId(job_id), queues=None, handlers=["work"], limit=1)

    other = sqlite3.connect(str(sqlite_engine.url.database), timeout=0)
    other.execute("BEGIN IMMEDIATE")  # at once, or the interrupted writer still has the lock
    other.close()
    assert held.value is not None
    tm.close()
