"""From what a caller asks for to the values that a store keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from threadmill_sa.clock import Clock
from threadmill_sa.codec import decode_payload, encode_payload
from threadmill_sa.engine.processing.handlers import Handler, HandlerFunction, HandlerRegistry
from threadmill_sa.errors import InvalidValueError, PayloadError
from threadmill_sa.model import limits
from threadmill_sa.model.job import JobId, NewJob
from threadmill_sa.model.names import (
    check_instant,
    check_integer,
    check_name,
    check_seconds,
)
from threadmill_sa.model.recurring import CronOrigin, CronTask, CronTaskView, MissedRunPolicy
from threadmill_sa.model.trigger import next_fire, parse_trigger


class JobFactory:
    """Makes jobs of declared handlers; everything is checked before any store is asked."""

    def __init__(
        self, handlers: HandlerRegistry, clock: Clock, ids: Callable[[datetime], UUID]
    ) -> None:
        self._handlers = handlers
        self._clock = clock
        self._ids = ids

    def make(
        self,
        handler: HandlerFunction | str,
        payload: object,
        *,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> NewJob:
        """Return the job; its id is known before it is stored.

        Raises: UnknownHandlerError, PayloadError, InvalidValueError, NaiveDatetimeError.
        """
        declared = self._handlers.resolve(handler)
        if delay is not None and run_at is not None:
            raise InvalidValueError(
                f"job of {declared.name!r} has both delay={delay!r} and run_at={run_at!r}:"
                " give one of them",
                delay=delay,
                run_at=run_at,
            )
        return NewJob(
            id=JobId(self._ids(self._clock.now())),
            handler=declared.name,
            payload=payload_text(declared, payload),
            queue=declared.queue if queue is None else check_name(queue, kind="queue"),
            priority=_priority(declared.priority if priority is None else priority),
            max_attempts=_max_attempts(
                declared.max_attempts if max_attempts is None else max_attempts
            ),
            timeout_seconds=declared.timeout_seconds
            if timeout is None
            else timeout_seconds(timeout),
            run_at=None if run_at is None else check_instant(run_at, what="run_at"),
            delay_seconds=_delay(delay),
        )

    def make_many(
        self, entries: Sequence[tuple[HandlerFunction | str, object]], **options: Any
    ) -> list[NewJob]:
        """Return one job per (handler, payload), in order; the first bad one names its index."""
        if not isinstance(entries, Iterable):
            raise InvalidValueError(
                f"entries must be a list of pairs (handler, payload), found {entries!r:.200}",
                value=entries,
            )
        jobs = []
        for index, entry in enumerate(entries):
            if not isinstance(entry, tuple) or len(entry) != 2:  # noqa: PLR2004 - a pair
                raise InvalidValueError(
                    f"entry {index} must be a pair (handler, payload), found {entry!r:.200}",
                    index=index,
                )
            jobs.append(self.make(entry[0], entry[1], **options))
        return jobs


def payload_text(handler: Handler, payload: object) -> str | None:
    """Return the encoded payload, checked against what the handler takes.

    Raises: PayloadError, PayloadTooLargeError.
    """
    if handler.payload_parameter is None:
        if payload is not None:
            raise PayloadError(
                f"handler {handler.name!r} takes no payload, found {payload!r:.200}:"
                " add a parameter for it, or leave the payload out",
                path="payload",
            )
        return None
    if payload is None and handler.payload_optional:
        return None
    text = encode_payload(payload)
    decode_payload(text, handler.payload_annotation)  # a misfit is the caller's to mend, now
    return text


def _priority(value: int) -> int:
    return check_integer(
        value, what="priority", minimum=limits.PRIORITY_MIN, maximum=limits.PRIORITY_MAX
    )


def _max_attempts(value: int) -> int:
    return check_integer(value, what="max_attempts", minimum=1, maximum=limits.MAX_ATTEMPTS_MAX)


def timeout_seconds(timeout: float | timedelta) -> float:
    """Return a timeout in seconds, 0.001 s .. 100 years."""
    return check_seconds(
        timeout, what="timeout", minimum=1e-3, maximum=limits.JOB_TIMEOUT_MAX_SECONDS
    )


def _delay(delay: float | timedelta | None) -> float | None:
    if delay is None:
        return None
    return (
        check_seconds(delay, what="delay", minimum=0.0, maximum=limits.DELAY_MAX_SECONDS) or None
    )


def manual_instance(task: CronTask, job_id: JobId) -> NewJob:
    """Return the instance that an operator asks for, of the definition as it is now."""
    return NewJob(
        id=job_id,
        handler=task.handler,
        payload=task.payload,
        queue=task.queue,
        priority=task.priority,
        max_attempts=task.max_attempts or limits.MAX_ATTEMPTS_DEFAULT,
        timeout_seconds=task.timeout_seconds,
        cron_task_name=task.name,
        cron_origin=CronOrigin.MANUAL,
    )


def upcoming_fires(view: CronTaskView, n: int, *, now: datetime) -> list[datetime]:
    """Return the next `n` fire times (aware UTC), those of a paused task as if it were resumed.

    The first is the stored one, overdue or not; later ones follow today's rules of the zone.
    Raises: InvalidValueError, ScheduleError for a stored trigger that cannot be evaluated.
    """
    check_integer(n, what="n", minimum=1, maximum=limits.PREVIEW_MAX)
    trigger = parse_trigger(view.trigger_kind, view.trigger_value, view.zone)
    fires = [] if view.next_run_at is None else [view.next_run_at]
    after = fires[0] if fires else now
    if view.missed_run_policy is MissedRunPolicy.DROP:
        after = max(after, now)  # one run serves the whole backlog
    while len(fires) < n:
        after = next_fire(trigger, after, anchor=view.anchor_at)
        fires.append(after)
    return fires
