"""Writes the outcomes of attempts, in batches, and stays responsible until they are recorded."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from threadmill_sa.engine.processing.attempts import Attempt, AttemptBook
from threadmill_sa.engine.processing.outage import Outage, is_outage
from threadmill_sa.engine.service import Service
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import (
    AttemptOutcome,
    ClaimedJob,
    FinishVerdict,
    NodeId,
    OutcomeKind,
)
from threadmill_sa.spi.jobs import Jobs

_log = logging.getLogger(__name__)

OnRecorded = Callable[[ClaimedJob, AttemptOutcome], None]


@dataclass(slots=True)
class _Entry:
    attempt: Attempt
    outcome: AttemptOutcome
    refusals: int = 0  # failures of this outcome alone, with the store at hand
    unanswered: bool = False  # an earlier try may have recorded it


class Completer(Service):
    """One thread that records outcomes: at once when idle, in batches while a write is in flight.

    Guarantee: an accepted outcome is tried, with growing pauses while the store is out, until it
    is recorded or lost, or until the deadline of `drain`. One that the store refuses by itself
    holds up no other: it is tried alone, then recorded as a plain failure, and given up to the
    orphan reclaim only when that is refused as well.
    """

    def __init__(
        self,
        name: str,
        jobs: Jobs,
        node_id: NodeId,
        book: AttemptBook,
        *,
        instant: Callable[[], datetime | None],
        monotonic: Callable[[], float],
        on_recorded: OnRecorded,
    ) -> None:
        super().__init__(name)
        self._jobs = jobs
        self._node_id = node_id
        self._book = book
        self._instant = instant
        self._monotonic = monotonic
        self._on_recorded = on_recorded
        self._lock = threading.Lock()
        self._waiting: deque[_Entry] = deque()
        self._deadline = float("inf")
        self._outage = Outage("recording of outcomes")

    @property
    def stuck(self) -> bool:
        """True while the store takes no outcomes; the node claims nothing then."""
        return self._outage.active

    def accept(self, attempt: Attempt, outcome: AttemptOutcome) -> bool:
        """Take responsibility for `outcome`; False when the attempt already has one."""
        if not attempt.settle():
            return False
        with self._lock:
            self._waiting.append(_Entry(attempt, outcome))
        self.wake()
        self._book.notify()
        return True

    def drain(self, seconds: float) -> int:
        """Write what was accepted, for up to `seconds`, and end; returns how many are left."""
        self._deadline = self._monotonic() + seconds
        self.stop(seconds + limits.UNWIND_SECONDS)
        with self._lock:
            left = len(self._waiting)
        if left:
            _log.error("%d outcomes could not be recorded: their jobs will be reclaimed", left)
        return left

    def _run(self) -> None:
        while True:
            # Asked before the look: what was accepted before the stop is then seen.
            stopping = self._stopping.is_set()
            batch = self._take()
            if batch:
                pause = self._write(batch)
                if pause and not self._rest_before_retry(pause):
                    return
            elif stopping:
                return
            else:
                self._wait(limits.WAIT_MAX_SECONDS)

    def _rest_before_retry(self, pause: float) -> bool:
        """Pause; False when the deadline has passed and the rest must be given up."""
        if not self._stopping.is_set():
            self._rest(pause)
            return True
        left = self._deadline - self._monotonic()
        threading.Event().wait(max(0.0, min(pause, left)))
        return left > 0

    def _take(self) -> list[_Entry]:
        with self._lock:
            if self._waiting and self._waiting[0].refusals:
                return [self._waiting.popleft()]
            batch: list[_Entry] = []
            while (
                self._waiting
                and not self._waiting[0].refusals
                and len(batch) < limits.COMPLETE_BATCH_MAX
            ):
                batch.append(self._waiting.popleft())
            return batch

    def _put_back(self, entries: list[_Entry]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(entries))

    def _write(self, batch: list[_Entry]) -> float:
        """Record `batch`; returns the seconds to pause, 0 when all is well."""
        try:
            verdicts = self._jobs.finish(
                self._node_id, [each.outcome for each in batch], now=self._instant()
            )
        except Exception as error:  # noqa: BLE001  The completer outlives every store failure.
            if is_outage(error):
                for entry in batch:
                    entry.unanswered = True
                self._put_back(batch)
                return self._outage.failed(error)
            if len(batch) > 1:
                return self._write_one_by_one(batch)
            return self._refused(batch[0], error)
        self._outage.ended()
        for entry, verdict in zip(batch, verdicts, strict=True):
            self._conclude(entry, verdict)
        return 0.0

    def _write_one_by_one(self, batch: list[_Entry]) -> float:
        pause = 0.0
        for position, entry in enumerate(batch):
            pause = max(pause, self._write([entry]))
            if self._outage.active:
                self._put_back(batch[position + 1 :])
                return pause
        return pause

    def _refused(self, entry: _Entry, error: Exception) -> float:
        """Handle an outcome that the store refuses by itself."""
        entry.refusals += 1
        job = entry.attempt.job
        if entry.refusals == limits.COMPLETE_REFUSALS_MAX:
            _log.error(
                "outcome %s of job %s is refused, a failure is recorded instead: %s",
                entry.outcome.kind,
                job.id,
                error,
                exc_info=error,
            )
            entry.outcome = replace(
                entry.outcome,
                kind=OutcomeKind.FAILED,
                reason=failure.EXCEPTION,
                message=f"outcome could not be recorded: {type(error).__name__}",
                result=None,
                result_note=None,
                retry_seconds=None,
            )
        elif entry.refusals >= 2 * limits.COMPLETE_REFUSALS_MAX:
            # Heartbeats would shield it for ever; without them the reclaim ends the attempt.
            _log.error("no outcome of job %s is taken, it is left to the reclaim", job.id)
            self._book.forget(entry.attempt)
            return 0.0
        with self._lock:
            self._waiting.append(entry)
        return limits.OUTAGE_PAUSE_MIN_SECONDS

    def _conclude(self, entry: _Entry, verdict: FinishVerdict) -> None:
        attempt = entry.attempt
        self._book.forget(attempt)
        if verdict is FinishVerdict.RECORDED:
            self._on_recorded(attempt.job, entry.outcome)
        elif entry.unanswered:
            _log.warning(
                "outcome %s of job %s (%s) is not taken: a try whose answer was lost recorded it,"
                " or another claim holds the job",
                entry.outcome.kind,
                attempt.job.id,
                attempt.job.handler,
            )
        elif not attempt.lost:  # else the heartbeat has told it already
            _log.warning(
                "outcome %s of job %s (%s) is lost: another claim holds the job",
                entry.outcome.kind,
                attempt.job.id,
                attempt.job.handler,
            )
