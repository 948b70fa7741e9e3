"""Everything that is due, in this thread: for tests and scripts."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from threadmill_sa.clock import Clock
from threadmill_sa.engine.processing.context import Cancellation
from threadmill_sa.engine.processing.failures import FailurePath
from threadmill_sa.engine.processing.handlers import Handler, HandlerRegistry
from threadmill_sa.engine.processing.recording import run_recorder
from threadmill_sa.engine.processing.runner import (
    Runner,
    effective_timeout,
    job_context,
    released,
)
from threadmill_sa.engine.processing.strays import give_back_strays
from threadmill_sa.engine.recurring.materializer import Materializer
from threadmill_sa.errors import ThreadmillError
from threadmill_sa.model import limits
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, FinishVerdict, NodeId
from threadmill_sa.spi.store import JobStore

_log = logging.getLogger(__name__)

_CLAIM_BATCH = 100  # jobs held at once; each is finished before the next one starts


def run_until_idle(
    store: JobStore,
    handlers: HandlerRegistry,
    materializer: Materializer,
    *,
    now: datetime | None = None,
    clock: Clock,
    ids: Callable[[datetime], UUID],
    noise: Callable[[], float],
    limit: int = limits.INLINE_RUNS_MAX,
) -> int:
    """Run what is due at `now` and what follows from it; returns the number of attempts run.

    Ticks (waiting for locked tasks), promotes, claims and runs until nothing is left. Retries
    that are due at `now` and catch-up count. `now` is used for everything; None is the store's
    clock, or the injected one. Timeouts are told by the context's deadline but not enforced, and
    there are no heartbeats: this is no worker.

    Raises: ThreadmillError after `limit` attempts, naming what goes on for ever;
        KeyboardInterrupt passes through and gives the job back.
    """
    inline = _Inline(store, handlers, materializer, now=now, clock=clock, ids=ids, noise=noise)
    return inline.run(limit)


class _Inline:
    def __init__(
        self,
        store: JobStore,
        handlers: HandlerRegistry,
        materializer: Materializer,
        *,
        now: datetime | None,
        clock: Clock,
        ids: Callable[[datetime], UUID],
        noise: Callable[[], float],
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._materializer = materializer
        self._now = now
        self._clock = clock
        self._node_id = NodeId(ids(clock.now() if now is None else now))
        # Ctrl-C belongs to whoever called, not to the job.
        self._runner = Runner(
            FailurePath(noise),
            passes=(KeyboardInterrupt,),
            on_start=run_recorder(store, self._instant),
        )

    def run(self, limit: int) -> int:
        ran = 0
        while True:
            created = self._materializer.tick(now=self._instant(), wait=True)
            promoted = self._store.jobs.promote(limit=limits.PROMOTE_BATCH, now=self._instant())
            batch = self._claim()
            if not (batch or promoted or any(outcome.jobs for outcome in created)):
                return ran
            ran += len(batch)
            if ran > limit:
                self._finish([released(job) for job in batch])
                self._refuse(batch[-1], limit)
            self._run_batch(batch)

    def _claim(self) -> list[ClaimedJob]:
        names = self._handlers.names()
        if not names:
            return []
        try:
            return self._store.jobs.claim(
                self._node_id,
                queues=None,
                handlers=names,
                limit=_CLAIM_BATCH,
                now=self._instant(),
            )
        except BaseException:
            # It may have been applied. Nobody beats for these jobs or reclaims them here.
            self._on_the_way_out(
                lambda: give_back_strays(self._store.jobs, self._node_id, (), now=self._instant())
            )
            raise

    def _run_batch(self, batch: list[ClaimedJob]) -> None:
        waiting = deque(batch)
        try:
            while waiting:
                outcome = self._attempt(waiting[0])
                self._finish([outcome])
                waiting.popleft()
        except BaseException:
            # The caller interrupts, or the store fails: what was not finished is given back.
            self._on_the_way_out(lambda: self._finish([released(job) for job in waiting]))
            raise

    def _on_the_way_out(self, give_back: Callable[[], object]) -> None:
        """Give jobs back; what ended the run is what the caller sees, not a failure of this."""
        try:
            give_back()
        except Exception as error:  # noqa: BLE001  Another error is being raised.
            _log.warning("jobs could not be given back, a node's reclaim will do it: %s", error)

    def _attempt(self, job: ClaimedJob) -> AttemptOutcome:
        handler = self._handlers.get(job.handler)
        context = job_context(
            job,
            Cancellation(),
            now=self._now or self._clock.now(),
            timeout=effective_timeout(job, handler),
        )

        def call() -> AttemptOutcome:
            # Variables that a handler sets end with it, as in a worker.
            return contextvars.copy_context().run(self._runner.run, job, handler, context)

        return _outside_loop(call, handler) if handler.is_async else call()

    def _finish(self, outcomes: list[AttemptOutcome]) -> None:
        verdicts = self._store.jobs.finish(self._node_id, outcomes, now=self._instant())
        for outcome, verdict in zip(outcomes, verdicts, strict=True):
            if verdict is FinishVerdict.LOST:
                _log.warning("outcome %s of job %s is lost", outcome.kind, outcome.job_id)

    def _instant(self) -> datetime | None:
        if self._now is None and self._clock.injected:
            return self._clock.now()
        return self._now

    def _refuse(self, job: ClaimedJob, limit: int) -> None:
        subject = (
            f"handler {job.handler!r}"
            if job.cron_task_name is None
            else f"recurring task {job.cron_task_name!r}"
        )
        raise ThreadmillError(
            f"run_until_idle ran {limit} attempts and {subject} still has due work: "
            "it creates work for itself at the same instant; raise the limit or break the loop",
            handler=job.handler,
            task=job.cron_task_name,
            limit=limit,
        )


def _outside_loop(call: Callable[[], AttemptOutcome], handler: Handler) -> AttemptOutcome:
    """Run `call`, which starts an event loop, in another thread when this one has a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    results: list[AttemptOutcome] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            results.append(context.run(call))
        except BaseException as error:  # noqa: BLE001  Raised again in the caller's thread.
            errors.append(error)

    thread = threading.Thread(target=work, name=f"threadmill-inline-{handler.name}", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
