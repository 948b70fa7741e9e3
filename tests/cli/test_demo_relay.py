"""The demo's relay in this process: rows that commit late, and a crash before the mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from threadmill_sa import Threadmill
from threadmill_sa.cli.demo import relay
from threadmill_sa.cli.demo.desk import Base, Order
from threadmill_sa.cli.demo.journal import Tail
from threadmill_sa.cli.demo.settings import DemoSettings


@contextmanager
def desk(url: str, directory: Path) -> Iterator[tuple[Engine, Threadmill, Tail]]:
    settings = DemoSettings(url=url, directory=str(directory))
    engine = settings.engine()
    Base.metadata.create_all(engine)
    tm = relay.declare(engine, settings)
    tm.register()
    try:
        yield engine, tm, Tail(settings.sink)
    finally:
        tm.close()
        engine.dispose()


def place(session: Session, number: str) -> None:
    order = Order(number=number, status="placed")
    order.tell("placed", 1)
    session.add(order)
    session.flush()


def test_a_row_that_drew_its_id_first_and_commits_last_is_sent(
    pg_url: str, tmp_path: Path
) -> None:
    with desk(pg_url, tmp_path) as (engine, tm, sink):
        with Session(engine) as slow, slow.begin():
            place(slow, "slow")
            with Session(engine) as fast, fast.begin():
                place(fast, "fast")
                tm.nudge(relay.PUMP, fast)
            tm.run_until_idle()
            first = [line["order"] for line in sink.read()]
            tm.nudge(relay.PUMP, slow)
        tm.run_until_idle()
        second = [line["order"] for line in sink.read()]

    assert (first, second) == (["fast"], ["slow"])


def test_a_crash_between_delivery_and_mark_delivers_again(
    sql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ConnectionError("gone")

    with desk(sql_url, tmp_path) as (engine, tm, sink):
        with Session(engine) as session, session.begin():
            place(session, "A")
            tm.nudge(relay.PUMP, session)
        with monkeypatch.context() as patched:
            patched.setattr(relay._Relay, "_mark", crash)
            tm.run_until_idle()
        crashed = [line["order"] for line in sink.read()]
        job = tm.list_jobs(task=relay.PUMP)[0]
        assert job.scheduled_at is not None
        tm.run_until_idle(now=job.scheduled_at)
        again = [line["order"] for line in sink.read()]
        tm.nudge(relay.PUMP)
        tm.run_until_idle(now=job.scheduled_at)
        afterwards = sink.read()

    assert (crashed, again, afterwards) == (["A"], ["A"], [])
