"""One attempt, from its stored payload to its outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

from threadmill_sa._util.visible import visible_line
from threadmill_sa.codec import (
    decode_payload,
    encode_result,
    error_message,
    failure_text,
    recordable_text,
)
from threadmill_sa.engine.processing.context import (
    Cancellation,
    JobContext,
    enter_job,
    leave_job,
)
from threadmill_sa.engine.processing.failures import FailurePath
from threadmill_sa.engine.processing.handlers import Handler
from threadmill_sa.errors import DeclarationError, PayloadError
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, OutcomeKind

_log = logging.getLogger(__name__)


class Runner:
    """Calls handlers and turns everything they do into an `AttemptOutcome`. Holds no job.

    Args:
        passes: exceptions of a handler that leave `run` instead of failing the attempt. None in
            a worker, where even SystemExit ends the attempt only.
        on_start: told of each attempt right before its handler is called; it may block and
            raises nothing.
    """

    def __init__(
        self,
        failures: FailurePath,
        *,
        passes: tuple[type[BaseException], ...] = (),
        on_start: Callable[[ClaimedJob], None] | None = None,
    ) -> None:
        self._failures = failures
        self._passes = passes
        self._on_start = on_start

    def run(self, job: ClaimedJob, handler: Handler, context: JobContext) -> AttemptOutcome:
        """Run a handler in this thread; a coroutine function gets an event loop of its own."""
        try:
            arguments = _arguments(job, handler, context)
        except self._passes:
            raise
        except BaseException as error:  # noqa: BLE001  A payload's classes are the user's code.
            return quarantined(job, error)
        token = enter_job(context)
        try:
            if self._on_start is not None:
                self._on_start(job)
            value = handler.function(**arguments)
            if handler.is_async:
                value = asyncio.run(value)
            elif inspect.iscoroutine(value):
                _refuse_coroutine(value, handler)
            return succeeded(job, value)
        except self._passes:
            raise
        except BaseException as error:  # noqa: BLE001  The worker outlives whatever a job raises.
            return self.failed(job, handler, error, late=context.cancelled)
        finally:
            leave_job(token)

    async def run_async(
        self, job: ClaimedJob, handler: Handler, context: JobContext
    ) -> AttemptOutcome:
        """Run a coroutine function on the current loop."""
        try:
            arguments = _arguments(job, handler, context)
        except BaseException as error:  # noqa: BLE001  As in `run`.
            return quarantined(job, error)
        enter_job(context)
        try:
            if self._on_start is not None:
                await asyncio.to_thread(self._on_start, job)
            return succeeded(job, await handler.function(**arguments))
        except BaseException as error:  # noqa: BLE001  SystemExit would end the loop's thread.
            return self.failed(job, handler, error, late=context.cancelled)

    def failed(
        self, job: ClaimedJob, handler: Handler, error: BaseException, *, late: bool = False
    ) -> AttemptOutcome:
        """The outcome of a handler that raised `error`.

        Args:
            late: it was told to stop before, so its error is most likely the answer to that.
        """
        text = failure_text(error)
        headline = visible_line(text.split("\n", 1)[0])
        _log.log(
            logging.DEBUG if late else logging.WARNING,
            "attempt %d of %d of job %s (%s) failed: %s",
            job.attempt,
            job.max_attempts,
            job.id,
            job.handler,
            headline,
        )
        return self._failures(job, handler, reason=failure.EXCEPTION, message=text)

    def timed_out(self, job: ClaimedJob, handler: Handler, seconds: float) -> AttemptOutcome:
        """The outcome of an attempt whose time is over while its handler may still run."""
        message = f"timeout: the attempt did not end within {seconds:g} s"
        return self._failures(job, handler, reason=failure.TIMEOUT, message=message)


def effective_timeout(job: ClaimedJob, handler: Handler) -> float | None:
    """Seconds for this attempt: the job's own, else the handler's; None is no limit.

    A stored value that is none falls back to the handler's and never disables it.
    """
    own = job.timeout_seconds
    usable = own is not None and math.isfinite(own) and 0 < own <= limits.JOB_TIMEOUT_MAX_SECONDS
    return own if usable else handler.timeout_seconds


def job_context(
    job: ClaimedJob, cancellation: Cancellation, *, now: datetime, timeout: float | None
) -> JobContext:
    """What the handler sees of `job` in an attempt that starts at `now`."""
    deadline = None
    if timeout is not None:
        try:
            deadline = now + timedelta(seconds=timeout)
        except OverflowError:
            deadline = None  # past the calendar: no deadline that anybody meets
    return JobContext(
        id=job.id,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        queue=job.queue,
        handler=job.handler,
        cron_task_name=job.cron_task_name,
        cron_origin=job.cron_origin,
        fire_time=job.fire_time,
        deadline=deadline,
        cancellation=cancellation,
    )


def succeeded(job: ClaimedJob, value: object) -> AttemptOutcome:
    """The outcome of a handler that returned; a result without a JSON form is dropped."""
    result = encode_result(value)
    if result.note is not None:
        note = visible_line(result.note)
        _log.warning("job %s (%s) succeeded, %s", job.id, job.handler, note)
    return AttemptOutcome(
        job_id=job.id,
        attempt_token=job.attempt_token,
        kind=OutcomeKind.SUCCEEDED,
        reason=failure.SUCCESS,
        result=result.text,
        result_note=result.note,
    )


def quarantined(job: ClaimedJob, error: BaseException) -> AttemptOutcome:
    """The outcome of a job whose stored form no attempt can run; never retried."""
    message = error_message(error)
    _log.error("job %s (%s) quarantined: %s", job.id, job.handler, visible_line(message))
    return AttemptOutcome(
        job_id=job.id,
        attempt_token=job.attempt_token,
        kind=OutcomeKind.QUARANTINED,
        reason=failure.QUARANTINE,
        message=recordable_text(message, max_bytes=limits.FAILURE_MESSAGE_MAX_BYTES),
    )


def released(job: ClaimedJob) -> AttemptOutcome:
    """The outcome of an attempt that is given back unspent."""
    return AttemptOutcome(
        job_id=job.id,
        attempt_token=job.attempt_token,
        kind=OutcomeKind.RELEASED,
        reason=failure.SHUTDOWN,
        message="shutdown: the attempt is given back",
    )


def _arguments(job: ClaimedJob, handler: Handler, context: JobContext) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if handler.context_parameter is not None:
        arguments[handler.context_parameter] = context
    absent = job.payload is None
    if handler.payload_parameter is not None and not (absent and handler.payload_optional):
        # Decoded for each attempt, so what one attempt changes the next does not see.
        arguments[handler.payload_parameter] = decode_payload(
            job.payload, handler.payload_annotation
        )
    elif handler.payload_parameter is None and job.payload not in (None, "null"):
        raise PayloadError(
            f"payload is stored but handler {handler.name!r} takes none: "
            "give the handler a payload parameter or delete the job",
            path="payload",
        )
    return arguments


def _refuse_coroutine(value: Coroutine[Any, Any, Any], handler: Handler) -> None:
    value.close()
    raise DeclarationError(
        f"handler {handler.name!r} returned a coroutine that nobody awaits: "
        "declare the handler with async def",
        handler=handler.name,
    )
