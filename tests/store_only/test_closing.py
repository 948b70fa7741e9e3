"""Closing a Threadmill ends what it opened, at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from textwrap import dedent

import psycopg
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


def test_a_script_that_ends_right_after_its_commit_has_sent_its_wake(pg_engine: Engine):
    shop = Shop(Threadmill(pg_engine))
    url = pg_engine.url.render_as_string(hide_password=False)
    script = dedent(
        f"""
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session
        from threadmill_sa import Threadmill

        engine = create_engine({url!r})
        tm = Threadmill(engine)
        with Session(engine) as session, session.begin():
            tm.nudge({PUMP!r}, session)
        """
    )
    with psycopg.connect(
        url.replace("postgresql+psycopg", "postgresql"), autocommit=True
    ) as listener:
        listener.execute(f"LISTEN {shop.tm.store.wakes.channel}")  # type: ignore[union-attr]
        for _ in range(3):
            subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
            assert list(listener.notifies(timeout=10.0, stop_after=1)), "the wake was lost"
    shop.tm.close()
