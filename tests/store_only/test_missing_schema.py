"""A database that was never migrated is named as such, on every call of our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from threadmill_sa import Threadmill
from threadmill_sa.errors import SchemaMissingError


def _work() -> None:
    """Never run here."""


CALLS: dict[str, Callable[[Threadmill], object]] = {
    "nudge": lambda tm: tm.nudge("pump"),
    "enqueue": lambda tm: tm.enqueue("work"),
    "register": lambda tm: tm.register(),
    "list": lambda tm: tm.list_recurring(),
    "tick": lambda tm: tm.tick(),
    "run": lambda tm: tm.run_until_idle(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_a_database_without_tables_names_the_command(
    sql_empty_engine: Engine, call: str
) -> None:
    from threadmill_sa import Every

    tm = Threadmill(sql_empty_engine)
    tm.job("work")(_work)
    tm.recurring("pump", "work", Every(minutes=10))

    with pytest.raises(SchemaMissingError, match="threadmill-sa db upgrade"):
        CALLS[call](tm)
    tm.close()
