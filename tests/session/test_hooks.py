from __future__ import annotations

import gc
import logging
import weakref

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from tests.session.conftest import PUMP, Desk, Order
from threadmill_sa.session import hooks


def listeners() -> int:
    dispatch = Session.dispatch
    return sum(
        len(list(getattr(dispatch, name)._clslevel[Session]))
        for name in ("after_commit", "after_transaction_end")
    )


def test_two_listeners_serve_any_number_of_boundaries_and_can_be_removed(memory_desk):
    constant = listeners()
    for _ in range(300):
        Desk(memory_desk.engine, memory_desk.store)
    hooks.install()
    assert listeners() == constant
    hooks.remove()
    hooks.remove()
    try:
        assert listeners() == constant - 2
        with Session(memory_desk.engine) as session:
            session.add(Order())
            session.commit()
    finally:
        hooks.install()
    assert listeners() == constant


def test_ten_thousand_nudges_of_one_session_leave_nothing_behind(memory_desk):
    constant = listeners()
    with Session(memory_desk.engine) as session:
        for _ in range(10_000):
            memory_desk.nudge([PUMP], session)
            session.commit()
        assert session.info[hooks._KEY] == {}
        assert listeners() == constant
        assert not any(session.dispatch.after_commit.listeners)
    assert len(memory_desk.written) == 10_000


def test_a_session_is_not_kept_alive(desk):
    session = Session(desk.engine)
    session.add(Order())
    desk.nudge([PUMP], session)
    desk.nudge([PUMP], session, mode="after_commit")
    session.commit()
    desk.nudge([PUMP], session, mode="after_commit")
    session.close()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def test_sessions_without_a_nudge_get_no_state(memory_desk):
    with Session(memory_desk.engine) as session:
        with session.begin_nested():
            session.add(Order())
        session.commit()
        assert session.info == {}


def test_what_a_caller_keeps_in_info_stays(memory_desk):
    with Session(memory_desk.engine, info={"tenant": 7}) as session:
        memory_desk.nudge([PUMP], session)
        session.commit()
        assert session.info["tenant"] == 7
    assert memory_desk.pending() == 1


def test_a_fault_of_ours_in_a_listener_never_reaches_the_host(memory_desk, caplog):
    before = hooks.counters.faults
    with Session(memory_desk.engine) as session:
        session.add(Order())
        session.info[hooks._KEY] = "overwritten by the host"
        with caplog.at_level(logging.ERROR, logger="threadmill_sa"):
            session.commit()
        session.info[hooks._KEY] = None
    assert memory_desk.orders() == 1
    assert hooks.counters.faults > before
    assert "marking a commit failed" in caplog.text


def test_the_commit_of_one_session_fires_nothing_of_another(memory_desk):
    with Session(memory_desk.engine) as first, Session(memory_desk.engine) as second:
        memory_desk.nudge([PUMP], first)
        second.scalar(select(1))
        second.commit()
        assert memory_desk.pending() == 0
        first.commit()
    assert memory_desk.pending() == 1


def test_a_write_after_the_commit_may_itself_use_a_session(memory_desk):
    def audit(_name: str) -> None:
        with Session(memory_desk.engine) as own:
            own.add(Order(note="audit"))
            own.commit()

    memory_desk.fail = audit
    with Session(memory_desk.engine) as session:
        session.add(Order())
        memory_desk.nudge([PUMP], session)
        session.commit()
    assert memory_desk.orders() == 2
    assert memory_desk.pending() == 1


def test_a_host_hook_that_raises_at_the_end_does_not_lose_the_write(memory_desk):
    def angry(_session: Session, _transaction: object) -> None:
        raise RuntimeError("host")

    session = Session(memory_desk.engine)
    event.listen(session, "after_transaction_end", angry)
    memory_desk.nudge([PUMP], session)
    with pytest.raises(RuntimeError, match="host"):
        session.commit()
    assert memory_desk.pending() == 1
