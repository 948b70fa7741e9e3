"""Bursts of immediate nudges become few writes, without losing one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Lock

from threadmill_sa._util.forks import renew_in_child
from threadmill_sa.model.nudge import NudgeOutcome


class NudgeCoalescer:
    """Per task at most one write in flight; those who arrive meanwhile share the next one.

    Guarantee: the write that covers a caller starts after the caller arrived. Riding on the write
    in flight would be wrong: its commit may precede the caller's own work. Every covered caller
    gets the outcome, or the failure.
    Fairness: a caller drives at most the one write that covers it. A following write is driven
    by one of those who wait for it.
    Bounds: nothing is kept for a task while nobody is inside `request`. One per process; several
    only make more writes, never wrong ones.
    """

    def __init__(self, write: Callable[[str], NudgeOutcome]) -> None:
        self._write = write
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Wait for nothing that a thread of the parent process was about to write."""
        self._lock = Lock()
        self._current: dict[str, _Round] = {}  # in flight, or handed over and about to be

    def request(self, name: str) -> NudgeOutcome:
        """Return the outcome of a write that started after this call. Raises: what it raised."""
        driven: _Round | None = None
        try:
            with self._lock:
                covering = self._covering(name)
                if self._wait(name, covering):
                    return covering.result()
                driven = covering
                driven.in_flight = True
            driven.outcome = self._write(name)
        except Exception as error:
            if driven is not None:
                driven.failure = error
            raise
        else:
            return driven.outcome
        finally:
            if driven is not None:
                with self._lock:
                    self._end(name, driven)

    def _covering(self, name: str) -> _Round:
        """Return the round whose write has not started: a new one, or the one others wait for."""
        current = self._current.get(name)
        if current is None:
            current = self._current[name] = _Round(Condition(self._lock))
            current.up_next = True  # nobody to wait for
            return current
        if not current.in_flight:
            return current
        if current.following is None:
            current.following = _Round(Condition(self._lock))
        return current.following

    def _wait(self, name: str, covering: _Round) -> bool:
        """Return True when the round is over, False when it is this caller's turn to drive it."""
        covering.waiters += 1
        try:
            while not covering.over and not covering.up_next:
                covering.changed.wait()
        except BaseException:
            covering.waiters -= 1
            if covering.up_next:  # the turn may have been given to this very caller
                self._pass_on(name, covering)
            raise
        covering.waiters -= 1
        covering.up_next = False
        return covering.over

    def _end(self, name: str, driven: _Round) -> None:
        driven.in_flight = False
        if not driven.over and driven.waiters:
            # The driver was interrupted, which is its own affair: one of the others tries again.
            self._pass_on(name, driven)
            return
        driven.changed.notify_all()
        self._pass_on(name, driven.following)

    def _pass_on(self, name: str, following: _Round | None) -> None:
        """Give the turn to the first round somebody waits for; without one, forget the task."""
        while following is not None and not following.waiters:
            following = following.following
        if following is None:
            del self._current[name]
            return
        self._current[name] = following
        following.up_next = True
        following.changed.notify()


class _Round:
    """One write and those it covers. Every field is guarded by the coalescer's lock."""

    __slots__ = ("changed", "failure", "following", "in_flight", "outcome", "up_next", "waiters")

    def __init__(self, changed: Condition) -> None:
        self.changed = changed
        self.waiters = 0
        self.up_next = False  # it may start, and nobody drives it yet
        self.in_flight = False
        self.outcome: NudgeOutcome | None = None
        self.failure: Exception | None = None
        self.following: _Round | None = None

    @property
    def over(self) -> bool:
        return self.outcome is not None or self.failure is not None

    def result(self) -> NudgeOutcome:
        if self.failure is not None:
            raise self.failure
        assert self.outcome is not None  # noqa: S101 - `over` came first
        return self.outcome
