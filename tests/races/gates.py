"""Hooks that turn what an actor does into gates: statements of its engine, calls of its store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Engine, event

from tests.races.driver import Actor

# What meets no other transaction, whenever it runs: a number drawn from a sequence, the clock, a
# setting, and SQLite's BEGIN, which takes no lock.
_FREE = ("SELECT nextval(", "SELECT coalesce(", "SELECT pg_catalog.nextval(", "SHOW ", "BEGIN")


class StatementGates:
    """Each statement, commit and rollback on `engine` is a gate of `actor`.

    The end of a transaction that has only read is none: nobody could tell when it happens. A
    statement outside any transaction is one step with its commit.
    """

    def __init__(self, engine: Engine, actor: Actor) -> None:
        self.engine = engine
        self._actor = actor
        self._wrote = False
        self._step: Any = None
        self.writing = False  # a write of this engine's transaction has run
        self.pid = 0
        self.errors: list[str] = []  # SQLSTATEs of this engine, those that were tried again too
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)
        event.listen(engine, "commit", self._commit)
        event.listen(engine, "rollback", self._rollback)
        event.listen(engine, "handle_error", self._failed)

    def _connected(self, dbapi_connection: Any, _record: object) -> None:
        if isinstance(dbapi_connection, psycopg.Connection):
            self.pid = dbapi_connection.info.backend_pid

    def _before(
        self, conn: Any, _cursor: Any, statement: str, binds: Any, context: Any, _many: object
    ) -> None:
        self._step = None
        if not self._actor.performing or statement.lstrip().startswith(_FREE):
            return
        alone = getattr(conn.connection.dbapi_connection, "autocommit", False) is True
        if not alone and not _only_reads(statement):
            self._wrote = True
        if context is not None and context.compiled is not None:
            [binds, *_] = context.compiled_parameters  # by name, whatever the driver's style is
        self._step = self._actor.reach("statement", statement, binds, alone=alone)

    def _after(self, _conn: Any, cursor: Any, *_rest: Any) -> None:
        if self._step is not None:
            self._step.cursor, self._step.rows = cursor, cursor.rowcount
        self.writing = self._wrote

    def _commit(self, _conn: Any) -> None:
        self._end("commit")

    def _rollback(self, _conn: Any) -> None:
        self._end("rollback")

    def _end(self, kind: str) -> None:
        if self._wrote and self._actor.performing:
            self._actor.reach(kind)
        self._wrote = False
        # The end itself follows, so others may still be held up; they are looked at after it.
        self.writing = False

    def _failed(self, context: Any) -> None:
        if self._actor.performing:
            error = context.original_exception
            self.errors.append(f"{getattr(error, 'sqlstate', None)} {error}")


def _only_reads(statement: str) -> bool:
    return statement.lstrip().startswith("SELECT") and "FOR UPDATE" not in statement


class CallGates:
    """Stands in front of a store: each call of an operation of a role is a gate of `actor`."""

    def __init__(self, store: Any, actor: Actor) -> None:
        self._store = store
        self._actor = actor
        self.jobs = _Role(store.jobs, "jobs", actor)
        self.recurring = _Role(store.recurring, "recurring", actor)
        self.nodes = store.nodes
        self.wakes = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Role:
    def __init__(self, role: Any, name: str, actor: Actor) -> None:
        self._role = role
        self._name = name
        self._actor = actor

    def __getattr__(self, method: str) -> Callable[..., Any]:
        target = getattr(self._role, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._actor.performing:
                return target(*args, **kwargs)
            step = self._actor.reach("call", f"{self._name}.{method}", (args, kwargs))
            step.result = target(*args, **kwargs)
            return step.result

        return call


class OpenWrites:
    """SQLite has one writer: whoever has written in an open transaction holds up the others."""

    def __init__(self, gates: list[StatementGates]) -> None:
        self._gates = gates

    def holders(self, actor: int) -> frozenset[int]:
        return frozenset(n for n, g in enumerate(self._gates) if g.writing and n != actor)


class LockWatcher:
    """Asks PostgreSQL who holds up whom, on a connection of its own."""

    def __init__(self, connection: psycopg.Connection[Any], gates: list[StatementGates]) -> None:
        self._connection = connection
        self._gates = gates

    def holders(self, actor: int) -> frozenset[int]:
        row = self._connection.execute(
            "SELECT pg_blocking_pids(%s)", (self._gates[actor].pid,)
        ).fetchone()
        pids = set(row[0]) if row else set()
        return frozenset(n for n, gates in enumerate(self._gates) if gates.pid in pids)
