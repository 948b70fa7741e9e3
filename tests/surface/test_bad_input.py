"""Bad input: a stable code, the value, what was expected, the next step; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool

from tests.fixtures.servers import Server, postgres_keys
from tests.fixtures.sql import SQLITE, engine_for
from threadmill_sa import Cron, Every, Retention, Threadmill
from threadmill_sa import errors as tm_errors
from threadmill_sa.errors import ThreadmillError
from threadmill_sa.model import limits
from threadmill_sa.stores.sql.frozen import HEAD

MEMORY = "memory"
LONG = "x" * (limits.NAME_MAX_CHARS + 1)
NAIVE = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - this is the bad input
NEXT_STEP = re.compile(
    r"\b(?:use|pass|call|declare|write|register|resume|enable|give|store|see|remove|shorten|split|"
    r"attach|run|set|strip|restore|install|upgrade|try|list_recurring|reference|expected|must|"
    r"keep|make|add)\b",
    re.IGNORECASE,
)


class Unencodable:
    """Nothing that JSON knows."""


@dataclass
class Desk:
    tm: Threadmill
    engine: Engine  # of the business rows

    def __post_init__(self) -> None:
        self.tm.job("mail")(_mail)
        self.tm.job("relay")(_relay)
        self.tm.recurring("pump", "relay", Every(hours=1))
        self.tm.recurring("paused", "relay", Every(hours=1), enabled=False)
        self.tm.register()
        self.tm.recurring("declared-only", "relay", Every(hours=1))
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE desk_rows (note TEXT)"))
        self.before = self.everything()

    def everything(self) -> tuple[object, ...]:
        """All that a call could have written."""
        return (
            self.tm.list_recurring(),
            self.tm.list_jobs(limit=500),
            dict(self.tm.store.jobs.counts()),
        )


def _mail(payload: Any) -> None: ...


def _relay() -> None: ...


def _nobodys(payload: int) -> None: ...


@pytest.fixture(params=[MEMORY, SQLITE, *postgres_keys()])
def desk(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Desk]:
    with ExitStack() as stack:
        if request.param in {MEMORY, SQLITE}:
            url = request.getfixturevalue("sqlite_url")
        else:
            url = stack.enter_context(postgres_servers(request.param).fresh_database())
        engine = stack.enter_context(engine_for(url))
        tm = Threadmill.in_memory() if request.param == MEMORY else Threadmill(engine)
        stack.callback(tm.close)
        yield Desk(tm, engine)


@dataclass(frozen=True)
class Bad:
    """One bad call: what it raises, and what the message must show."""

    call: Callable[[Threadmill, Any], object]
    error: str
    code: str
    shows: tuple[str, ...]
    operator: bool = False  # a transaction of its own, for which SQLite's one writer must be free


def _enqueue(payload: object = 1, **options: Any) -> Callable[[Threadmill, Any], object]:
    return lambda tm, session: tm.enqueue("mail", payload, session=session, **options)


def _nudge(name: Any) -> Callable[[Threadmill, Any], object]:
    return lambda tm, session: tm.nudge(name, session)


def _recurring(name: Any, trigger: Any, **options: Any) -> Callable[[Threadmill, Any], object]:
    return lambda tm, _session: tm.recurring(name, "relay", trigger(), **options)


def _cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


CASES: dict[str, Bad] = {
    "unknown task": Bad(_nudge("nobody"), "UnknownTaskError", "TM-R01", ("'nobody'",)),
    "disabled task": Bad(
        _nudge("paused"), "TaskDisabledError", "TM-R03", ("'paused'", "set_enabled")
    ),
    "declared but not registered": Bad(
        _nudge("declared-only"),
        "UnknownTaskError",
        "TM-R01",
        ("'declared-only'", "declared here but not registered", "register()"),
    ),
    "several bad names are all listed": Bad(
        lambda tm, session: tm.nudge_many(["pump", "nobody", "paused", "no one"], session),
        "UnknownTaskError",
        "TM-R01",
        ("'nobody'", "'no one'", "'paused'"),
    ),
    "no name at all": Bad(
        lambda tm, session: tm.nudge_many([], session), "InvalidValueError", "TM-V01", ("[]",)
    ),
    "a text where a list of names belongs": Bad(
        lambda tm, session: tm.nudge_many("pump", session),
        "InvalidValueError",
        "TM-V01",
        ("'pump'",),
    ),
    "unknown handler by name": Bad(
        lambda tm, session: tm.enqueue("mial", 1, session=session),
        "UnknownHandlerError",
        "TM-C02",
        ("'mial'", "tm.job"),
    ),
    "unknown handler by function": Bad(
        lambda tm, session: tm.enqueue(_nobodys, 1, session=session),
        "UnknownHandlerError",
        "TM-C02",
        ("_nobodys", "tm.job"),
    ),
    "unknown handler of a task": Bad(
        lambda tm, _session: tm.recurring("new", "mial", Every(hours=1)),
        "UnknownHandlerError",
        "TM-C02",
        ("'mial'",),
    ),
    "trigger of an unknown task": Bad(
        lambda tm, _session: tm.trigger("nobody"),
        "UnknownTaskError",
        "TM-R01",
        ("'nobody'",),
        operator=True,
    ),
    "delete of an unknown task": Bad(
        lambda tm, _session: tm.delete_recurring("nobody"),
        "UnknownTaskError",
        "TM-R01",
        ("'nobody'",),
        operator=True,
    ),
    "pause of an unknown task": Bad(
        lambda tm, _session: tm.set_enabled("nobody", False),
        "UnknownTaskError",
        "TM-R01",
        ("'nobody'",),
        operator=True,
    ),
    "bad cron text": Bad(
        _recurring("new", lambda: Cron("61 * * * *")), "ScheduleError", "TM-V04", ("61",)
    ),
    "cron text with a sixth field": Bad(
        _recurring("new", lambda: Cron("0 0 0 * * *")),
        "ScheduleError",
        "TM-V04",
        ("'0 0 0 * * *'",),
    ),
    "reversed range": Bad(
        _recurring("new", lambda: Cron("59-5 * * * *")), "ScheduleError", "TM-V04", ("59-5",)
    ),
    "zone that does not exist": Bad(
        _recurring("new", lambda: Cron("0 2 * * *", zone="Mars/Olympus")),
        "ScheduleError",
        "TM-V04",
        ("'Mars/Olympus'",),
    ),
    "impossible date": Bad(
        _recurring("new", lambda: Cron("0 0 30 2 *")), "ScheduleError", "TM-V04", ("0 0 30 2 *",)
    ),
    "impossible dates in several months": Bad(
        _recurring("new", lambda: Cron("0 0 31 4,6 *")),
        "ScheduleError",
        "TM-V04",
        ("0 0 31 4,6 *",),
    ),
    "interval of nothing": Bad(
        _recurring("new", lambda: Every(seconds=0)), "ScheduleError", "TM-V04", ("0",)
    ),
    "naive anchor": Bad(
        _recurring("new", lambda: Every(hours=1, anchor=NAIVE)),
        "NaiveDatetimeError",
        "TM-V03",
        ("2026",),
    ),
    "naive run_at": Bad(_enqueue(run_at=NAIVE), "NaiveDatetimeError", "TM-V03", ("2026",)),
    "naive now": Bad(
        lambda tm, _session: tm.tick(now=NAIVE), "NaiveDatetimeError", "TM-V03", ("2026",)
    ),
    "negative delay": Bad(_enqueue(delay=-1), "InvalidValueError", "TM-V01", ("-1",)),
    "negative timedelta": Bad(
        _enqueue(delay=timedelta(seconds=-2)), "InvalidValueError", "TM-V01", ("delay",)
    ),
    "delay that is no number": Bad(
        _enqueue(delay=float("nan")), "InvalidValueError", "TM-V01", ("nan",)
    ),
    "delay and run_at at once": Bad(
        _enqueue(delay=1, run_at=datetime(2026, 1, 1, tzinfo=UTC)),
        "InvalidValueError",
        "TM-V01",
        ("delay", "run_at"),
    ),
    "name of 129 characters": Bad(
        _nudge(LONG), "InvalidNameError", "TM-V02", ("xxx", "128", "129")
    ),
    "queue of 129 characters": Bad(_enqueue(queue=LONG), "InvalidNameError", "TM-V02", ("128",)),
    "task of 129 characters": Bad(
        _recurring(LONG, lambda: Every(hours=1)), "InvalidNameError", "TM-V02", ("128",)
    ),
    "name with a line break": Bad(_nudge("a\nb"), "InvalidNameError", "TM-V02", (r"'a\nb'",)),
    "name with NUL": Bad(_nudge("a\0b"), "InvalidNameError", "TM-V02", (r"'a\x00b'",)),
    "name with half a surrogate pair": Bad(
        _nudge("a\ud800"), "InvalidNameError", "TM-V02", (r"\ud800",)
    ),
    "names that are no list": Bad(
        lambda tm, session: tm.nudge_many(5, session),  # type: ignore[arg-type]
        "InvalidValueError",
        "TM-V01",
        ("5", "a list of names"),
    ),
    "entries that are no list": Bad(
        lambda tm, session: tm.enqueue_many(None, session),  # type: ignore[arg-type]
        "InvalidValueError",
        "TM-V01",
        ("None", "a list of pairs"),
    ),
    "empty name": Bad(_nudge(""), "InvalidNameError", "TM-V02", ("''",)),
    "name that is no text": Bad(_nudge(7), "InvalidNameError", "TM-V02", ("7",)),
    "payload over the limit": Bad(
        _enqueue("x" * limits.PAYLOAD_MAX_BYTES),
        "PayloadTooLargeError",
        "TM-V06",
        (str(limits.PAYLOAD_MAX_BYTES),),
    ),
    "payload with NUL": Bad(
        _enqueue({"note": ["ok", "a\0b"]}), "PayloadError", "TM-V05", ("note", "1")
    ),
    "payload with half a surrogate pair": Bad(
        _enqueue({"note": "\ud800"}), "PayloadError", "TM-V05", ("note",)
    ),
    "payload with NaN": Bad(_enqueue({"n": float("nan")}), "PayloadError", "TM-V05", ("n",)),
    "payload with colliding keys": Bad(
        _enqueue({1: "a", "1": "b"}), "PayloadError", "TM-V05", ("1",)
    ),
    "payload that nothing encodes": Bad(
        _enqueue({"deep": [Unencodable()]}), "PayloadError", "TM-V05", ("deep", "Unencodable")
    ),
    "payload with a naive datetime": Bad(
        _enqueue({"at": NAIVE}), "PayloadError", "TM-V05", ("at",)
    ),
    "payload that contains itself": Bad(_enqueue(_cycle()), "PayloadError", "TM-V05", ()),
    "one bad payload among many": Bad(
        lambda tm, session: tm.enqueue_many([("mail", 1), ("mail", float("inf"))], session),
        "PayloadError",
        "TM-V05",
        (),
    ),
    "priority that does not fit": Bad(
        _enqueue(priority=2**31), "InvalidValueError", "TM-V01", (str(2**31),)
    ),
    "no attempt at all": Bad(_enqueue(max_attempts=0), "InvalidValueError", "TM-V01", ("0",)),
    "negative timeout": Bad(_enqueue(timeout=-5), "InvalidValueError", "TM-V01", ("-5",)),
    "mode that does not exist": Bad(
        lambda tm, session: tm.nudge("pump", session, mode="later"),
        "InvalidValueError",
        "TM-V01",
        ("'later'", "'after_commit'"),
    ),
    "an engine where a session belongs": Bad(
        lambda tm, session: tm.nudge("pump", session.get_bind()),
        "UnsupportedSessionError",
        "TM-J01",
        ("Engine", "Session"),
    ),
    "anything else where a session belongs": Bad(
        lambda tm, _session: tm.nudge("pump", object()),
        "UnsupportedSessionError",
        "TM-J01",
        ("object", "Session"),
    ),
    "missed-run policy that does not exist": Bad(
        _recurring("new", lambda: Every(hours=1), missed="all"),
        "InvalidValueError",
        "TM-V01",
        ("'all'",),
    ),
    "job state that does not exist": Bad(
        lambda tm, _session: tm.list_jobs(state="DONE"), "InvalidValueError", "TM-V01", ("'DONE'",)
    ),
    "job id that is a text": Bad(
        lambda tm, _session: tm.delete_job("7"),  # type: ignore[arg-type]
        "InvalidValueError",
        "TM-V01",
        ("'7'", "UUID"),
    ),
    "job id that is nothing": Bad(
        lambda tm, _session: tm.get_job(None),  # type: ignore[arg-type]
        "InvalidValueError",
        "TM-V01",
        ("None", "UUID"),
    ),
    "retention of no time": Bad(
        lambda _tm, _session: Retention(failed=timedelta(0)),
        "InvalidValueError",
        "TM-V01",
        ("failed", "between 1 and", "datetime.timedelta(0)"),
    ),
    "retention that is a number of days": Bad(
        lambda _tm, _session: Threadmill.in_memory(retention=7),  # type: ignore[arg-type]
        "InvalidValueError",
        "TM-V01",
        ("found 7", "Retention("),
    ),
    "limit of nothing": Bad(
        lambda tm, _session: tm.list_jobs(limit=0), "InvalidValueError", "TM-V01", ("0",)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_and_writes_nothing(desk: Desk, case: str):
    bad = CASES[case]
    with Session(desk.engine) as session:
        if not bad.operator:
            session.execute(text("INSERT INTO desk_rows VALUES ('kept')"))
        with pytest.raises(ThreadmillError) as caught:
            bad.call(desk.tm, session)
        # The caller's transaction is as it was: it goes on, and commits.
        session.execute(text("INSERT INTO desk_rows VALUES ('kept too')"))
        session.commit()

    _check(caught.value, bad)
    assert desk.everything() == desk.before
    with desk.engine.connect() as connection:
        kept = connection.scalar(text("SELECT count(*) FROM desk_rows"))
        assert kept == (1 if bad.operator else 2)


def _check(error: ThreadmillError, bad: Bad) -> None:
    assert type(error) is getattr(tm_errors, bad.error)
    assert error.code == bad.code
    message = str(error)
    assert message.endswith(f"[{bad.code}]")
    for part in bad.shows:
        assert part in message, message
    assert not error.message.rstrip().endswith("."), message
    assert error.message[0] == error.message[0].lower(), message
    assert len(message) < 2000, "the value is cut to a readable length"
    assert NEXT_STEP.search(error.message), f"no next step: {message}"


@pytest.mark.parametrize("mode", ["join_transaction", "after_commit"])
def test_a_session_of_another_database_is_refused_without_sql(
    schema_engine: Engine, tmp_path: Path, mode: str
):
    desk = Desk(Threadmill(schema_engine), schema_engine)
    with engine_for(f"sqlite:///{tmp_path / 'foreign.db'}") as foreign:
        with Session(foreign) as session:
            with pytest.raises(ThreadmillError) as caught:
                desk.tm.nudge("pump", session, mode=mode)
            assert not session.in_transaction() or session.execute(text("SELECT 1")).scalar() == 1
        error = caught.value
        assert (error.code, type(error).__name__) == ("TM-J02", "ForeignSessionError")
        assert "foreign.db" in str(error)
        assert "also=" in str(error)
    assert desk.everything() == desk.before
    desk.tm.close()


def test_join_on_a_store_that_cannot_is_refused_with_the_reason(tmp_path: Path):
    tm = Threadmill.in_memory()
    tm.job("relay")(_relay)
    tm.recurring("pump", "relay", Every(hours=1))
    tm.register()
    with engine_for(f"sqlite:///{tmp_path / 'rows.db'}") as engine, Session(engine) as session:
        with pytest.raises(tm_errors.CannotJoinError) as caught:
            tm.nudge("pump", session, mode="join_transaction")
        assert caught.value.code == "TM-J03"
        session.execute(text("SELECT 1"))
    assert not tm.get_recurring("pump").nudge_revisions


@pytest.mark.parametrize(
    ("make", "shows"),
    [
        (lambda: create_engine("sqlite://"), "in_memory()"),
        (lambda: create_engine("sqlite:///:memory:"), "in_memory()"),
        (
            lambda: create_engine(
                "sqlite:///file:x?mode=memory&uri=true", poolclass=SingletonThreadPool
            ),
            "in_memory()",
        ),
        (lambda: _engine_of("mysql"), "'mysql'"),
        (lambda: _engine_of("oracle"), "'oracle'"),
    ],
    ids=["sqlite://", ":memory:", "mode=memory", "mysql", "oracle"],
)
def test_an_unsupported_dialect_is_refused_at_construction_without_sql(
    make: Callable[[], Engine], shows: str
):
    engine = make()
    with pytest.raises(tm_errors.UnsupportedStoreError) as caught:
        Threadmill(engine)

    assert caught.value.code == "TM-D01"
    assert shows in str(caught.value)
    assert "use" in caught.value.message
    engine.dispose()


def _engine_of(dialect: str) -> Any:
    """An engine of a dialect whose driver is not installed; it is never connected."""
    from sqlalchemy import create_mock_engine

    mock: Any = create_mock_engine(f"{dialect}://", lambda *_args: None)
    engine = create_engine("sqlite:///never.db")
    engine.dialect = mock.dialect
    return engine


@pytest.fixture(params=[SQLITE, *postgres_keys()])
def schema_engine(
    request: pytest.FixtureRequest, postgres_servers: Callable[[str], Server]
) -> Iterator[Engine]:
    with ExitStack() as stack:
        if request.param == SQLITE:
            url = request.getfixturevalue("sqlite_url")
        else:
            url = stack.enter_context(postgres_servers(request.param).fresh_database())
        yield stack.enter_context(engine_for(url))


SCHEMA: dict[str, tuple[str, str, str, str]] = {
    "behind": (
        f"DELETE FROM threadmill_schema_history WHERE revision = '{HEAD}'",
        "SchemaBehindError",
        "TM-S02",
        HEAD,
    ),
    "ahead": (
        (
            "INSERT INTO threadmill_schema_history SELECT '0999', 'later', checksum, applied_at"
            " FROM threadmill_schema_history WHERE revision = '0001'"
        ),
        "SchemaAheadError",
        "TM-S03",
        "0999",
    ),
    "edited": (
        "UPDATE threadmill_schema_history SET checksum = 'other' WHERE revision = '0003'",
        "SchemaEditedError",
        "TM-S04",
        "0003",
    ),
    "missing": (
        "DROP TABLE threadmill_schema_history",
        "SchemaMissingError",
        "TM-S01",
        "threadmill-sa db upgrade",
    ),
}


@pytest.mark.parametrize("case", SCHEMA)
@pytest.mark.parametrize("start", ["node", "run_until_idle", "validate"])
def test_a_schema_that_is_not_this_releases_stops_the_start(
    schema_engine: Engine, case: str, start: str
):
    statement, name, code, shows = SCHEMA[case]
    with schema_engine.begin() as connection:
        connection.execute(text(statement))
    tm = Threadmill(schema_engine)
    tm.job("relay")(_relay)
    tm.recurring("pump", "relay", Every(hours=1))
    calls: dict[str, Callable[[], object]] = {
        "node": lambda: tm.node().__enter__(),
        "run_until_idle": tm.run_until_idle,
        "validate": tm.schema.validate,
    }

    with pytest.raises(tm_errors.SchemaError) as caught:
        calls[start]()

    assert type(caught.value).__name__ == name
    assert caught.value.code == code
    assert shows in str(caught.value)
    assert NEXT_STEP.search(caught.value.message), str(caught.value)
    with schema_engine.connect() as connection:
        assert 0 == connection.scalar(text("SELECT count(*) FROM threadmill_cron_tasks"))
    tm.close()


def test_a_producers_call_on_a_database_without_our_schema_leaves_the_message_of_the_database(
    tmp_path: Path,
):
    """Producers never check; what they get is an error, and their transaction can be undone."""
    with engine_for(f"sqlite:///{tmp_path / 'bare.db'}") as engine:
        tm = Threadmill(engine)
        tm.job("mail")(_mail)
        with Session(engine) as session:
            with pytest.raises(Exception, match="no such table"):
                tm.enqueue("mail", 1, session=session)
            session.execute(text("CREATE TABLE mine (x INTEGER)"))
            session.commit()


@pytest.mark.parametrize("given", ["postgresql://app:s3cret@h/shop", None, 5, object()])
def test_what_is_no_engine_is_refused_without_showing_a_password(given: Any):
    with pytest.raises(tm_errors.InvalidValueError, match="pass what create_engine") as caught:
        Threadmill(given)
    assert caught.value.code == "TM-V01"
    assert type(given).__name__ in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("also", ["sqlite:///x.db", 5, [None], ["sqlite:///x.db"], "an engine"])
def test_other_engines_that_are_none_are_refused_at_construction(tmp_path: Path, also: Any):
    with engine_for(f"sqlite:///{tmp_path / 'shop.db'}") as engine:
        given: Any = engine if also == "an engine" else also
        with pytest.raises(tm_errors.InvalidValueError, match=r"also must .*: pass") as caught:
            Threadmill(engine, also=given)
        assert caught.value.code == "TM-V01"


@pytest.mark.parametrize("schema", ["", "x" * 64, "é" * 32, "50%", "a\0b", "pg_temp", 5])
def test_a_schema_that_no_server_takes_is_refused_without_connecting(schema: Any):
    engine = create_engine("postgresql+psycopg://app@127.0.0.1:1/nowhere")
    with pytest.raises(tm_errors.InvalidValueError) as caught:
        Threadmill(engine, schema=schema)
    assert repr(schema) in str(caught.value)


def test_names_are_compared_by_exact_code_points_on_every_store(desk: Desk):
    """One published rule; what it lets through works in every call."""
    names = [
        "a/b", "a b", "a%2Fb", "A", "a", "\u00e9", "e\u0301", "..", "{x}", "'; --", "a%(x)s",
        ":name", "x" * 128, "\N{PILE OF POO}", "\u0430",
    ]  # fmt: skip
    for name in names:
        desk.tm.recurring(name, "relay", Every(hours=1))
    desk.tm.register()

    for name in names:
        desk.tm.nudge(name)
        desk.tm.enqueue("mail", 1, queue=name)
    pending = {view.name for view in desk.tm.list_recurring() if view.nudge_revisions}
    assert pending == set(names)
    assert dict.fromkeys(names, 1) == dict(desk.tm.store.jobs.queue_depths())
    for name in names:
        assert [name] == [outcome.name for outcome in desk.tm.tick() if outcome.name == name] or (
            desk.tm.list_jobs(task=name)
        )
        assert 1 == len(desk.tm.list_jobs(task=name))
        desk.tm.set_enabled(name, False)
        desk.tm.delete_recurring(name)
    assert not set(names) & {view.name for view in desk.tm.list_recurring()}
