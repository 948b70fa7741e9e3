"""Rules for callers: their transactions, savepoints and sessions, several open at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, SessionTransaction

from tests.stateful.base import NAMES, NODES, QUEUES
from tests.stateful.model import Acceptance, Run, Snapshot
from tests.stateful.tasks import TaskRules
from tests.stateful.world import HANDLERS, READ, WRITTEN, Node
from threadmill_sa.errors import CannotJoinError, TaskDisabledError, UnknownTaskError
from threadmill_sa.model.nudge import EnqueueMode, NudgeVerdict
from threadmill_sa.model.state import JobState

CALLERS_MAX = 4
DEPTH_MAX = 4
ISOLATION = st.sampled_from(
    ("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
)
SAVEPOINT_ENDS = st.sampled_from(("release", "roll back", "close"))
JOIN, AFTER, NOW = EnqueueMode.JOIN_TRANSACTION, EnqueueMode.AFTER_COMMIT, EnqueueMode.IMMEDIATE

Key = tuple[Node, str]  # one deferred nudge: repeated ones count once


@dataclass(eq=False)
class Frame:
    """What belongs to one transaction or savepoint."""

    savepoint: SessionTransaction | None = None
    joined: list[Acceptance] = field(default_factory=list)
    inserted: list[Run] = field(default_factory=list)
    deferred: dict[Any, Key | Run] = field(default_factory=dict)

    def absorb(self, inner: Frame) -> None:
        self.joined += inner.joined
        self.inserted += inner.inserted
        self.deferred |= inner.deferred


@dataclass(eq=False)
class Caller:
    """One session of an application."""

    session: Session
    frozen: bool  # it sees the database as it was when it first read
    frames: list[Frame] = field(default_factory=lambda: [Frame()])
    snapshot: Snapshot | None = None
    writes: bool = False  # it holds the write lock, where there is only one

    def begin_again(self) -> None:
        self.frames, self.snapshot, self.writes = [Frame()], None, False


class CallerRules(TaskRules):
    callers: Bundle[Caller] = Bundle("callers")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.open: list[Caller] = []

    @property
    def free(self) -> bool:
        return self.capabilities.concurrent_writers or self._writer() is None

    def _writer(self) -> Caller | None:
        return next((caller for caller in self.open if caller.writes), None)

    def _choose(self, caller: Caller) -> Caller:
        """The caller, or the one whose write lock would make it wait."""
        if self.capabilities.concurrent_writers:
            return caller
        return self._writer() or caller

    # Transactions.

    @initialize(target=callers, isolations=st.lists(ISOLATION, min_size=2, max_size=2))
    def open_two(self, isolations: list[str]) -> Any:
        """Sessions are what most rules need."""
        return multiple(*(self._open(isolation) for isolation in isolations))

    @precondition(lambda self: len(self.open) < CALLERS_MAX)
    @rule(
        target=callers,
        first=st.sampled_from(("nothing", "read", "write")),
        isolation=ISOLATION,
        asks=st.lists(NAMES, max_size=2, unique=True),
        number=NODES,
    )
    def open_caller(self, first: str, isolation: str, asks: list[str], number: int) -> Caller:
        """A new session, its first statement, and often its first nudge."""
        caller = self._open(isolation)
        if first == "write" and self.capabilities.joins and self.free:
            self._take_snapshot(caller)
            caller.writes = True
            caller.session.execute(text(f"INSERT INTO {WRITTEN} VALUES ('order')"))
        elif first != "nothing":
            self._take_snapshot(caller)
            _read(caller)
        if asks and self._choose(caller) is caller:
            mode = JOIN if self.capabilities.joins else AFTER
            self._nudge(self.nodes[number], asks, caller, mode, bare=False)
        return caller

    def _open(self, isolation: str) -> Caller:
        engine, several = self.world.engine, self.capabilities.concurrent_writers
        if several:
            engine = engine.execution_options(isolation_level=isolation)
        frozen = isolation != "READ COMMITTED" if several else self.capabilities.joins
        caller = Caller(Session(engine), frozen)
        self.open.append(caller)
        self.count("sessions opened")
        return caller

    @rule(caller=callers, levels=st.integers(1, 2))
    def savepoint(self, caller: Caller, levels: int) -> None:
        for _ in range(min(levels, DEPTH_MAX + 1 - len(caller.frames))):
            caller.frames.append(Frame(caller.session.begin_nested()))

    @rule(caller=callers, level=st.integers(1, DEPTH_MAX), how=SAVEPOINT_ENDS)
    def end_savepoint(self, caller: Caller, level: int, how: str) -> None:
        """Those inside end in the same way; only the innermost is closed without a word."""
        innermost = len(caller.frames) - 1
        level = innermost if how == "close" else min(level, innermost)
        savepoint = caller.frames[level].savepoint
        if savepoint is None:
            return
        if how == "release":
            savepoint.commit()
            while len(caller.frames) > level:
                inner = caller.frames.pop()
                caller.frames[-1].absorb(inner)
        else:
            savepoint.rollback() if how == "roll back" else savepoint.close()
            self._discard(caller, level)
        self.count(f"savepoints: {how}")

    @rule(caller=consumes(callers), how=st.sampled_from(("commit", "commit", "undo", "close")))
    def end(self, caller: Caller, how: str) -> None:
        if how == "commit":
            self._commit(caller)
        elif how == "undo":
            self._roll_back(caller)
        self.close(caller)

    @rule(caller=callers, how=st.sampled_from(("commit", "commit", "undo")))
    def end_and_go_on(self, caller: Caller, how: str) -> None:
        """The session is used again."""
        if how == "commit":
            self._commit(caller)
        else:
            self._roll_back(caller)

    @precondition(lambda self: not self.free)
    @rule(how=st.sampled_from(("commit", "commit", "undo")))
    def end_what_holds_the_lock(self, how: str) -> None:
        """Where there is one writer, most else waits for it."""
        writer = self._writer()
        assert writer is not None
        self.end_and_go_on(caller=writer, how=how)

    def close(self, caller: Caller) -> None:
        """What was not committed is undone."""
        caller.session.close()
        self._discard(caller, 0)
        self.open.remove(caller)
        self.count("sessions closed")

    def _roll_back(self, caller: Caller) -> None:
        caller.session.rollback()
        self._discard(caller, 0)
        self.count("transactions rolled back")

    def _commit(self, caller: Caller) -> None:
        if any(frame.deferred for frame in caller.frames) and self._choose(caller) is not caller:
            return  # its deferred writes would wait for the one that holds the lock
        caller.session.commit()
        root = caller.frames[0]
        for inner in caller.frames[1:]:
            root.absorb(inner)
        caller.begin_again()
        self.model.commit(root.joined)
        self.model.insert(root.inserted)
        for deferred in root.deferred.values():
            self._write_deferred(deferred)
        self.count("transactions committed")

    def _write_deferred(self, deferred: Key | Run) -> None:
        if isinstance(deferred, Run):
            self._stamp(deferred)
            self.model.insert([deferred])
            self.deferred["written"] += 1
            return
        _, name = deferred
        snapshot = self.model.snapshot()
        if self.model.verdict(name, snapshot) is NudgeVerdict.ACCEPTED:
            self.model.commit([self.model.accept(name, snapshot, self.now)])
            self.deferred["written"] += 1
        else:
            self.deferred["refused"] += 1

    def _stamp(self, run: Run) -> None:
        """The job is written now."""
        run.created_at = self.now
        if run.delay is not None:
            run.state, run.scheduled_at = JobState.SCHEDULED, self.now + run.delay

    def _discard(self, caller: Caller, level: int) -> None:
        for frame in caller.frames[level:]:
            self.model.undo(frame.joined)
            self.deferred["discarded"] += len(frame.deferred)
        del caller.frames[level:]
        if level == 0:
            caller.begin_again()

    def _take_snapshot(self, caller: Caller) -> Snapshot:
        """What the caller's statement sees."""
        if caller.snapshot is None:
            caller.snapshot = self.model.snapshot()
        return caller.snapshot if caller.frozen else self.model.snapshot()

    # What callers ask for.

    @rule(
        caller=callers,
        number=NODES,
        names=st.lists(NAMES, min_size=1, max_size=2, unique=True),
        mode=st.sampled_from((JOIN, JOIN, JOIN, AFTER, AFTER, NOW)),
        bare=st.booleans(),
        savepoints=st.lists(SAVEPOINT_ENDS, max_size=2),
    )
    def nudge(
        self,
        caller: Caller,
        number: int,
        names: list[str],
        mode: EnqueueMode,
        *,
        bare: bool,
        savepoints: list[str],
    ) -> None:
        """In the transaction as it stands, or inside savepoints that end right afterwards."""
        caller = self._choose(caller)
        self.savepoint(caller=caller, levels=len(savepoints))
        self._nudge(self.nodes[number], names, caller, mode, bare=bare)
        for how in savepoints:
            self.end_savepoint(caller=caller, level=DEPTH_MAX, how=how)

    def _nudge(
        self, node: Node, names: list[str], caller: Caller, mode: EnqueueMode, *, bare: bool
    ) -> None:
        if mode is NOW:
            if self.free:
                self._nudge_at_once(node, names, caller.session)
        elif mode is AFTER:
            self._nudge_after_commit(node, names, caller)
        elif self.capabilities.joins:
            self._nudge_joined(node, names, caller, bare=bare)
        else:
            with pytest.raises(CannotJoinError):
                node.tm.nudge_many(names, caller.session, mode=mode)

    @precondition(lambda self: self.free)
    @rule(number=NODES, names=st.lists(NAMES, min_size=1, max_size=3, unique=True))
    def nudge_without_a_session(self, number: int, names: list[str]) -> None:
        self._nudge_at_once(self.nodes[number], names, None)

    @precondition(lambda self: self.free)
    @rule(number=NODES, name=NAMES, times=st.integers(2, 3))
    def nudge_during_a_run(self, number: int, name: str, times: int) -> None:
        """Many acceptances while an instance is unfinished: the tick may make them one."""
        if name in self.model.tasks and not self.model.unfinished(name):
            self.trigger(number=number, name=name)
        for turn in range(times):
            self.clock.advance(1)
            self._nudge_at_once(self.nodes[turn % 2], [name], None)
        self.tick_on(number)

    def _nudge_at_once(self, node: Node, names: list[str], session: Session | None) -> None:
        snapshot = self.model.snapshot()
        if self._refused(names, snapshot, lambda: node.tm.nudge_many(names, session, mode=NOW)):
            return
        receipts = node.tm.nudge_many(names, session, mode=NOW)
        assert all(receipt.revision is not None for receipt in receipts)
        for name in sorted(names):
            self.model.commit([self.model.accept(name, snapshot, self.now)])
        self.count("immediate nudges", len(names))

    def _nudge_after_commit(self, node: Node, names: list[str], caller: Caller) -> None:
        if self.capabilities.joins:
            snapshot = self._take_snapshot(caller)
        else:
            snapshot = self.model.snapshot()
        session = caller.session
        if self._refused(names, snapshot, lambda: node.tm.nudge_many(names, session, mode=AFTER)):
            return
        node.tm.nudge_many(names, session, mode=AFTER)
        for name in sorted(names):
            caller.frames[-1].deferred[node.tm, name] = (node, name)
        self.count("nudges after commit", len(names))

    def _nudge_joined(self, node: Node, names: list[str], caller: Caller, *, bare: bool) -> None:
        stale = self._stale(caller)
        snapshot = self._take_snapshot(caller)
        handle = caller.session.connection() if bare else caller.session

        def call() -> None:
            node.tm.nudge_many(names, handle, mode=JOIN)

        try:
            refused = self._refused(names, snapshot, call)
            if not refused:
                call()
        except OperationalError:
            # One writer: the caller's own first write would be refused as well.
            assert stale
            self.count("stale readers refused")
            return
        finally:
            _read(caller)  # usable in any case
        caller.writes = True  # refused or not: it writes before it looks
        if not refused:
            for name in sorted(names):
                caller.frames[-1].joined.append(self.model.accept(name, snapshot, self.now))
            self.count("joined nudges", len(names))

    def _stale(self, caller: Caller) -> bool:
        """Whether the store has one writer and may have moved on since the caller read."""
        alone = not self.capabilities.concurrent_writers
        return alone and caller.snapshot is not None and not caller.writes

    def _refused(self, names: Sequence[str], snapshot: Snapshot, call: Any) -> bool:
        """Whether the nudge has to be refused, as a whole and with every bad name."""
        verdicts = {name: self.model.verdict(name, snapshot) for name in names}
        unknown = _named(verdicts.items(), NudgeVerdict.UNKNOWN_TASK)
        disabled = _named(verdicts.items(), NudgeVerdict.DISABLED)
        if not unknown and not disabled:
            return False
        with pytest.raises(UnknownTaskError if unknown else TaskDisabledError) as refusal:
            call()
        assert (refusal.value.unknown, refusal.value.disabled) == (unknown, disabled)
        self.count("nudges refused")
        return True

    @rule(
        caller=callers,
        number=NODES,
        mode=st.sampled_from((JOIN, AFTER)),
        handler=st.sampled_from(HANDLERS),
        queue=st.sampled_from(QUEUES),
        delay=st.sampled_from((None, timedelta(seconds=30))),
    )
    def enqueue(
        self,
        caller: Caller,
        number: int,
        *,
        mode: EnqueueMode,
        handler: str,
        queue: str,
        delay: timedelta | None,
    ) -> None:
        """A plain job of the same transaction."""
        caller = self._choose(caller)
        mode = mode if self.capabilities.joins else AFTER
        stale = mode is JOIN and self._stale(caller)
        self._take_snapshot(caller)
        try:
            job_id = self.nodes[number].tm.enqueue(
                handler, 0, session=caller.session, mode=mode, queue=queue, delay=delay
            )
        except OperationalError:
            assert stale
            return
        finally:
            _read(caller)
        run = Run(job_id, handler, 0, queue, 0, 0, self.now, delay=delay)
        self._stamp(run)
        if mode is JOIN:
            caller.writes = True
            caller.frames[-1].inserted.append(run)
        else:
            caller.frames[-1].deferred[job_id] = run
        self.count("jobs enqueued")


def _read(caller: Caller) -> None:
    """A statement that fixes what a frozen transaction sees; a bare `SELECT 1` may not."""
    caller.session.execute(text(f"SELECT count(*) FROM {READ}"))


def _named(verdicts: Iterable[tuple[str, NudgeVerdict]], wanted: NudgeVerdict) -> tuple[str, ...]:
    return tuple(name for name, verdict in verdicts if verdict is wanted)
