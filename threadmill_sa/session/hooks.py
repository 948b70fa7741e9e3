"""What is to happen once a session's outermost transaction has really committed.

Two listeners on the `Session` class serve every session of the process. What waits is kept in
`session.info`, per open transaction or savepoint, so that a rollback drops exactly its own:

1. `after_commit` marks the innermost transaction as committed. Nothing may be written here: the
   connection is still held, and a pool of one would deadlock.
2. `after_transaction_end` takes what belongs to the transaction that ended. Committed savepoint:
   it goes to the enclosing one. Committed root: it happens now, the connection is back in its
   pool. Not committed, which includes a close: it is dropped, with what waits for savepoints
   inside that are still open, since SQLAlchemy forgets those without an event.

The listeners are inserted in front, so a host's hook that raises cannot hide the mark; only one
that is inserted in front of ours later, on a subclass of Session for instance, can. Nothing of
ours reaches the host: `commit()` has succeeded and must return so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from threadmill_sa._util.forks import ChildLock
from threadmill_sa.errors import AfterCommitError

logger = logging.getLogger(__name__)

Action = Callable[[], None]

_KEY = "threadmill_sa.after_commit"


class Counters:
    """Totals of this process since its start."""

    def __init__(self) -> None:
        self._lock = ChildLock()
        self.written = 0  # deferred writes that happened
        self.refused = 0  # the task was paused or deleted between validation and write
        self.failed = 0  # deferred writes that raised; the schedule covers
        self.discarded = 0  # deferred writes whose transaction did not commit
        self.faults = 0  # errors of ours inside a listener that were held back from the host

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + amount)


counters = Counters()


class _Waiting:
    """What waits for one transaction or savepoint; a key counts once."""

    __slots__ = ("committed", "hints", "writes")

    def __init__(self) -> None:
        self.committed = False
        self.writes: dict[Hashable, Action] = {}
        self.hints: dict[Hashable, Action] = {}


def install() -> None:
    """Listen to every session of this process. Installing again changes nothing."""
    with _install_lock:
        for name, listener in _LISTENERS:
            if not event.contains(Session, name, listener):
                event.listen(Session, name, listener, insert=True)


def remove() -> None:
    """Stop listening; what still waits is never written."""
    with _install_lock:
        for name, listener in _LISTENERS:
            if event.contains(Session, name, listener):
                event.remove(Session, name, listener)


def write_after_commit(session: Session, key: Hashable, write: Action) -> None:
    """Call `write` after the outermost transaction of `session` has committed; once per `key`.

    Begins the session's transaction, without SQL, when none is open.
    Raises: AfterCommitError when the transaction can no longer commit, or may not begin by itself.
    """
    transaction = _innermost(session)
    if transaction is None:
        if not session.autobegin:
            raise AfterCommitError(
                "the session has no transaction and does not begin one by itself:"
                " call session.begin() first"
            )
        transaction = session.begin()
    elif not transaction.is_active:
        raise AfterCommitError(
            "the session's transaction has ended or needs a rollback, so nothing can wait for"
            " its commit: roll back or commit first, or nudge without a session"
        )
    _waiting(session, transaction).writes[key] = write


def hint_after_commit(session: Session, key: Hashable, hint: Action) -> None:
    """Call `hint`, which may be lost, after the outermost transaction has committed.

    For the hot path: one entry per open transaction and `key`. Without a transaction it is lost.
    """
    transaction = _innermost(session)
    if transaction is not None:
        _waiting(session, transaction).hints[key] = hint


def _innermost(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _waiting(session: Session, transaction: SessionTransaction) -> _Waiting:
    by_transaction = session.info.get(_KEY)
    if by_transaction is None:
        by_transaction = session.info[_KEY] = {}
    waiting: _Waiting | None = by_transaction.get(transaction)
    if waiting is None:
        waiting = by_transaction[transaction] = _Waiting()
    return waiting


def _mark_committed(session: Session) -> None:
    try:
        by_transaction = session.info.get(_KEY)
        if by_transaction:
            waiting = by_transaction.get(_innermost(session))
            if waiting is not None:
                waiting.committed = True
    except Exception as error:  # noqa: BLE001 - the host's commit has succeeded and must return
        _fault("marking a commit", error)


def _settle(session: Session, transaction: SessionTransaction) -> None:
    try:
        by_transaction = session.info.get(_KEY)
        if not by_transaction:
            return
        for inner in [each for each in by_transaction if _is_inside(each, transaction)]:
            counters.add("discarded", len(by_transaction.pop(inner).writes))
        waiting: _Waiting | None = by_transaction.pop(transaction, None)
        if waiting is None:
            return
        if not waiting.committed:
            counters.add("discarded", len(waiting.writes))
            return
        outer = _enclosing(transaction)
        if outer is not None:
            target = _waiting(session, outer)
            target.writes.update(waiting.writes)
            target.hints.update(waiting.hints)
            return
    except Exception as error:  # noqa: BLE001 - as above
        _fault("settling a transaction", error)
        return
    _fire(waiting)


def _enclosing(transaction: SessionTransaction) -> SessionTransaction | None:
    outer = transaction.parent
    while outer is not None and not outer.nested and outer.parent is not None:
        outer = outer.parent  # the inner transaction of a flush is none of its own
    return outer


def _is_inside(transaction: SessionTransaction, other: SessionTransaction) -> bool:
    outer = transaction.parent
    while outer is not None and outer is not other:
        outer = outer.parent
    return outer is not None


def _fire(waiting: _Waiting) -> None:
    """Run every action by itself; an interrupt is passed on when all have had their turn."""
    interrupt: BaseException | None = None
    for action in (*waiting.writes.values(), *waiting.hints.values()):
        try:
            action()
        except Exception:
            counters.add("failed")
            logger.exception(
                "a write after the commit failed: a nudge is covered by its task's schedule,"
                " a job is lost"
            )
        except BaseException as error:  # noqa: BLE001 - passed on below
            counters.add("failed")
            logger.warning("a write after the commit was interrupted by %r", error)
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _fault(doing: str, error: Exception) -> None:
    counters.add("faults")
    logger.error("%s failed; what waited for it may be lost", doing, exc_info=error)


_install_lock = ChildLock()
_LISTENERS: tuple[tuple[str, Any], ...] = (
    ("after_commit", _mark_committed),
    ("after_transaction_end", _settle),
)
