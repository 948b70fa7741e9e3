"""A role without the privileges for a call of our own is told which grant it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from threadmill_sa import Every, Threadmill
from threadmill_sa.errors import StoreAccessError


def _work() -> None:
    """Never run here."""


OPERATIONS: dict[str, Callable[[Threadmill], object]] = {
    "register": lambda tm: tm.register(),
    "pause": lambda tm: tm.set_enabled("pump", False),
    "delete": lambda tm: tm.delete_recurring("pump"),
    "list jobs": lambda tm: tm.list_jobs(),
    "tick": lambda tm: tm.tick(),
}


@pytest.fixture
def producer(pg_engine: Engine) -> Iterator[Threadmill]:
    """A Threadmill whose role has exactly the producers' grants."""
    role = f"tm_producer_{uuid4().hex[:8]}"
    owner = Threadmill(pg_engine)
    owner.job("work")(_work)
    owner.recurring("pump", "work", Every(minutes=10))
    owner.register()
    with pg_engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        for statement in owner.schema.emit_grants_sql(role).split(";"):
            if statement.strip():
                connection.execute(text(statement))
    engine = create_engine(pg_engine.url, connect_args={"options": f"-c role={role}"})
    tm = Threadmill(engine)
    tm.job("work")(_work)
    tm.recurring("pump", "work", Every(minutes=10))
    yield tm
    tm.close()
    engine.dispose()
    with pg_engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_a_producer_nudges_and_enqueues_alone_and_in_its_own_transaction(
    producer: Threadmill, pg_engine: Engine
) -> None:
    producer.nudge("pump")
    producer.enqueue("work")
    engine = producer.store._engine  # type: ignore[attr-defined]
    with Session(engine) as session, session.begin():
        producer.nudge("pump", session)
        producer.enqueue("work", session=session)

    owner = Threadmill(pg_engine)
    assert len(owner.get_recurring("pump").nudge_revisions) == 2
    assert len(owner.list_jobs()) == 2


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_beyond_the_grants_names_them(producer: Threadmill, operation: str) -> None:
    with pytest.raises(StoreAccessError, match="threadmill-sa db grants"):
        OPERATIONS[operation](producer)
