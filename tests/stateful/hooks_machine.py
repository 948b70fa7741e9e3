"""The bookkeeping of what waits for a commit, with the database as its judge.

Beside each deferred write goes a row of the same transaction. Whatever savepoints are released,
rolled back or closed, in whatever order: a write happens exactly when its row was committed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import Engine, Integer, String, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, SessionTransaction, mapped_column

from threadmill_sa.errors import AfterCommitError
from threadmill_sa.session import hooks

DEPTH_MAX = 4
SESSIONS, KEYS = st.integers(0, 1), st.integers(0, 3)
LEVELS = st.integers(0, DEPTH_MAX - 1)


class Base(DeclarativeBase):
    pass


class Ask(Base):
    """One call of `write_after_commit`, or of `hint_after_commit`."""

    __tablename__ = "hook_asks"

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    key: Mapped[int] = mapped_column(Integer, nullable=False)
    kind: Mapped[str] = mapped_column(String(10), nullable=False)


@dataclass
class Desk:
    """Where the two sessions write; each has a database of its own where one writer is all."""

    engines: tuple[Engine, Engine]
    explored: Counter[str]

    def __post_init__(self) -> None:
        for engine in set(self.engines):
            Base.metadata.create_all(engine)

    def clear(self) -> None:
        for engine in set(self.engines):
            with engine.begin() as connection:
                connection.execute(delete(Ask))

    def asks(self) -> dict[int, tuple[int, str]]:
        """Key and kind of every committed row."""
        found = {}
        for engine in set(self.engines):
            with engine.connect() as connection:
                for row in connection.execute(select(Ask.number, Ask.key, Ask.kind)):
                    found[row.number] = (row.key, row.kind)
        return found


@dataclass
class Desked:
    """One session with its open savepoints, outermost first."""

    session: Session
    savepoints: list[SessionTransaction] = field(default_factory=list)


class HooksMachine(RuleBasedStateMachine):
    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk
        desk.clear()
        self.sessions = [Desked(Session(engine)) for engine in desk.engines]
        self.numbers = itertools.count()
        self.fired: list[tuple[int, str]] = []
        self.settled = 0  # how many of those were looked at
        self.known: set[int] = set()  # rows that were looked at
        desk.explored["examples"] += 1

    # Asking.

    @rule(
        which=SESSIONS,
        key=KEYS,
        deeper=st.integers(0, 2),
        later=st.booleans(),
        fails=st.booleans(),
    )
    def ask_for_a_write(
        self, which: int, key: int, deeper: int, *, later: bool, fails: bool
    ) -> None:
        """The row goes now, or with the flush that a savepoint or the commit brings."""
        for _ in range(deeper):
            self.begin_savepoint(which=which)
        session = self.sessions[which].session
        self._add(session, key, "write", later=later)
        hooks.write_after_commit(session, key, self._action(key, "write", fails=fails))

    @rule(which=SESSIONS, key=KEYS)
    def ask_for_a_hint(self, which: int, key: int) -> None:
        session = self.sessions[which].session
        self._add(session, key, "hint", later=False)
        hooks.hint_after_commit(session, key, self._action(key, "hint", fails=False))

    def _add(self, session: Session, key: int, kind: str, *, later: bool) -> None:
        session.add(Ask(number=next(self.numbers), key=key, kind=kind))
        if not later:
            session.flush()
        self.desk.explored["asks"] += 1

    def _action(self, key: int, kind: str, *, fails: bool) -> Callable[[], None]:
        def act() -> None:
            self.fired.append((key, kind))
            if fails:
                raise RuntimeError("a write that fails is its own affair")

        return act

    # Savepoints and transactions.

    @precondition(lambda self: any(len(each.savepoints) < DEPTH_MAX for each in self.sessions))
    @rule(which=SESSIONS)
    def begin_savepoint(self, which: int) -> None:
        desked = self.sessions[which]
        if len(desked.savepoints) < DEPTH_MAX:
            desked.savepoints.append(desked.session.begin_nested())

    @rule(which=SESSIONS, level=LEVELS, how=st.sampled_from(("commit", "rollback", "close")))
    def end_savepoint(self, which: int, level: int, how: str) -> None:
        """Any of them, those inside included; only the innermost is closed without a word.

        A close keeps in the session what was not flushed, so that it is written with whatever
        is around the savepoint: what is to be a row of the savepoint is flushed before.
        """
        desked = self.sessions[which]
        savepoints = desked.savepoints
        if not savepoints:
            return
        innermost = len(savepoints) - 1
        level = innermost if how == "close" else min(level, innermost)
        if how == "close":
            desked.session.flush()
        getattr(savepoints[level], how)()
        del savepoints[level:]
        self.desk.explored[f"savepoints: {how}"] += 1

    @rule(which=SESSIONS, how=st.sampled_from(("commit", "commit", "commit", "rollback", "close")))
    def end_transaction(self, which: int, how: str) -> None:
        """Whatever savepoints are still open."""
        desked = self.sessions[which]
        getattr(desked.session, how)()
        desked.savepoints.clear()
        assert not desked.session.info.get(hooks._KEY), "something waits for nothing"
        self.desk.explored[f"transactions: {how}"] += 1

    @rule(which=SESSIONS, level=LEVELS, whole=st.booleans())
    def fail(self, which: int, level: int, *, whole: bool) -> None:
        """A statement fails: nothing can wait for what has to be rolled back."""
        desked = self.sessions[which]
        desked.session.add(Ask(number=next(self.numbers), key=0, kind=None))
        with pytest.raises(IntegrityError):
            desked.session.flush()
        innermost = desked.session.get_nested_transaction() or desked.session.get_transaction()
        if innermost is not None and not innermost.is_active:
            with pytest.raises(AfterCommitError):
                hooks.write_after_commit(desked.session, 0, self._action(0, "never", fails=False))
        if whole or not desked.savepoints:
            desked.session.rollback()
            desked.savepoints.clear()
        else:
            level = min(level, len(desked.savepoints) - 1)
            desked.savepoints[level].rollback()
            del desked.savepoints[level:]
        self.desk.explored["failed statements"] += 1

    @invariant()
    def a_write_happens_exactly_with_its_row(self) -> None:
        self.desk.explored["steps"] += 1
        asks = self.desk.asks()
        committed = {asks[number] for number in asks.keys() - self.known}
        happened = Counter(self.fired[self.settled :])
        assert all(times == 1 for times in happened.values()), f"more than once: {happened}"
        writes = _of_kind("write", committed)
        assert _of_kind("write", happened) == writes, "rows and writes differ"
        assert _of_kind("hint", happened) <= _of_kind("hint", committed)
        self.known, self.settled = set(asks), len(self.fired)

    def teardown(self) -> None:
        for desked in self.sessions:
            desked.session.close()


def _of_kind(kind: str, entries: Iterable[tuple[int, str]]) -> set[int]:
    return {key for key, of in entries if of == kind}
