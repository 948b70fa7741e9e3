"""Whatever the engine, the role or the database say by default, our transactions stay ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.fixtures.servers import Server
from tests.promises.shop import PUMP, Shop, in_thread
from threadmill_sa import Cron, Threadmill

KINDS: dict[str, dict[str, Any]] = {
    "AUTOCOMMIT": {"isolation_level": "AUTOCOMMIT"},
    "REPEATABLE READ": {"isolation_level": "REPEATABLE READ"},
    "SERIALIZABLE": {"isolation_level": "SERIALIZABLE"},
    "translated": {"execution_options": {"schema_translate_map": {None: "x", "public": "x"}}},
    "streaming": {"execution_options": {"stream_results": True}},
    "no pool": {"poolclass": NullPool},
    "pre-ping": {"pool_pre_ping": True},
    "recycled": {"pool_recycle": 0},
    "no server binds": {"connect_args": {"prepare_threshold": None}},
}


@pytest.fixture(params=KINDS)
def odd_engine(request: pytest.FixtureRequest, pg_url: str) -> Iterator[Engine]:
    engine = create_engine(pg_url, **KINDS[request.param])
    yield engine
    engine.dispose()


def test_the_whole_cycle_works_on_an_engine_whose_default_is(odd_engine: Engine):
    shop = Shop(Threadmill(odd_engine))
    levels: set[str] = set()

    def note(conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("SHOW"):  # which asks for the default and touches no table
            levels.add(conn.get_isolation_level())

    event.listen(odd_engine, "before_cursor_execute", note)
    shop.nudge()
    shop.tm.enqueue_many([("mail", 1), ("mail", 2)])
    shop.tick()
    node, jobs = shop.claim()
    shop.nudge()
    shop.nudge()
    shop.tick()
    shop.finish(node, jobs)
    assert shop.settle() == 1
    shop.tm.set_enabled(PUMP, False)
    shop.tm.delete_recurring(PUMP)
    shop.store.jobs.fold_counts(limit=1000)
    assert sum(shop.store.jobs.counts().values()) == 4
    shop.tm.close()

    assert levels == {"READ COMMITTED"}


def test_two_serializable_processes_lose_nothing_to_each_other(pg_url: str):
    engines = [create_engine(pg_url, isolation_level="SERIALIZABLE") for _ in range(2)]
    shops = [Shop(Threadmill(engine)) for engine in engines]

    def work(shop: Shop) -> None:
        for _ in range(10):
            shop.nudge()
            shop.tick()
            shop.run_all()

    for wait in [in_thread(partial(work, shop)) for shop in shops]:
        wait()
    shops[0].settle()
    assert not shops[0].pending()
    for shop, engine in zip(shops, engines, strict=True):
        shop.tm.close()
        engine.dispose()


@pytest.mark.parametrize("where", ["database", "role"])
def test_a_default_of_serializable_set_on_the(pg_server: Server, pg_url: str, where: str):
    setting = "SET default_transaction_isolation = 'serializable'"
    database = make_url(pg_url).database
    target = (
        f"DATABASE {database}" if where == "database" else f"ROLE postgres IN DATABASE {database}"
    )
    with pg_server.admin() as admin:
        admin.execute(text(f"ALTER {target} {setting}"))
    engine = create_engine(pg_url)
    with engine.connect() as connection:
        assert "serializable" == connection.scalar(text("SHOW transaction_isolation"))
    test_the_whole_cycle_works_on_an_engine_whose_default_is(engine)
    engine.dispose()


ZONES = ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Chatham"]


@pytest.mark.parametrize("zone", ZONES)
def test_instants_are_the_same_whatever_the_zone_of_role_and_process(
    pg_server: Server, pg_url: str, zone: str, monkeypatch: pytest.MonkeyPatch
):
    import time

    database = make_url(pg_url).database
    with pg_server.admin() as admin:
        admin.execute(text(f"ALTER ROLE postgres IN DATABASE {database} SET timezone = '{zone}'"))
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    engine = create_engine(pg_url)
    try:
        _check_instants(Threadmill(engine))
        with engine.connect() as connection:
            assert zone == connection.scalar(text("SHOW timezone"))
    finally:
        engine.dispose()
        monkeypatch.undo()
        time.tzset()


def _check_instants(tm: Threadmill) -> None:
    shop = Shop(tm)
    tm.recurring("nightly", "relay", Cron("30 2 * * *", zone="Europe/Berlin"))
    now = datetime(2026, 6, 1, 22, 0, 0, 250_000, tzinfo=UTC)
    tm.register(now=now)
    fire = datetime(2026, 6, 2, 0, 30, tzinfo=UTC)
    assert tm.get_recurring("nightly").next_run_at == fire
    assert tm.get_recurring("nightly").created_at == now

    kolkata = timezone(timedelta(hours=5, minutes=30))
    run_at = datetime.now(kolkata) + timedelta(days=2)
    one = tm.enqueue("mail", 1, run_at=run_at)
    [two] = tm.enqueue_many([("mail", 2)], run_at=run_at)
    delayed = tm.enqueue("mail", 3, delay=3600)
    for job_id in (one, two):
        job = tm.get_job(job_id)
        assert job is not None
        assert job.scheduled_at == run_at
        assert job.scheduled_at.utcoffset() == timedelta(0)
        assert abs(job.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    job = tm.get_job(delayed)
    assert job is not None
    assert job.scheduled_at is not None
    assert abs(job.scheduled_at - job.created_at - timedelta(hours=1)) < timedelta(seconds=1)

    assert [] == [
        each for each in tm.tick(now=fire - timedelta(seconds=1)) if each.name == "nightly"
    ]
    [done] = [each for each in tm.tick(now=fire) if each.name == "nightly"]
    assert done.jobs[0].fire_time == fire
    [stored] = tm.list_jobs(task="nightly")
    assert stored.fire_time == fire
    assert shop.view("nightly").next_run_at == fire + timedelta(days=1)
    tm.close()


def test_a_schema_of_ones_own_is_kept_apart_from_another_in_the_same_database(pg_url: str):
    engine = create_engine(pg_url)
    red, blue = (
        Threadmill(engine, schema=name, schema_mode="migrate") for name in ("red", "Blue x")
    )
    for tm in (red, blue):
        tm.schema.migrate()
        Shop(tm)
    red.nudge(PUMP)
    with Session(engine) as session:
        blue.enqueue("mail", 1, session=session)
        session.commit()

    assert red.get_recurring(PUMP).nudge_revisions
    assert not blue.get_recurring(PUMP).nudge_revisions
    assert (len(red.list_jobs()), len(blue.list_jobs())) == (0, 1)
    assert red.store.jobs.queue_depths() == {}
    assert blue.store.jobs.queue_depths() == {"mail": 1}
    for tm in (red, blue):
        tm.store.check_ready()
        tm.schema.validate()
        tm.close()
    engine.dispose()
