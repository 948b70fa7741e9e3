"""The connection that sends wakes dies while it is idle, and no wake is lost by that."""

from __future__ import annotations

import threading

from sqlalchemy import Engine, text

from tests.engine.bench import eventually
from tests.promises.shop import PUMP, Shop
from threadmill_sa import Threadmill

# The engine's own connections are disposed, so what is left is the listener and the sender.
SENDING = (
    "datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle'"
    " AND query NOT LIKE 'LISTEN %'"
)


def test_the_first_wake_after_the_server_ended_the_connection_is_sent(pg_engine: Engine) -> None:
    shop = Shop(Threadmill(pg_engine))
    woken = threading.Event()
    shop.store.wakes.listen(woken.set)  # type: ignore[union-attr]
    eventually(woken.is_set, "the start of the listener")
    woken.clear()
    shop.nudge(PUMP)
    eventually(woken.is_set, "the first wake")
    eventually(lambda: _senders(pg_engine, "SELECT 1") == 1, "an idle sender")

    assert _senders(pg_engine, "SELECT pg_terminate_backend(pid)") == 1
    eventually(lambda: _senders(pg_engine, "SELECT 1") == 0, "its end")
    woken.clear()
    shop.nudge(PUMP)

    eventually(woken.is_set, "the wake after it")
    shop.tm.close()


def _senders(engine: Engine, what: str) -> int:
    engine.dispose()
    with engine.connect() as connection:
        query = text(f"{what} FROM pg_stat_activity WHERE {SENDING}")
        return len(connection.execute(query).all())
