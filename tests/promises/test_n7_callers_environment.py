"""N7: nothing that the caller has set on its connection redirects or breaks a joined write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.fixtures.servers import Server
from tests.promises.shop import OTHER, PUMP, Shop
from threadmill_sa import Threadmill
from threadmill_sa.errors import StoreUnavailableError, TaskDisabledError

OURS = ["cron_tasks", "cron_nudges", "cron_task_state", "jobs", "job_history", "count_deltas"]
SETTINGS = {
    "an empty search_path": "SET search_path = ''",
    "a search_path of another schema": "SET search_path = elsewhere",
    "a search_path that puts the system last": "SET search_path = elsewhere, pg_catalog",
    "another time zone": "SET TimeZone = 'Asia/Kolkata'",
    "another date style": "SET DateStyle = 'SQL, DMY'",
    "another interval style": "SET IntervalStyle = 'sql_standard'",
    "a short statement timeout": "SET statement_timeout = 2000",
    "a short lock timeout": "SET lock_timeout = 1",
    "no sequential scans": "SET enable_seqscan = off",
    "only generic plans": "SET plan_cache_mode = force_generic_plan",
    "deferred constraints": "SET CONSTRAINTS ALL DEFERRED",
    "asynchronous commit": "SET synchronous_commit = off",
    "few significant digits": "SET extra_float_digits = -15",
    "a decoy among the temporary tables": "",
}


def _mail(payload: int) -> None: ...


def _write_everything(shop: Shop, session: Session | Connection) -> None:
    shop.tm.nudge(PUMP, session)
    shop.tm.nudge_many([PUMP, OTHER], session)
    shop.tm.enqueue("mail", 1, session=session)
    shop.tm.enqueue("mail", 2, session=session, delay=60)
    shop.tm.enqueue_many([("mail", 3), ("mail", 4)], session, delay=1.25)


def _check_everything(shop: Shop) -> None:
    assert (shop.pending(PUMP), shop.pending(OTHER)) == (True, True)
    assert len(shop.tm.list_jobs()) == 4
    assert {"mail": 1} == dict(shop.store.jobs.queue_depths())
    for job in shop.tm.list_jobs(state="SCHEDULED"):
        assert job.scheduled_at is not None
        waits = (job.scheduled_at - job.created_at).total_seconds()
        assert round(waits, 2) in {60.0, 1.25}
    assert shop.settle() == 3


def _create_decoys(session: Session | Connection, schema: str) -> None:
    temporary = "TEMPORARY " if schema == "temp" else ""
    prefix = "" if schema == "temp" else f"{schema}."
    for name in OURS:
        session.execute(
            text(f"CREATE {temporary}TABLE {prefix}threadmill_{name} (name TEXT, enabled BOOLEAN)")
        )


@pytest.mark.parametrize("setting", SETTINGS)
def test_n7_on_postgresql_joined_writes_hold_under(pg_shop: Shop, setting: str):
    with pg_shop.sql.begin() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
        _create_decoys(connection, "elsewhere")
        connection.execute(
            text(
                "CREATE FUNCTION elsewhere.clock_timestamp() RETURNS timestamptz"
                " LANGUAGE sql AS $$ SELECT '2001-01-01'::timestamptz $$"
            )
        )
    with pg_shop.sql.connect() as connection:
        with connection.begin():
            if setting.startswith("a search_path that"):
                # Whoever may put functions before the system's could change any statement; ours
                # must still reach our tables.
                connection.execute(text("DROP FUNCTION elsewhere.clock_timestamp()"))
            if SETTINGS[setting]:
                connection.execute(text(SETTINGS[setting]))
            else:
                _create_decoys(connection, "temp")
            _write_everything(pg_shop, connection)
        connection.invalidate()  # the settings must not reach the pool's next user

    _check_everything(pg_shop)


def test_n7_functions_that_the_caller_puts_before_the_systems_are_not_called(pg_shop: Shop):
    with pg_shop.sql.begin() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
        for head, body in (
            ("clock_timestamp() RETURNS timestamptz", "'2001-01-01'::timestamptz"),
            ("pg_current_xact_id() RETURNS xid8", "'7'::xid8"),
            (
                "make_interval(int, int, int, int, int, int, float8) RETURNS interval",
                "'1 day'::interval",
            ),
        ):
            made = f"CREATE FUNCTION elsewhere.{head} LANGUAGE sql AS $$ SELECT {body} $$"
            connection.exec_driver_sql(made)
    with pg_shop.sql.connect() as connection:
        with connection.begin():
            connection.execute(text("SET search_path = elsewhere, pg_catalog"))
            _write_everything(pg_shop, connection)
            slots = connection.scalars(text("SELECT slot FROM public.threadmill_cron_nudges"))
            assert 7 not in slots.all()
        connection.invalidate()  # the settings must not reach the pool's next user

    assert {job.created_at.year for job in pg_shop.tm.list_jobs()} != {2001}
    _check_everything(pg_shop)


def test_n7_on_sqlite_a_temporary_table_of_the_same_name_is_not_ours(
    sqlite_engine: Engine, open_shop: Callable[[Engine | None], Shop]
):
    shop = open_shop(sqlite_engine)
    with sqlite_engine.connect() as connection:
        with connection.begin():
            _create_decoys(connection, "temp")
            _write_everything(shop, connection)
        connection.invalidate()

    _check_everything(shop)


def test_n7_on_sqlite_an_attached_database_with_the_same_tables_is_not_ours(
    sqlite_engine: Engine, open_shop: Callable[[Engine | None], Shop], tmp_path
):
    shop = open_shop(sqlite_engine)
    with sqlite_engine.connect() as connection:
        connection.connection.execute(f"ATTACH DATABASE '{tmp_path / 'other.db'}' AS other")
        with connection.begin():
            for name in OURS:
                connection.execute(text(f"CREATE TABLE other.threadmill_{name} (name TEXT)"))
            _write_everything(shop, connection)
        connection.invalidate()

    _check_everything(shop)


@pytest.mark.parametrize("place", ["engine", "connection", "session"])
def test_n7_a_callers_translation_of_schemas_does_not_move_our_tables(sql_shop: Shop, place: str):
    options = {"schema_translate_map": {None: "nowhere", "public": "nowhere", "main": "nowhere"}}
    engine = sql_shop.sql
    if place == "engine":
        with Session(engine.execution_options(**options)) as session, session.begin():
            _write_everything(sql_shop, session)
    elif place == "connection":
        with engine.connect().execution_options(**options) as connection, connection.begin():
            _write_everything(sql_shop, connection)
    else:
        with Session(engine) as session, session.begin():
            session.connection(execution_options=options)
            _write_everything(sql_shop, session)

    _check_everything(sql_shop)


@pytest.mark.parametrize(
    "options",
    [
        {"isolation_level": "REPEATABLE READ"},
        {"isolation_level": "SERIALIZABLE", "postgresql_deferrable": True},
        {"stream_results": True},
        {"yield_per": 10},
        {"compiled_cache": None},
        {"no_parameters": True},
        {"preserve_rowcount": True},
        {"insertmanyvalues_page_size": 1},
    ],
    ids=str,
)
def test_n7_execution_options_of_the_caller_change_nothing(
    pg_shop: Shop, options: dict[str, object]
):
    connection = pg_shop.sql.connect().execution_options(**options)
    with connection, connection.begin():
        _write_everything(pg_shop, connection)

    _check_everything(pg_shop)


@contextmanager
def _role(server: Server, url: str, *settings: str) -> Iterator[str]:
    """A role that may log in, and its URL."""
    name = f"tm_role_{uuid4().hex[:10]}"
    with server.admin() as admin:
        admin.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"))
        for setting in settings:
            admin.execute(text(f"ALTER ROLE {name} SET {setting}"))
    owner = create_engine(url)
    try:
        yield (
            make_url(url)
            .set(username=name, password="secret")
            .render_as_string(hide_password=False)
        )
    finally:
        with owner.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {name}"))
        owner.dispose()
        with server.admin() as admin:
            admin.execute(text(f"DROP ROLE {name}"))


def test_n7_a_role_with_exactly_the_printed_grants_produces_and_may_do_nothing_else(
    pg_server: Server, pg_shop: Shop, pg_url: str
):
    with _role(pg_server, pg_url) as url:
        engine = create_engine(url)
        role = str(make_url(url).username)
        with pg_shop.sql.begin() as connection:
            for statement in pg_shop.tm.schema.emit_grants_sql(role).split(";\n"):
                if statement.strip():
                    connection.execute(text(statement))
        producer = Threadmill(engine)
        producer.job("relay")(lambda: None)
        producer.job("mail")(_mail)

        for isolation in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
            with Session(engine.execution_options(isolation_level=isolation)) as session:
                producer.nudge(PUMP, session)
                producer.nudge(PUMP, session)
                producer.nudge_many([PUMP, OTHER], session)
                producer.enqueue("mail", 1, session=session)
                producer.enqueue("mail", 1, session=session, delay=5)
                producer.enqueue_many([("mail", 1), ("mail", 2)], session)
                session.commit()
        with Session(engine) as session:
            producer.nudge(PUMP, session, mode="after_commit")
            producer.enqueue("mail", 1, session=session, mode="after_commit")
            session.commit()
        producer.nudge(PUMP)
        producer.enqueue("mail", 9)
        pg_shop.tm.set_enabled(OTHER, False)
        with Session(engine) as session, pytest.raises(TaskDisabledError):
            producer.nudge(OTHER, session)

        for forbidden in (
            "SELECT payload FROM threadmill_jobs",
            "DELETE FROM threadmill_cron_nudges",
            "UPDATE threadmill_cron_tasks SET enabled = false",
            "SELECT n FROM threadmill_job_counts",
        ):
            with engine.connect() as connection, pytest.raises(DBAPIError, match="permission"):
                connection.execute(text(forbidden))
        producer.close()
        engine.dispose()

    assert pg_shop.pending(PUMP)
    assert len(pg_shop.tm.list_jobs()) == 3 * 4 + 2


def test_n7_a_read_only_transaction_gets_the_databases_own_answer_and_ours_say_try_later(
    pg_server: Server, pg_shop: Shop, pg_url: str
):
    engine = create_engine(pg_url, connect_args={"options": "-c default_transaction_read_only=on"})
    tm = Threadmill(engine)
    with Session(engine) as session:
        with pytest.raises(DBAPIError, match="read-only"):
            tm.nudge(PUMP, session)
        session.rollback()
    with pytest.raises(StoreUnavailableError):
        tm.nudge(PUMP)
    with pytest.raises(StoreUnavailableError):
        tm.tick(now=pg_shop.tm.preview(PUMP, 1)[0])
    assert tm.get_recurring(PUMP).name == PUMP
    tm.close()
    engine.dispose()


def test_n7_a_statement_timeout_of_the_caller_is_never_spent_on_waiting(
    pg_shop: Shop, pg_url: str
):
    engine = create_engine(pg_url, connect_args={"options": "-c statement_timeout=300"})
    tm = Threadmill(engine)
    with pg_shop.transaction() as session, Session(engine) as other:
        pg_shop.tm.nudge(PUMP, session)
        tm.nudge(PUMP, other)
        other.commit()
    tm.close()
    engine.dispose()
    assert pg_shop.settle() == 1


def test_n7_prepared_statements_may_be_off_or_immediate(pg_shop: Shop, pg_url: str):
    for threshold in (None, 0):
        engine = create_engine(pg_url, connect_args={"prepare_threshold": threshold})
        tm = Shop(Threadmill(engine)).tm
        with Session(engine) as session, session.begin():
            for _ in range(12):
                tm.nudge(PUMP, session)
                tm.enqueue("mail", 1, session=session)
        tm.close()
        engine.dispose()

    assert len(pg_shop.view().nudge_revisions) == 2
    assert {"mail": 24} == dict(pg_shop.store.jobs.queue_depths())
