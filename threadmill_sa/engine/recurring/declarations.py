"""Recurring tasks as the code declares them: kept in memory until `register` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from threadmill_sa.errors import DeclarationError, InvalidValueError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_integer, check_name, check_seconds
from threadmill_sa.model.recurring import CronTask, MissedRunPolicy
from threadmill_sa.model.trigger import Cron, Every, Trigger, timing_fingerprint, trigger_text


def declare_task(
    name: str,
    *,
    handler: str,
    trigger: Trigger,
    payload: str | None,
    queue: str,
    priority: int,
    enabled: bool,
    missed: MissedRunPolicy | str,
    timeout: float | timedelta | None,
    max_attempts: int,
) -> CronTask:
    """Return the definition; nothing is written. Raises: InvalidValueError, DeclarationError."""
    check_name(name, kind="recurring task")
    if not isinstance(trigger, Cron | Every):
        raise DeclarationError(
            f"recurring task {name!r} has the trigger {trigger!r:.200}: expected Cron or Every",
            task=name,
        )
    if not isinstance(enabled, bool):
        raise InvalidValueError(f"enabled must be True or False, found {enabled!r:.200}")
    kind, value, zone = trigger_text(trigger)
    return CronTask(
        name=name,
        trigger_kind=kind,
        trigger_value=value,
        zone=zone,
        handler=handler,
        timing_fingerprint=timing_fingerprint(trigger),
        payload=payload,
        queue=check_name(queue, kind="queue"),
        priority=check_integer(
            priority, what="priority", minimum=limits.PRIORITY_MIN, maximum=limits.PRIORITY_MAX
        ),
        missed_run_policy=_policy(missed),
        timeout_seconds=None
        if timeout is None
        else check_seconds(
            timeout, what="timeout", minimum=1e-3, maximum=limits.JOB_TIMEOUT_MAX_SECONDS
        ),
        max_attempts=check_integer(
            max_attempts, what="max_attempts", minimum=1, maximum=limits.MAX_ATTEMPTS_MAX
        ),
        enabled=enabled,
        anchor_at=trigger.anchor if isinstance(trigger, Every) else None,
    )


def _policy(value: MissedRunPolicy | str) -> MissedRunPolicy:
    try:
        return MissedRunPolicy(value)
    except ValueError:
        words = " or ".join(repr(policy.value) for policy in MissedRunPolicy)
        raise InvalidValueError(f"missed must be {words}, found {value!r:.200}") from None


class TaskDeclarations:
    """The recurring tasks that this process declares, in order of declaration."""

    def __init__(self) -> None:
        self._tasks: dict[str, CronTask] = {}

    def add(self, task: CronTask) -> None:
        """Keep `task`. Raises: DeclarationError when another one has its name."""
        known = self._tasks.setdefault(task.name, task)
        if known != task:
            raise DeclarationError(
                f"recurring task {task.name!r} is declared twice with different settings:"
                " give one of them another name",
                task=task.name,
            )

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[CronTask]:
        return iter(list(self._tasks.values()))
