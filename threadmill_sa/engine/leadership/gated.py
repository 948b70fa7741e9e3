"""One work on its thread: waits for a term, runs on its schedule, stops with the term."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from threadmill_sa._util.callables import require_done
from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.engine.leadership.grant import Grant
from threadmill_sa.engine.leadership.leader import Leader
from threadmill_sa.engine.leadership.schedule import Due, Grid, ScheduleConfig
from threadmill_sa.engine.service import Service
from threadmill_sa.errors import LeadershipLostError
from threadmill_sa.model import limits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tick:
    """One run of leader-gated work, for the function that does it."""

    slot: int  # of its term, from 0; larger from run to run
    late_by: float  # seconds after its time at which it began
    missed: int  # slots before this one that nobody ran
    grant: Grant
    _stopping: Callable[[], bool]

    @property
    def cancelled(self) -> bool:
        """True once the work should end: the term is lost, or a stop was asked for."""
        return self._stopping() or not self.grant

    def ensure(self, need: float = 0.0) -> int:
        """As `Grant.ensure`: return the term, or raise LeadershipLostError."""
        return self.grant.ensure(need)

    def fence(self, session: object) -> int:
        """As `Grant.fence`."""
        return self.grant.fence(session)


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """What one work has done since it was declared."""

    runs: int = 0
    failures: int = 0  # runs that raised; ended terms are none
    missed: int = 0  # fixed-rate slots that nobody ran while this process led


class GatedWork(Service):
    """Never runs twice at once: one thread does every run of every term.

    Args:
        on_idle: called after each run.
    """

    def __init__(
        self,
        name: str,
        config: ScheduleConfig,
        work: Callable[[Tick], object],
        leader: Leader,
        *,
        on_idle: Callable[[], None],
    ) -> None:
        super().__init__(f"{name}-0")
        self._config = config
        self._work = work
        self._leader = leader
        self._on_idle = on_idle
        self._acting: Grant | None = None
        self._last_end: float | None = None
        self.counts = WorkCounts()
        leader.listen(self.wake)

    def acts_for(self, grant: Grant) -> bool:
        return self._acting is grant

    def require_ended(self) -> None:
        """Raise RuntimeError while a run from before a stop still goes on."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            raise RuntimeError(
                f"the run of {self._name!r} from before the stop still goes on: wait for it"
            )

    def _run(self) -> None:
        last = 0
        while not self._stopping.is_set():
            grant = self._leader.next_term(last)
            if grant is None:
                self._wait(limits.WAIT_MAX_SECONDS)
                continue
            last = grant.term
            self._serve(grant)

    def _serve(self, grant: Grant) -> None:
        """Run on the schedule until the term has ended."""
        grid = Grid(self._config, suspend_proof_seconds(), self._last_end)
        due = grid.first()
        while grant and not self._stopping.is_set():
            now = suspend_proof_seconds()
            if now >= due.at:
                due = grid.settled(due, now)  # the process may have stood still
            if now < due.at:
                self._wait(due.at - now)  # a change at the leader ends it early
                continue
            self._run_once(grant, due, now)
            self._last_end = suspend_proof_seconds()
            due = grid.following(due, self._last_end)

    def _run_once(self, grant: Grant, due: Due, now: float) -> None:
        self._acting = grant
        try:
            # After the note that it acts: from here on the lease is kept until it has ended.
            if not grant:
                return
            tick = Tick(due.slot, now - due.at, due.missed, grant, self._stopping.is_set)
            self._count(runs=1, missed=due.missed)
            self._call(tick)
        finally:
            self._acting = None
            self._on_idle()

    def _call(self, tick: Tick) -> None:
        try:
            require_done(self._work(tick), self._name)
        except LeadershipLostError:
            if tick.grant:  # of another mutex than this one
                self._failed(tick)
        except BaseException:  # noqa: BLE001  The schedule goes on; a thread cannot exit a program.
            self._failed(tick)

    def _failed(self, tick: Tick) -> None:
        self._count(failures=1)
        _log.exception(
            "work %r failed in slot %d of term %d", self._name, tick.slot, tick.grant.term
        )

    def _count(self, *, runs: int = 0, failures: int = 0, missed: int = 0) -> None:
        counts = self.counts
        self.counts = replace(
            counts,
            runs=counts.runs + runs,
            failures=counts.failures + failures,
            missed=counts.missed + missed,
        )
