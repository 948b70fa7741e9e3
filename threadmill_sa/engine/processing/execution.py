"""From a claimed job to its outcome: threads, loop, deadline and the one hand-over."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from functools import partial

from threadmill_sa.clock import Clock
from threadmill_sa.engine.processing.attempts import Attempt, AttemptBook
from threadmill_sa.engine.processing.completer import Completer
from threadmill_sa.engine.processing.context import LOST, SHUTDOWN, TIMEOUT, JobContext
from threadmill_sa.engine.processing.eventloop import LoopThread
from threadmill_sa.engine.processing.handlers import Handler, HandlerRegistry
from threadmill_sa.engine.processing.runner import (
    Runner,
    effective_timeout,
    job_context,
    released,
)
from threadmill_sa.engine.processing.watchdog import Watchdog
from threadmill_sa.engine.processing.workers import WorkerPool
from threadmill_sa.model import limits
from threadmill_sa.model.job import AttemptOutcome

_log = logging.getLogger(__name__)


class Execution:
    """Runs attempts. Each gets exactly one outcome, from whoever settles it first.

    The first of: the handler's end, the deadline, the release at a shutdown. A handler that ends
    after its outcome was settled only frees its slot; its result is discarded.
    """

    def __init__(
        self,
        handlers: HandlerRegistry,
        runner: Runner,
        completer: Completer,
        book: AttemptBook,
        *,
        workers: int,
        clock: Clock,
        monotonic: Callable[[], float],
        name: str,
    ) -> None:
        self._handlers = handlers
        self._runner = runner
        self._completer = completer
        self._book = book
        self._clock = clock
        self._monotonic = monotonic
        self._base = contextvars.copy_context()  # what the host had set when the node started
        self._watchdog = Watchdog(f"{name}-deadlines", expire=self._expire, monotonic=monotonic)
        self._pool = WorkerPool(workers, self._work, name=f"{name}-worker")
        self._loop = LoopThread(f"{name}-loop")

    def start(self) -> None:
        self._watchdog.start()

    def submit(self, attempt: Attempt) -> None:
        """Begin `attempt`, which the book already counts.

        Raises: RuntimeError when no thread can take it, UnknownHandlerError; nothing has run then.
        """
        handler = self._handlers.get(attempt.job.handler)
        if handler.is_async:
            self._submit_async(attempt, handler)
        else:
            self._pool.submit(attempt)

    def release(self, attempt: Attempt) -> None:
        """Give an attempt back unspent and tell its handler to stop."""
        # Settled before the cancellation: a handler that reacts to it must not settle first.
        if self._completer.accept(attempt, released(attempt.job)):
            attempt.cancellation.cancel(SHUTDOWN)

    def lose(self, attempt: Attempt) -> None:
        """Tell the handler of an attempt that the store gave to another to stop."""
        _log.warning(
            "job %s (%s) is lost to another claim: its result will be discarded",
            attempt.job.id,
            attempt.job.handler,
        )
        attempt.cancellation.cancel(LOST)

    def stop(self) -> None:
        """End the threads. Attempts must have been settled before."""
        self._loop.stop(limits.UNWIND_SECONDS)
        self._pool.stop(limits.UNWIND_SECONDS, self._monotonic)
        self._watchdog.stop(limits.UNWIND_SECONDS)

    def _expire(self, attempt: Attempt) -> None:
        handler = self._handlers.get(attempt.job.handler)
        seconds = effective_timeout(attempt.job, handler) or 0.0
        if attempt.settled:
            return
        # As in `release`: first the outcome, then the cancellation.
        if self._completer.accept(attempt, self._runner.timed_out(attempt.job, handler, seconds)):
            _log.warning(
                "job %s (%s) timed out after %g s", attempt.job.id, attempt.job.handler, seconds
            )
            attempt.cancellation.cancel(TIMEOUT)

    def _work(self, attempt: Attempt) -> None:
        """Run a sync attempt in this worker thread."""
        handler = self._handlers.get(attempt.job.handler)
        try:
            context = self._begin(attempt, handler)
            outcome = self._base.copy().run(self._runner.run, attempt.job, handler, context)
        except BaseException as error:  # noqa: BLE001  Every claimed job gets an outcome.
            outcome = self._runner.failed(attempt.job, handler, error)
        self._watchdog.unwatch(attempt)
        self._hand_over(attempt, outcome)
        self._book.ended(attempt)

    def _submit_async(self, attempt: Attempt, handler: Handler) -> None:
        async def work() -> None:
            context = self._begin(attempt, handler)
            task = asyncio.current_task()
            if task is not None:
                attempt.cancellation.on_cancel(partial(self._loop.call, task.cancel))
            outcome = await self._runner.run_async(attempt.job, handler, context)
            self._hand_over(attempt, outcome)

        def done(error: BaseException | None) -> None:
            self._watchdog.unwatch(attempt)
            if error is not None:
                self._hand_over(attempt, self._runner.failed(attempt.job, handler, error))
            self._book.ended(attempt)

        self._loop.submit(work, done=done, context=self._base.copy())

    def _begin(self, attempt: Attempt, handler: Handler) -> JobContext:
        timeout = effective_timeout(attempt.job, handler)
        if timeout is not None:
            self._watchdog.watch(attempt, timeout)
        return job_context(
            attempt.job, attempt.cancellation, now=self._clock.now(), timeout=timeout
        )

    def _hand_over(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        if not self._completer.accept(attempt, outcome):
            _log.warning(
                "late result of job %s (%s) discarded: the attempt had ended before (%s)",
                attempt.job.id,
                attempt.job.handler,
                attempt.cancellation.reason,
            )
