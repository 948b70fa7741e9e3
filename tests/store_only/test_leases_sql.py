"""Leases where databases differ: row locks, isolation, pools, and the fence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.lease import (
    AcquireAnswer,
    AcquireVerdict,
    FenceVerdict,
    Lease,
    ReleaseVerdict,
    RenewVerdict,
)
from threadmill_sa.spi.store import CannotJoin
from threadmill_sa.stores.sql.store import SqlStore

TTL, CALL = 30.0, 5.0
SHORT_CALL = 0.3
PATIENT_CALL = 40.0  # a quarter of it may be spent on a lock
WAIT_SECONDS = 20.0


@pytest.fixture
def sql_store(sql_engine: Engine) -> Iterator[SqlStore]:
    store = SqlStore(sql_engine)
    yield store
    store.close()


@pytest.fixture
def pg_store(pg_engine: Engine) -> Iterator[SqlStore]:
    store = SqlStore(pg_engine)
    yield store
    store.close()


def win(store: SqlStore, name: str = "settle", holder: str = "me", ttl: float = TTL) -> Lease:
    answer = store.leases.acquire(name, holder, ttl_seconds=ttl, timeout_seconds=CALL)
    assert answer.verdict is AcquireVerdict.ACQUIRED
    return answer.lease


def renew(store: SqlStore, lease: Lease, *, call: float = CALL) -> RenewVerdict:
    return store.leases.renew(lease, ttl_seconds=TTL, timeout_seconds=call)


def release(store: SqlStore, lease: Lease) -> ReleaseVerdict:
    return store.leases.release(lease, timeout_seconds=CALL)


def held_up(store: SqlStore, name: str = "settle") -> AcquireAnswer:
    """Ask for a mutex that is free, but for a lock of somebody; told well within the time."""
    began = time.monotonic()
    answer = store.leases.acquire(name, "next", ttl_seconds=TTL, timeout_seconds=SHORT_CALL)
    assert time.monotonic() - began < SHORT_CALL
    assert (answer.verdict, answer.remaining_seconds) == (AcquireVerdict.HELD, 0.0)
    return answer


def remaining(store: SqlStore, name: str = "settle") -> float:
    view = store.leases.peek(name)
    assert view is not None
    return view.remaining_seconds


def fence(store: SqlStore, handle: object, lease: Lease) -> FenceVerdict:
    writes = store.joined(handle)
    assert not isinstance(writes, CannotJoin)
    return writes.fence(lease)


def end(engine: Engine, name: str = "settle") -> None:
    """Let the lease have run out a minute ago."""
    past = (
        "expires_at - 60000000"
        if engine.dialect.name == "sqlite"
        else ("clock_timestamp() - interval '1 minute'")
    )
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE threadmill_leases SET expires_at = {past} WHERE name = :name"),
            {"name": name},
        )


def in_thread(action: Callable[[], Any]) -> Callable[[], Any]:
    """Start `action`; what is returned waits for its result."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - shown to the one who waits
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
        return results[0]

    return wait


