"""A database that was restored into another cluster, whose transaction ids start anew."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tests.promises.shop import OTHER, PUMP, Shop, in_thread
from threadmill_sa import Threadmill

FOREIGN = "1234567890123456789"


def _restore(shop: Shop, *, identifier: str | None = FOREIGN) -> None:
    """Leave the database as a restore would: a foreign identity, and slots still to come."""
    shop.nudge(PUMP)
    shop.nudge(OTHER)
    with shop.sql.begin() as connection:
        connection.execute(
            text("UPDATE threadmill_store_identity SET system_identifier = :found"),
            {"found": identifier},
        )
        connection.execute(
            text(
                "UPDATE threadmill_cron_nudges"
                " SET slot = pg_current_xact_id()::text::bigint + 50 + revision"
            )
        )


def _slots(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT slot FROM threadmill_cron_nudges")))


def _identity(engine: Engine) -> tuple[str | None, str]:
    with engine.connect() as connection:
        row = connection.execute(
            text(
                "SELECT i.system_identifier, c.system_identifier::text"
                " FROM threadmill_store_identity i, pg_control_system() c"
            )
        ).one()
        return row[0], row[1]


@pytest.mark.parametrize("how", ["a starting node", "migrate"])
@pytest.mark.parametrize("identifier", [FOREIGN, None])
def test_pending_nudges_are_moved_out_of_reach_of_new_transaction_ids_by(
    pg_shop: Shop, how: str, identifier: str | None, caplog: pytest.LogCaptureFixture
):
    _restore(pg_shop, identifier=identifier)
    revisions = pg_shop.view().nudge_revisions

    with caplog.at_level(logging.WARNING):
        if how == "migrate":
            pg_shop.tm.schema.migrate()
        else:
            pg_shop.store.check_ready()

    assert all(slot < 0 for slot in _slots(pg_shop.sql))
    assert "came from another server" in caplog.text
    stored, server = _identity(pg_shop.sql)
    assert stored == server
    assert pg_shop.view().nudge_revisions == revisions
    with pg_shop.transaction("REPEATABLE READ") as session:
        pg_shop.tm.nudge(PUMP, session)
    assert len(pg_shop.view().nudge_revisions) == 2
    assert pg_shop.settle() == 2


def test_revisions_that_are_equal_after_a_failover_do_not_stop_the_start(pg_shop: Shop):
    """A lost last value of the sequence may have drawn some of them twice."""
    pg_shop.nudge(PUMP)
    _restore(pg_shop)
    with pg_shop.sql.begin() as connection:
        connection.execute(text("UPDATE threadmill_cron_nudges SET revision = 7"))

    pg_shop.store.check_ready()

    slots = _slots(pg_shop.sql)
    assert len(set(slots)) == len(slots) == 3
    assert max(slots) < 0
    assert pg_shop.settle() == 2


def test_the_same_server_is_left_alone(pg_shop: Shop):
    pg_shop.nudge()
    slots = _slots(pg_shop.sql)

    pg_shop.store.check_ready()
    pg_shop.tm.schema.migrate()

    assert _slots(pg_shop.sql) == slots
    assert slots[0] > 0


def test_many_nodes_that_start_at_once_move_each_nudge_once(pg_shop: Shop):
    _restore(pg_shop)
    for wait in [in_thread(pg_shop.store.check_ready) for _ in range(4)]:
        wait()

    slots = _slots(pg_shop.sql)
    assert len(slots) == len(set(slots)) == 2
    assert all(slot < 0 for slot in slots)


def test_an_open_caller_of_the_new_server_is_not_disturbed(pg_shop: Shop, actor_engine: Engine):
    _restore(pg_shop)
    node = Threadmill(actor_engine)  # gives up waiting for a lock
    with Session(pg_shop.sql) as session, session.begin():
        pg_shop.tm.nudge(PUMP, session)
        node.store.check_ready()
        pg_shop.tm.nudge(PUMP, session)

    assert sorted(slot > 0 for slot in _slots(pg_shop.sql)) == [False, False, True]
    assert pg_shop.settle() == 2


def test_a_role_that_may_not_read_the_identifier_is_no_obstacle(pg_shop: Shop, pg_url: str):
    _restore(pg_shop)
    with pg_shop.sql.begin() as connection:
        connection.execute(
            text("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_control_system() FROM PUBLIC")
        )
        connection.execute(text("CREATE ROLE tm_plain NOLOGIN"))
        connection.execute(text("GRANT ALL ON ALL TABLES IN SCHEMA public TO tm_plain"))
        connection.execute(text("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO tm_plain"))
    engine = create_engine(pg_url, connect_args={"options": "-c role=tm_plain"})
    try:
        Threadmill(engine).store.check_ready()
    finally:
        engine.dispose()
        with pg_shop.sql.begin() as connection:
            connection.execute(text("DROP OWNED BY tm_plain"))
            connection.execute(text("DROP ROLE tm_plain"))

    assert all(slot > 0 for slot in _slots(pg_shop.sql))


def test_a_database_without_our_schema_is_no_obstacle(pg_empty_engine: Engine):
    Threadmill(pg_empty_engine).store.check_ready()
