"""The claim loop: as many jobs as slots are free, at once when there is more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from threadmill_sa.engine.processing.attempts import Attempt, AttemptBook
from threadmill_sa.engine.processing.execution import Execution
from threadmill_sa.engine.processing.handlers import HandlerRegistry
from threadmill_sa.engine.processing.outage import Outage, is_outage
from threadmill_sa.engine.processing.strays import give_back_strays
from threadmill_sa.engine.service import Service
from threadmill_sa.model import limits
from threadmill_sa.model.job import ClaimedJob, NodeId
from threadmill_sa.spi.jobs import Jobs

_log = logging.getLogger(__name__)


class Dispatcher(Service):
    """Claims for the free slots and hands each job to the execution.

    Guarantee: every claimed job gets an outcome; one that cannot be started is released.
    """

    def __init__(
        self,
        name: str,
        *,
        jobs: Jobs,
        node_id: NodeId,
        handlers: HandlerRegistry,
        book: AttemptBook,
        execution: Execution,
        queues: tuple[str, ...] | None,
        poll_seconds: float,
        instant: Callable[[], datetime | None],
        may_claim: Callable[[], bool],
    ) -> None:
        super().__init__(name)
        self._jobs = jobs
        self._node_id = node_id
        self._handlers = handlers
        self._book = book
        self._execution = execution
        self._queues = queues
        self._poll = poll_seconds
        self._instant = instant
        self._may_claim = may_claim
        self._turn = 0
        self._unheard = False  # a claim failed, and may have been applied
        self._outage = Outage("claim")

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._book.notify()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._may_claim():
                self._wait(self._poll)
                continue
            limit = min(self._book.free(), limits.CLAIM_BATCH_MAX)
            if limit == 0:
                self._book.wait_free(self._poll)
                continue
            try:
                self._give_back_strays()
                claimed = self._claim(limit)
            except Exception as error:  # noqa: BLE001  The loop outlives every store failure.
                self._unheard = self._unheard or is_outage(error)
                self._rest(self._outage.failed(error))
                continue
            self._outage.ended()
            self._submit(claimed)
            # A full batch means there may be more: look again as soon as a slot is free.
            if len(claimed) < limit:
                if not claimed:
                    # A stream of wakes that bring nothing must not occupy the store.
                    self._rest(limits.WAKE_GAP_MIN_SECONDS)
                self._wait(self._poll)

    def _give_back_strays(self) -> None:
        """After a claim that may have been applied without our hearing of it.

        Only this thread claims, so whatever else we are said to hold came with that answer.
        """
        if not self._unheard:
            return
        known = {held.job_id for held in self._book.holds()}
        count = give_back_strays(self._jobs, self._node_id, known, now=self._instant())
        self._unheard = False
        if count:
            _log.warning("%d jobs are given back: the answer to their claim was lost", count)

    def _claim(self, limit: int) -> list[ClaimedJob]:
        # Only names that are known here: a job of another release waits for its own node.
        names = self._handlers.names()
        if not names:
            return []
        return self._jobs.claim(
            self._node_id,
            queues=self._rotated(),
            handlers=names,
            limit=limit,
            now=self._instant(),
        )

    def _rotated(self) -> tuple[str, ...] | None:
        """The queues, each first in turn, so a full one cannot starve the others."""
        if self._queues is None:
            return None
        start = self._turn % len(self._queues)
        self._turn += 1
        return self._queues[start:] + self._queues[:start]

    def _submit(self, claimed: list[ClaimedJob]) -> None:
        refused = False
        attempts = [Attempt(job) for job in claimed]
        for attempt in attempts:
            self._book.add(attempt)  # all first: heartbeats hold them from here on
        for attempt in attempts:
            if self._stopping.is_set():
                self._give_back(attempt)
                continue
            try:
                self._execution.submit(attempt)
            except Exception:  # noqa: BLE001  A claimed job must not be left without an outcome.
                # Out of threads, or the interpreter is exiting: others can run the job.
                _log.exception("job %s cannot be started and is released", attempt.job.id)
                self._give_back(attempt)
                refused = True
        if refused:
            self._rest(self._poll)

    def _give_back(self, attempt: Attempt) -> None:
        self._execution.release(attempt)
        self._book.ended(attempt)
