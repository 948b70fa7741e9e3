"""Fresh state in a forked child, where the threads that held the old one do not exist."""

from __future__ import annotations

import os
import weakref
from threading import RLock
from types import TracebackType
from typing import Protocol


class ForkAware(Protocol):
    """Something with a lock, or with work in flight, that other threads wait for."""

    def after_fork(self) -> None:
        """Begin anew: whoever held a lock or promised a result stayed in the parent."""


_owners: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def renew_in_child(owner: ForkAware) -> None:
    """Call `owner.after_fork` in every forked child, for as long as `owner` lives.

    A comparison of process ids under the lock would come too late: the lock itself may be held.
    """
    _owners.add(owner)


class ChildLock:
    """A reentrant lock that is free in a forked child, whoever held it in the parent."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


def _renew() -> None:
    for owner in list(_owners):
        owner.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew)