def until_a_lock_is_waited_for(engine: Engine) -> None:
    """Return once some session of this database waits for a row lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database()"
    )
    pause = threading.Event()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(int(WAIT_SECONDS * 100)):
            if connection.scalar(waiting):
                return
            pause.wait(0.01)
    raise AssertionError("nobody waits for a lock")


def seconds_pass_on_the_server(connection: Connection, seconds: float) -> None:
    connection.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})


# A wait for a lock never shortens a lease ----------------------------------------------------


@pytest.mark.parametrize("act", ["acquire", "renew"])
def test_a_wait_for_the_row_does_not_shorten_the_lease(
    pg_engine: Engine, pg_store: SqlStore, act: str
) -> None:
    lease = win(pg_store)
    if act == "acquire":
        release(pg_store, lease)
    call = {
        "acquire": lambda: pg_store.leases.acquire(
            "settle", "next", ttl_seconds=1.0, timeout_seconds=PATIENT_CALL
        ),
        "renew": lambda: pg_store.leases.renew(
            lease, ttl_seconds=1.0, timeout_seconds=PATIENT_CALL
        ),
    }[act]
    with pg_engine.begin() as holding:
        holding.execute(text("SELECT 1 FROM threadmill_leases FOR UPDATE"))
        waiting = in_thread(call)
        until_a_lock_is_waited_for(pg_engine)
        seconds_pass_on_the_server(holding, 1.2)

    waiting()

    assert remaining(pg_store) > 0.3


def test_a_wait_for_the_writer_does_not_shorten_the_lease_on_sqlite(
    sqlite_engine: Engine,
) -> None:
    store = SqlStore(sqlite_engine)
    lease = win(store)
    with sqlite_engine.connect() as holding:
        holding.execute(text("UPDATE threadmill_leases SET holder = holder"))
        waiting = in_thread(lambda: store.leases.renew(lease, ttl_seconds=5.0, timeout_seconds=1))
        threading.Event().wait(0.5)
        holding.rollback()

    assert waiting() is RenewVerdict.RENEWED
    assert remaining(store) > 4.6
    store.close()


def test_a_wait_for_the_row_is_bounded(pg_engine: Engine, pg_store: SqlStore) -> None:
    lease = win(pg_store)
    with pg_engine.begin() as holding:
        holding.execute(text("SELECT 1 FROM threadmill_leases FOR UPDATE"))

        with pytest.raises(StoreUnavailableError):
            renew(pg_store, lease, call=SHORT_CALL)

    assert renew(pg_store, lease) is RenewVerdict.RENEWED


# The engine of the user is what it is ---------------------------------------------------------


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_the_isolation_of_the_engine_does_not_matter(pg_url: str, level: str) -> None:
    engine = create_engine(pg_url, isolation_level=level)
    store = SqlStore(engine)
    levels: list[str] = []

    def note(connection: Connection, *_: Any) -> None:
        if "threadmill_leases" in _[1]:
            levels.append(connection.get_isolation_level())

    aside = store.leases._aside
    event.listen(aside, "before_cursor_execute", note)
    lease = win(store)
    assert renew(store, lease) is RenewVerdict.RENEWED
    assert release(store, lease) is ReleaseVerdict.RELEASED

    assert win(store).term == 2
    assert set(levels) == {"READ COMMITTED"}
    store.close()
    engine.dispose()


def test_the_transaction_of_the_caller_does_not_matter(
    sql_engine: Engine, sql_store: SqlStore
) -> None:
    with Session(sql_engine) as session, session.begin():
        session.execute(text("SELECT count(*) FROM threadmill_leases"))
        lease = win(sql_store)
        session.rollback()

    assert remaining(sql_store) > 0
    assert renew(sql_store, lease) is RenewVerdict.RENEWED


def test_an_exhausted_pool_delays_no_renewal(sql_url: str) -> None:
    engine = create_engine(sql_url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    store = SqlStore(engine)
    lease = win(store)
    with engine.connect():
        assert renew(store, lease) is RenewVerdict.RENEWED
        assert release(store, lease) is ReleaseVerdict.RELEASED
    store.close()
    engine.dispose()


def test_connections_that_are_swapped_or_killed_between_calls_do_not_matter(
    pg_engine: Engine, pg_store: SqlStore
) -> None:
    lease = win(pg_store)
    with pg_engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        )

    with pytest.raises(StoreUnavailableError):
        renew(pg_store, lease)
    assert renew(pg_store, lease) is RenewVerdict.RENEWED


def test_no_setting_is_left_behind_on_a_connection(pg_store: SqlStore) -> None:
    renew(pg_store, win(pg_store))

    with pg_store.leases._aside.connect() as connection:
        assert connection.scalar(text("SHOW lock_timeout")) == "0"
        assert connection.scalar(text("SHOW statement_timeout")) == "0"


def test_a_process_uses_few_connections_for_any_number_of_leases(
    pg_engine: Engine, pg_store: SqlStore
) -> None:
    for wait in [in_thread(lambda n=n: win(pg_store, f"n{n}")) for n in range(40)]:  # type: ignore[misc]
        assert isinstance(wait(), Lease)

    with pg_engine.connect() as connection:
        count = connection.scalar(
            text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        )
    assert count is not None
    assert count <= 4 + 1


# The fence ------------------------------------------------------------------------------------


def test_a_fence_holds_for_the_holder_of_the_term(sql_engine: Engine, sql_store: SqlStore) -> None:
    lease = win(sql_store)

    with sql_engine.begin() as connection:
        assert fence(sql_store, connection, lease) is FenceVerdict.HOLDS


@pytest.mark.parametrize(
    "wrong", [Lease("settle", "me", 2), Lease("settle", "you", 1), Lease("other", "me", 1)]
)
def test_a_fence_refuses_every_other_holding(
    sql_engine: Engine, sql_store: SqlStore, wrong: Lease
) -> None:
    win(sql_store)

    with sql_engine.begin() as connection:
        assert fence(sql_store, connection, wrong) is FenceVerdict.LOST


def test_a_fence_refuses_a_lease_that_has_run_out_or_was_released(
    sql_engine: Engine, sql_store: SqlStore
) -> None:
    ended, released = win(sql_store), win(sql_store, "other")
    end(sql_engine)
    release(sql_store, released)

    with sql_engine.begin() as connection:
        verdicts = [fence(sql_store, connection, lease) for lease in (ended, released)]

    assert verdicts == [FenceVerdict.LOST] * 2


def test_a_takeover_waits_for_the_fenced_transaction(
    sql_engine: Engine, sql_store: SqlStore
) -> None:
    old = win(sql_store)
    with sql_engine.connect() as connection:
        assert fence(sql_store, connection, old) is FenceVerdict.HOLDS
        if sql_engine.dialect.name == "postgresql":
            end(sql_engine)  # run out, while its holder is in the middle of a transaction

            answer = held_up(sql_store)
            assert answer.lease == old
        else:
            with pytest.raises(OperationalError, match="locked"):
                end(create_engine(sql_engine.url, connect_args={"timeout": 0}))
        connection.commit()
    end(sql_engine)

    assert win(sql_store, holder="next").term == old.term + 1


def test_a_released_lease_is_not_taken_before_the_fenced_transaction_ends(
    pg_engine: Engine, pg_store: SqlStore
) -> None:
    old = win(pg_store)
    with pg_engine.begin() as connection:
        fence(pg_store, connection, old)
        assert release(pg_store, old) is ReleaseVerdict.RELEASED

        assert held_up(pg_store).lease == Lease("settle", "", old.term)

    assert win(pg_store, holder="next").term == old.term + 1


def test_a_first_term_that_somebody_is_about_to_begin_is_busy(
    pg_engine: Engine, pg_store: SqlStore
) -> None:
    with pg_engine.connect() as connection:
        connection.execute(
            text(
                "INSERT INTO threadmill_leases (name, holder, term, acquired_at, expires_at)"
                " VALUES ('settle', 'other', 1, clock_timestamp(), clock_timestamp())"
            )
        )
        assert held_up(pg_store).lease == Lease("settle", "", 1)
        connection.rollback()

    assert win(pg_store).term == 1


def test_a_free_mutex_that_another_writer_holds_up_is_busy_on_sqlite(
    sqlite_engine: Engine,
) -> None:
    store = SqlStore(sqlite_engine)
    old = win(store)
    release(store, old)
    with sqlite_engine.connect() as writer:
        writer.execute(text("UPDATE threadmill_leases SET holder = holder"))

        answer = store.leases.acquire("settle", "next", ttl_seconds=TTL, timeout_seconds=CALL)

        assert answer.verdict is AcquireVerdict.HELD
        assert answer.lease == Lease("settle", "", old.term)
        writer.rollback()
    assert win(store).term == old.term + 1
    store.close()


def test_renewals_pass_by_an_open_fence(pg_engine: Engine, pg_store: SqlStore) -> None:
    lease = win(pg_store)
    with pg_engine.begin() as connection:
        fence(pg_store, connection, lease)

        assert renew(pg_store, lease, call=SHORT_CALL) is RenewVerdict.RENEWED
        assert fence(pg_store, connection, lease) is FenceVerdict.HOLDS


def test_two_transactions_of_one_term_do_not_wait_for_each_other(
    pg_engine: Engine, pg_store: SqlStore
) -> None:
    lease = win(pg_store)
    with pg_engine.begin() as first, pg_engine.begin() as second:
        second.execute(text("SET LOCAL lock_timeout = '300ms'"))

        assert fence(pg_store, first, lease) is FenceVerdict.HOLDS
        assert fence(pg_store, second, lease) is FenceVerdict.HOLDS


def test_a_fence_behind_an_open_takeover_is_refused(pg_engine: Engine, pg_store: SqlStore) -> None:
    old = win(pg_store)
    end(pg_engine)
    with pg_engine.begin() as takeover, pg_engine.begin() as late:
        takeover.execute(
            text(
                "UPDATE threadmill_leases SET holder = 'next', term = term + 1,"
                " expires_at = clock_timestamp() + interval '30 s'"
            )
        )
        end_is_read = in_thread(lambda: fence(pg_store, late, old))
        takeover.commit()

        assert end_is_read() is FenceVerdict.LOST


def test_an_old_leader_never_commits_after_a_new_one(
    sql_engine: Engine, sql_store: SqlStore
) -> None:
    old = win(sql_store, holder="old")
    end(sql_engine)
    new = win(sql_store, holder="new")

    with sql_engine.begin() as connection:
        assert fence(sql_store, connection, new) is FenceVerdict.HOLDS
    with sql_engine.begin() as connection:
        assert fence(sql_store, connection, old) is FenceVerdict.LOST


def test_a_repeatable_read_that_fences_first_meets_no_error_from_renewals(
    pg_url: str, pg_store: SqlStore
) -> None:
    engine = create_engine(pg_url, isolation_level="REPEATABLE READ")
    store = SqlStore(engine)
    lease = win(store)
    with engine.begin() as connection:
        assert fence(store, connection, lease) is FenceVerdict.HOLDS
        renew(store, lease)
        connection.execute(text("SELECT 1"))
    store.close()
    engine.dispose()


SNAPSHOTS = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


@SNAPSHOTS
def test_a_renewal_that_a_snapshot_does_not_show_ends_no_term(
    pg_engine: Engine, pg_store: SqlStore, level: str
) -> None:
    """It failed: the expiry of the snapshot was compared with the clock of the present."""
    lease = win(pg_store, ttl=0.5)
    with pg_engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT count(*) FROM threadmill_leases"))
        renew(pg_store, lease)
        seconds_pass_on_the_server(connection, 0.6)

        assert fence(pg_store, connection, lease) is FenceVerdict.HOLDS

        # The lock is on the row as it is by now: it holds the next term off until the end.
        end(pg_engine)
        assert held_up(pg_store).lease == lease
        connection.commit()
    assert win(pg_store, holder="next").term == lease.term + 1


@SNAPSHOTS
def test_a_release_that_a_snapshot_does_not_show_lets_nobody_in_before_its_end(
    pg_engine: Engine, pg_store: SqlStore, level: str
) -> None:
    lease = win(pg_store)
    with pg_engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT count(*) FROM threadmill_leases"))
        release(pg_store, lease)

        if fence(pg_store, connection, lease) is FenceVerdict.HOLDS:
            held_up(pg_store)
        connection.commit()
    assert win(pg_store, holder="next").term == lease.term + 1


@SNAPSHOTS
def test_an_old_snapshot_never_commits_after_a_new_term(
    pg_engine: Engine, pg_store: SqlStore, level: str
) -> None:
    old = win(pg_store, holder="old")
    with pg_engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT count(*) FROM threadmill_leases"))
        renew(pg_store, old)  # so that the row has changed twice
        end(pg_engine)
        win(pg_store, holder="new")

        with pytest.raises(OperationalError, match="could not serialize"):
            fence(pg_store, connection, old)
        connection.rollback()
        assert fence(pg_store, connection, old) is FenceVerdict.LOST  # by a snapshot of now


@SNAPSHOTS
def test_a_fence_at_an_old_snapshot_behind_an_open_takeover_is_refused(
    pg_engine: Engine, pg_store: SqlStore, level: str
) -> None:
    old = win(pg_store)
    end(pg_engine)
    with pg_engine.connect().execution_options(isolation_level=level) as late:
        late.execute(text("SELECT count(*) FROM threadmill_leases"))
        with pg_engine.begin() as takeover:
            takeover.execute(
                text(
                    "UPDATE threadmill_leases SET holder = 'next', term = term + 1,"
                    " expires_at = clock_timestamp() + interval '30 s'"
                )
            )
            verdict = in_thread(lambda: fence(pg_store, late, old))
            until_a_lock_is_waited_for(pg_engine)

        assert isinstance(verdict(), OperationalError)


# A statement of the second holder stops here once it has seen that nobody has the name: between
# that look and its entry into the keys nothing else can be made to wait.
_GATE = """
CREATE FUNCTION gate(holder text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF holder = 'second' THEN
        PERFORM pg_advisory_xact_lock_shared(4711);
    END IF;
    RETURN holder;
END $$
"""
# The keys are entered in the order in which they were made, so the gate has to be made first.
_GATED = f"""
ALTER TABLE threadmill_leases DROP CONSTRAINT pk_threadmill_leases;
ALTER TABLE threadmill_leases DROP CONSTRAINT uq_threadmill_leases_name_term;
{_GATE};
CREATE INDEX gate ON threadmill_leases (gate(holder));
ALTER TABLE threadmill_leases ADD CONSTRAINT pk_threadmill_leases PRIMARY KEY (name);
ALTER TABLE threadmill_leases ADD CONSTRAINT uq_threadmill_leases_name_term UNIQUE (name, term)
"""


def test_of_two_first_holders_the_later_is_told_of_the_earlier(
    pg_store: SqlStore, pg_engine: Engine
) -> None:
    """It failed: the conflict clause named one key, and they met on the other."""
    with pg_engine.begin() as connection:
        connection.execute(text(_GATED))
    with pg_engine.connect() as gatekeeper:
        gatekeeper.execute(text("SELECT pg_advisory_lock(4711)"))
        second = in_thread(
            lambda: pg_store.leases.acquire(
                "settle", "second", ttl_seconds=TTL, timeout_seconds=WAIT_SECONDS
            )
        )
        until_a_lock_is_waited_for(pg_engine)

        first = win(pg_store, holder="first")
        gatekeeper.execute(text("SELECT pg_advisory_unlock(4711)"))

        answer = second()

    assert answer.verdict is AcquireVerdict.HELD
    assert answer.lease == first
