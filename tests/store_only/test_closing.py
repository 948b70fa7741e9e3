"""Closing a Threadmill ends what it opened, at once."""

from __future__ import annotations

import threading

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.promises.shop import PUMP, Shop
from threadmill_sa import Threadmill

ROUNDS = 15


def _ours() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("threadmill-")}


def test_close_ends_the_waker_whatever_it_is_doing_at_that_moment(pg_engine: Engine):
    """Asked for a wake and told to end before its first look, it must not sleep on."""
    before = _ours()
    for number in range(ROUNDS):
        shop = Shop(Threadmill(pg_engine))
        for _ in range(number % 3):
            shop.nudge(PUMP)
        shop.tm.trigger(PUMP)
        shop.tm.close()

        assert _ours() <= before


def test_close_forgets_a_transaction_that_is_still_open(pg_engine: Engine):
    before = _ours()
    shop = Shop(Threadmill(pg_engine))
    with pg_engine.connect() as connection:
        shop.tm.nudge(PUMP, connection)
        shop.tm.close()
        assert _ours() <= before
        connection.commit()
    assert shop.pending()


def test_close_leaves_the_users_engine_open_and_no_connection_of_ours(pg_engine: Engine):
    shop = Shop(Threadmill(pg_engine))
    with shop.tm.node(workers=1):
        shop.nudge(PUMP)
    shop.tm.close()

    with Session(pg_engine) as session:
        others = session.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        )
    assert others is not None
    assert others <= pg_engine.pool.checkedin()  # type: ignore[attr-defined]


def test_a_nudge_after_close_still_wakes(pg_engine: Engine):
    shop = Shop(Threadmill(pg_engine))
    shop.nudge(PUMP)
    shop.tm.close()
    shop.nudge(PUMP)
    assert {"threadmill-waker"} <= {each.name for each in _ours()}
    shop.tm.close()
