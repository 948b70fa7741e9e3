"""The single way in which an attempt fails, whatever ended it."""

from __future__ import annotations

from collections.abc import Callable

from threadmill_sa.codec import error_message, recordable_text
from threadmill_sa.engine.processing.handlers import Handler
from threadmill_sa.model import failure, limits
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, OrphanedJob, OutcomeKind
from threadmill_sa.model.retry import DEFAULT_BACKOFF


class FailurePath:
    """Decides between another attempt and the end.

    Args:
        noise: 0..1 for each call, the jitter of pauses.
    """

    def __init__(self, noise: Callable[[], float]) -> None:
        self._noise = noise

    def __call__(
        self,
        job: ClaimedJob | OrphanedJob,
        handler: Handler | None,
        *,
        reason: str,
        message: str,
    ) -> AttemptOutcome:
        """RETRY while attempts are left, else FAILED. Never raises.

        A recurring instance pauses at most limits.RECURRING_BACKOFF_MAX_SECONDS, since it holds
        back the next one. An orphan does not pause: it has already waited for its heartbeat to
        time out. A backoff that raises or returns no usable pause fails the job visibly.
        """
        pause: float | None = None
        if job.attempt < job.max_attempts:
            try:
                pause = 0.0 if reason == failure.ORPHAN else self._pause(job, handler)
            except BaseException as error:  # noqa: BLE001  A policy is the user's code.
                told = f"{type(error).__name__}: {error_message(error)}"
                message = f"backoff failed, so no retry: {told}\n{message}"
        return AttemptOutcome(
            job_id=job.id,
            attempt_token=job.attempt_token,
            kind=OutcomeKind.FAILED if pause is None else OutcomeKind.RETRY,
            reason=reason,
            message=recordable_text(message, max_bytes=limits.FAILURE_MESSAGE_MAX_BYTES),
            retry_seconds=pause,
        )

    def _pause(self, job: ClaimedJob | OrphanedJob, handler: Handler | None) -> float:
        backoff = DEFAULT_BACKOFF if handler is None else handler.backoff
        cap = None if job.cron_task_name is None else limits.RECURRING_BACKOFF_MAX_SECONDS
        # A subclass may return anything; what the store gets is a finite, bounded number.
        pause: object = backoff.seconds(job.attempt, self._noise(), cap=cap)
        if isinstance(pause, int | float) and not isinstance(pause, bool) and pause >= 0:
            return float(min(pause, limits.BACKOFF_MAX_SECONDS))
        raise ValueError(f"expected seconds >= 0, found {pause!r:.200}")
