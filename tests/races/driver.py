"""Runs actors one gate at a time along a schedule, each in a thread of its own.

An actor stands before each of its steps until the driver lets it go, so between two steps nothing
moves but an actor that had been waiting for a lock. A step that does not return is asked about:
when the store says that another actor holds it up, the schedule goes on without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from tests.races.schedules import Choice, Schedule

PATIENCE_SECONDS = 0.003  # a step that takes longer is asked whether it is blocked
HANG_SECONDS = 30.0  # an actor that neither arrives nor is blocked by then hangs


class HangError(AssertionError):
    """An actor neither came to its next gate nor is held up by another one."""


@dataclass(slots=True)
class Step:
    """One gate of one actor, in the order in which the gates were opened."""

    actor: int
    kind: str  # "statement", "commit", "rollback", or "call" of a store's operation
    text: str = ""
    binds: Any = None
    seq: int = -1  # its place in the history, from 0
    alone: bool = False  # a statement that is committed by itself
    cursor: Any = None  # of a statement that has run
    rows: int = -1  # that it touched, as known at once
    result: Any = None  # what a call returned
    blocked_by: frozenset[int] = frozenset()  # actors that held it up
    freed: int = -1  # the place of the step that set it free, if it was held up

    @property
    def place(self) -> float:
        """Where it took effect, for a step that is all of its transaction."""
        return self.freed + 0.5 if self.blocked_by else self.seq

    @property
    def count(self) -> int:
        """Rows that the statement touched; SQLite knows it only once they have been fetched."""
        return -1 if self.cursor is None else max(self.rows, self.cursor.rowcount)

    def __str__(self) -> str:
        held = f" (held up by {sorted(self.blocked_by)})" if self.blocked_by else ""
        words = " ".join(self.text.split()).replace("public.threadmill_", "")
        return f"{self.seq:3} actor {self.actor}: {self.kind} {words[:100]}{held}"


class Watcher(Protocol):
    def holders(self, actor: int) -> frozenset[int]:
        """Return the other actors that hold up the step in flight of `actor`."""
        ...


class Nobody:
    """The watcher of a store whose calls never wait for another actor's next step."""

    def holders(self, actor: int) -> frozenset[int]:
        del actor
        return frozenset()


class Actor:
    """One thread that stops at its gates. `reach` is what the gates call."""

    def __init__(self, number: int, changed: threading.Condition) -> None:
        self.number = number
        self._changed = changed
        self._go = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.at: Step | None = None  # the gate it stands before
        self.flying: Step | None = None  # the step that it was let go for, or the last one
        self.ended = False
        self.blocked = False
        self.error: BaseException | None = None

    def start(self, action: Callable[[], object]) -> None:
        self.at = self.flying = self.error = None
        self.ended = self.blocked = False
        self._thread = threading.Thread(
            target=self._main, args=(action,), name=f"actor-{self.number}", daemon=True
        )
        self._thread.start()

    def _main(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the check judges it
            self.error = error
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    @property
    def performing(self) -> bool:
        """True in the actor's own thread: what others do on its engine passes no gate."""
        return threading.current_thread() is self._thread

    def reach(self, kind: str, text: str = "", binds: Any = None, *, alone: bool = False) -> Step:
        """Stand before a step until the driver opens the gate."""
        step = Step(self.number, kind, text, binds, alone=alone)
        with self._changed:
            self.at = step
            self._changed.notify_all()
        if not self._go.acquire(timeout=HANG_SECONDS * 2):
            raise HangError(f"nobody opened the gate of {step}")
        return step

    def release(self, seq: int) -> Step:
        """Open the gate."""
        step = self.at
        assert step is not None
        step.seq = seq
        self.at, self.flying = None, step
        self._go.release()
        return step

    def note_freed(self, seq: int) -> None:
        """Note the place of the step that has set it free, unless it is still held up."""
        if not self.blocked and self.flying is not None:
            self.flying.freed = seq

    @property
    def arrived(self) -> bool:
        return self.ended or self.at is not None

    @property
    def runnable(self) -> bool:
        return not self.ended and not self.blocked


@dataclass(slots=True)
class Run:
    """What one schedule led to."""

    history: list[Step] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    errors: list[BaseException | None] = field(default_factory=list)

    @property
    def chosen(self) -> Schedule:
        return tuple(choice.actor for choice in self.choices)

    def __str__(self) -> str:
        return "\n".join(map(str, self.history))


class Driver:
    """Lets a fixed number of actors perform, again and again."""

    def __init__(
        self,
        actors: int,
        watcher: Watcher,
        *,
        patience: float = PATIENCE_SECONDS,
        hang: float = HANG_SECONDS,
    ) -> None:
        self._changed = threading.Condition()
        self._watcher = watcher
        self._patience = patience
        self._hang = hang
        self.actors = [Actor(number, self._changed) for number in range(actors)]

    def run(self, actions: Sequence[Callable[[], object]], schedule: Schedule) -> Run:
        """Perform `actions`, one per actor, along `schedule`.

        A turn of an actor that has ended or is blocked is passed over. After the end of the
        schedule the last actor goes on as long as it can, then the first that can.
        """
        run = Run()
        actors = self.actors[: len(actions)]
        for actor, action in zip(actors, actions, strict=True):
            actor.start(action)
        for actor in actors:
            self._await(actor)
        for number in schedule:
            if actors[number].runnable:
                self._step(actors[number], actors, run)
        while any(not actor.ended for actor in actors):
            runnable = [actor for actor in actors if actor.runnable]
            if runnable:
                last = run.choices[-1].actor if run.choices else 0
                going_on = [actor for actor in runnable if actor.number == last]
                self._step((going_on or runnable)[0], actors, run)
            else:
                self._await_any(actors)
        run.errors = [actor.error for actor in actors]
        return run

    def _step(self, actor: Actor, actors: Sequence[Actor], run: Run) -> None:
        runnable = frozenset(each.number for each in actors if each.runnable)
        run.choices.append(Choice(actor.number, runnable))
        step = actor.release(len(run.history))
        run.history.append(step)
        self._await(actor)
        if step.kind != "statement" or step.alone or actor.ended:
            # Only the end of a transaction sets others free.
            for other in actors:
                if other.blocked:
                    self._await(other)
                    other.note_freed(step.seq)

    def _await(self, actor: Actor) -> None:
        """Wait until `actor` stands at a gate, has ended or is held up by another."""
        deadline = monotonic() + self._hang
        while not self._arrives(actor, self._patience):
            held_by = self._watcher.holders(actor.number)
            if held_by and not actor.arrived:
                step = actor.flying
                if step is not None:
                    step.blocked_by |= held_by
                actor.blocked = True
                return
            if monotonic() > deadline:
                raise HangError(f"{actor.flying} does not return")
        actor.blocked = False

    def _arrives(self, actor: Actor, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: actor.arrived, seconds)

    def _await_any(self, actors: Sequence[Actor]) -> None:
        """Wait for the store to break a circle: all who are left wait for each other."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: any(actor.blocked and actor.arrived for actor in actors), self._hang
            ):
                waiting = [str(actor.flying) for actor in actors if not actor.ended]
                raise HangError(f"all wait for each other: {waiting}")
        for actor in actors:
            if actor.arrived:
                actor.blocked = False
