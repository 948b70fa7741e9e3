"""What a handler knows of its attempt, and how it learns that it should stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime

from threadmill_sa.errors import InvalidValueError, JobCancelledError
from threadmill_sa.model.job import JobId
from threadmill_sa.model.recurring import CronOrigin

_log = logging.getLogger("threadmill_sa.job")

TIMEOUT = "timeout"
LOST = "lost"
SHUTDOWN = "shutdown"


class Cancellation:
    """A one-way switch: set once with a reason, by the engine; the first reason stays."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def reason(self) -> str | None:
        return self._reason

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None) -> bool:
        return self._event.wait(timeout)

    def cancel(self, reason: str) -> None:
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            listeners, self._listeners = self._listeners, []
        self._event.set()
        for listener in listeners:
            listener()

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when it is set; at once when it already is."""
        with self._lock:
            if self._reason is None:
                self._listeners.append(listener)
                return
        listener()


@dataclass(frozen=True, slots=True, eq=False)
class JobContext:
    """The running attempt, as its handler sees it. Safe to use from any thread.

    Python code cannot be stopped from outside: a long handler calls `check_in()` now and then,
    or looks at `cancelled`. Coroutines are cancelled as well.
    """

    id: JobId
    attempt: int  # 1 for the first
    max_attempts: int
    queue: str
    handler: str
    cron_task_name: str | None = None
    cron_origin: CronOrigin | None = None
    fire_time: datetime | None = None  # None for nudged and manual instances
    deadline: datetime | None = None  # aware; None without a timeout
    cancellation: Cancellation = field(default_factory=Cancellation, repr=False)

    @property
    def cancelled(self) -> bool:
        """True once the attempt must stop; whatever it returns later is discarded."""
        return self.cancellation.is_set()

    @property
    def cancel_reason(self) -> str | None:
        """`timeout`, `lost` (another node has the job) or `shutdown`; None while it may run."""
        return self.cancellation.reason

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for a cancellation; True when there is one."""
        return self.cancellation.wait(timeout)

    def check_in(self) -> None:
        """Return while the attempt may go on. Raises: JobCancelledError when it must stop."""
        if self.cancelled:
            raise JobCancelledError(
                f"attempt {self.attempt} of job {str(self.id)!r} must stop: {self.cancel_reason};"
                " let this error pass",
                job_id=self.id,
                attempt=self.attempt,
                reason=self.cancel_reason,
            )

    def log(self, message: str, *args: object, level: int = logging.INFO) -> None:
        """Log to `threadmill_sa.job` with the job's fields; `args` are filled in with `%`."""
        _log.log(level, message, *args, extra=self._fields())

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Log how far the attempt is. Raises: InvalidValueError outside 0..1."""
        number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not number or not 0 <= fraction <= 1:  # also refuses nan
            raise InvalidValueError(
                f"progress must be a fraction from 0 to 1, found {fraction!r:.200}", value=fraction
            )
        note = "" if message is None else f": {message}"
        fields = self._fields() | {"progress": float(fraction)}
        _log.info("progress %.1f%%%s", fraction * 100, note, extra=fields)

    def _fields(self) -> dict[str, object]:
        return {
            "job_id": str(self.id),
            "job_attempt": self.attempt,
            "job_queue": self.queue,
            "job_handler": self.handler,
            "job_task": self.cron_task_name,
        }


_current: ContextVar[JobContext | None] = ContextVar("threadmill_job", default=None)


def current_job() -> JobContext | None:
    """The attempt that this code runs in, or None outside of one."""
    return _current.get()


def enter_job(context: JobContext) -> Token[JobContext | None]:
    """Make `context` the current job of this contextvars context; undo with `leave_job`."""
    return _current.set(context)


def leave_job(token: Token[JobContext | None]) -> None:
    _current.reset(token)
