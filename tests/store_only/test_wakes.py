"""What other processes hear of a transaction that somebody else ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, event, make_url

from tests.promises.shop import OTHER, PUMP, WAIT_SECONDS, Shop
from threadmill_sa import Threadmill
from threadmill_sa.stores.sql.wakes import PostgresWakes

_STEP_SECONDS = 0.005


class _Ear:
    """Another process that listens to the channel of a store."""

    def __init__(self, shop: Shop) -> None:
        wakes = shop.store.wakes
        assert isinstance(wakes, PostgresWakes)
        self._wakes = wakes
        self._end = f"end_of_{wakes.channel}"
        url = make_url(shop.sql.url).set(drivername="postgresql")
        self._connection = psycopg.connect(
            url.render_as_string(hide_password=False), autocommit=True
        )
        for channel in (wakes.channel, self._end):
            self._connection.execute(f"LISTEN {channel}")

    def heard(self) -> int:
        """The number of wakes, once everything that is watched has been told."""
        pause = threading.Event()
        for _ in range(int(WAIT_SECONDS / _STEP_SECONDS)):
            if not self._wakes._waker._watched:
                break
            pause.wait(_STEP_SECONDS)
        self._wakes._waker.close()  # what was asked for is sent before it returns
        self._connection.execute(f"NOTIFY {self._end}")
        channels: list[str] = []
        for each in self._connection.notifies(timeout=WAIT_SECONDS):
            if each.channel == self._end:
                return len(channels)
            channels.append(each.channel)
        raise AssertionError("the end was not heard")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def shop(pg_engine: Engine) -> Iterator[Shop]:
    shop = Shop(Threadmill(pg_engine), pg_engine)
    yield shop
    shop.tm.close()


@pytest.fixture
def ear(shop: Shop) -> Iterator[_Ear]:
    ear = _Ear(shop)
    ear.heard()  # what opening the shop has told
    yield ear
    ear.close()


def test_a_connection_that_commits_wakes_others(shop: Shop, ear: _Ear) -> None:
    with shop.sql.begin() as connection:
        shop.tm.nudge(PUMP, connection)

    assert ear.heard() >= 1


def test_a_connection_that_is_rolled_back_wakes_nobody(shop: Shop, ear: _Ear) -> None:
    with shop.sql.connect() as connection:
        shop.tm.nudge(PUMP, connection)
        connection.rollback()

    assert ear.heard() == 0


def test_of_two_connections_the_one_that_commits_wakes_others(shop: Shop, ear: _Ear) -> None:
    with shop.sql.connect() as one, shop.sql.connect() as other:
        shop.tm.nudge(PUMP, one)
        shop.tm.nudge(OTHER, other)
        one.rollback()
        other.commit()

    assert ear.heard() >= 1


@pytest.mark.long
def test_ten_thousand_nudges_of_one_transaction_are_one_wake_and_one_run_each(
    shop: Shop, ear: _Ear
) -> None:
    statements: list[str] = []
    event.listen(shop.sql, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with shop.sql.connect() as connection:
        for _ in range(5000):
            shop.tm.nudge(PUMP, connection)
            shop.tm.nudge(OTHER, connection)
        before = len(statements)
        connection.commit()
        assert statements[before:] == []

    assert ear.heard() == 1
    assert [len(shop.view(name).nudge_revisions) for name in (PUMP, OTHER)] == [1, 1]
    assert shop.settle() == 2


def test_wakes_are_told_apart_by_schemas_of_63_bytes_that_differ_in_the_last(
    pg_engine: Engine,
) -> None:
    shops = []
    for name in ("ü" * 31 + "a", "ü" * 31 + "b"):
        tm = Threadmill(pg_engine, schema=name)
        tm.schema.migrate()
        shops.append(Shop(tm))
        shops[-1].engine = pg_engine
    ears = [_Ear(shop) for shop in shops]
    for ear in ears:
        ear.heard()  # what the registrations have told

    shops[0].nudge()

    assert [ear.heard() for ear in ears] == [1, 0]
    for shop, ear in zip(shops, ears, strict=True):
        ear.close()
        shop.tm.close()
