"""Work that only the leader runs, again and again."""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol, Self, TypeVar

from threadmill_sa._util.callables import check_body
from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.engine.leadership.gated import GatedWork, Tick, WorkCounts
from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.engine.leadership.leader import Leader, StopReport, drain_seconds
from threadmill_sa.engine.leadership.schedule import MissedTicks, ScheduleConfig, Strategy
from threadmill_sa.engine.leadership.timings import Timings
from threadmill_sa.errors import DeclarationError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_name

F = TypeVar("F", bound=Callable[..., Any])


class LeaderScheduler:
    """Runs its works while this process leads a mutex; each on a thread of its own.

    In a process no work runs twice at once, also not from one term to the next: while a run of
    an ended term goes on, this process does not campaign. Declare works, then `start`.
    """

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._works: dict[str, GatedWork] = {}
        self._guard = threading.Lock()
        self._waiting: tuple[Grant, Callable[[], None]] | None = None
        leader.drain_with(self._drain)

    @property
    def leader(self) -> Leader:
        """The leader, for `is_leader`, `grant` and `resign`."""
        return self._leader

    @property
    def running(self) -> bool:
        """True from `start` until `stop`, whether this process leads or not."""
        return self._leader.running

    def every(
        self,
        period: float | timedelta,
        *,
        name: str | None = None,
        strategy: Strategy | str = Strategy.FIXED_RATE,
        initial_delay: float | timedelta = 0.0,
        missed: MissedTicks | str = MissedTicks.ONCE,
        max_replay: int = 10,
    ) -> Callable[[F], F]:
        """Declare the decorated function as work; it is returned unchanged.

        It takes no argument, or the `Tick`. What it raises, SystemExit included, is logged and
        counted, and the schedule goes on.

        Args:
            name: also that of its thread; None is that of the function.
        Raises: DeclarationError, InvalidValueError.
        """
        config = ScheduleConfig(strategy, initial_delay, period, missed, max_replay)

        def declare(function: F) -> F:
            self.add(name or str(getattr(function, "__name__", "")), config, function)
            return function

        return declare

    def add(self, name: str, config: ScheduleConfig, work: Callable[..., object]) -> None:
        """Declare `work`, as `every` does. Raises: DeclarationError."""
        check_name(name, kind="schedule")
        if self.running or name in self._works:
            raise DeclarationError(
                f"schedule {name!r} cannot be declared: "
                + ("the scheduler is started" if self.running else "the name is taken")
                + "; declare each once, before start()"
            )
        self._works[name] = GatedWork(
            name, config, _taking_a_tick(work, name), self._leader, on_idle=self._idle
        )

    def start(self) -> Self:
        """Begin to campaign; nothing when it runs already.

        Raises: RuntimeError while a run from before the last stop still goes on.
        """
        if not self.running:
            for work in self._works.values():
                work.require_ended()
            for work in self._works.values():
                work.start()
            self._leader.start()
        return self

    def stop(self, *, drain: float | timedelta | None = limits.DRAIN_SECONDS) -> StopReport:
        """Begin no run any more, keep leading while runs drain, then give the lease back.

        When the drain is over first, the lease is left to run out and the report names the runs
        that go on.

        Args:
            drain: seconds to wait, for runs and lease together; None waits for ever.
        """
        seconds = drain_seconds(drain)
        began = suspend_proof_seconds()

        def left(seconds: float) -> float:
            return max(0.0, seconds - (suspend_proof_seconds() - began))

        for work in self._works.values():
            work.ask_to_stop()
        stragglers = []
        for name, work in self._works.items():
            if not work.stop(limits.DRAIN_MAX_SECONDS if seconds is None else left(seconds)):
                stragglers.append(name)
        if not stragglers:
            return self._leader.stop(drain=None if seconds is None else left(seconds))
        self._leader.abandon()
        report = self._leader.stop(drain=limits.LEASE_CALL_MAX_SECONDS)
        return StopReport(report.released, (*stragglers, *report.stragglers))

    def counts(self) -> Mapping[str, WorkCounts]:
        """Return what each work has done since it was declared, by name."""
        return {name: work.counts for name, work in self._works.items()}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # The drain of an ended term --------------------------------------------------------------

    def _drain(self, grant: Grant, done: Callable[[], None]) -> None:
        with self._guard:
            if self._runs_for(grant):
                self._waiting = (grant, done)
                return
        done()

    def _idle(self) -> None:
        with self._guard:
            if self._waiting is None or self._runs_for(self._waiting[0]):
                return
            (_, done), self._waiting = self._waiting, None
        done()

    def _runs_for(self, grant: Grant) -> bool:
        return any(work.acts_for(grant) for work in self._works.values())


class MakesSchedulers(Protocol):
    """A `Threadmill`."""

    def scheduler(self, name: str, *, timings: Timings | None = None) -> LeaderScheduler: ...


class AbstractScheduler(ABC):
    """One leader-gated work as a class: subclasses give `config`, `worker` and `work`.

    Args:
        mutex: whoever uses the same name competes for one leader.
        threadmill: the `Threadmill` whose store keeps the lease.
        timings: None is `Timings()`, a lease of 15 s.
    Raises: InvalidValueError, DeclarationError.
    """

    def __init__(
        self, mutex: str, threadmill: MakesSchedulers, *, timings: Timings | None = None
    ) -> None:
        self.mutex = mutex
        self._scheduler = threadmill.scheduler(mutex, timings=timings)
        self._scheduler.add(self.worker, self.config, self.work)

    @property
    @abstractmethod
    def config(self) -> ScheduleConfig:
        """`ScheduleConfig.rate(...)` or `.delay(...)`; a class attribute serves as well."""

    @property
    @abstractmethod
    def worker(self) -> str:
        """The name of the work; its thread is called "{worker}-0"."""

    @abstractmethod
    def work(self, *args: Any) -> object:
        """Do one run; a parameter besides `self` gets the `Tick`."""

    @property
    def running(self) -> bool:
        """True from `start` until `stop`, whether this process leads or not."""
        return self._scheduler.running

    @property
    def leader(self) -> Leader:
        """The leader, for `is_leader`, `grant` and `resign`."""
        return self._scheduler.leader

    def start(self) -> Self:
        """As `LeaderScheduler.start`."""
        self._scheduler.start()
        return self

    def stop(self, *, drain: float | timedelta | None = limits.DRAIN_SECONDS) -> StopReport:
        """As `LeaderScheduler.stop`."""
        return self._scheduler.stop(drain=drain)

    def counts(self) -> WorkCounts:
        """Return what the work has done so far."""
        return self._scheduler.counts()[self.worker]


def _taking_a_tick(work: Callable[..., object], name: str) -> Callable[[Tick], object]:
    check_body(work, f"schedule {name!r}", instead="call asyncio.run in a function")
    wanted = [
        parameter
        for parameter in inspect.signature(work).parameters.values()
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        and parameter.default is parameter.empty
    ]
    if len(wanted) > 1:
        raise DeclarationError(
            f"schedule {name!r} must take no argument or the tick, found {len(wanted)} parameters"
        )
    return work if wanted else lambda _tick: work()
