"""How a node runs, checked before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_integer, check_name, check_seconds

_CADENCE_MIN_SECONDS, _CADENCE_MAX_SECONDS = 1e-3, 3600.0
_TIMEOUT_MAX_SECONDS = 86_400.0
_GRACE_MAX_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Sizes and cadences of one node; durations are seconds or `timedelta`.

    Args:
        workers: jobs that run at once, 1..limits.WORKERS_MAX.
        queues: the queues to serve; None serves all.
        tick: recurring tasks, delayed jobs and nudges are looked at this often, or on a wake.
        poll: ready jobs are looked for this often, or on a wake.
        heartbeat: at most a third of `heartbeat_timeout`.
        heartbeat_timeout: jobs of a node that is silent for so long are taken back.
        grace: how long a stop waits for running jobs.
        wakes: listen to wakes of other processes when the store has them; such nodes may leave
            idle ticks to the one that has the maintenance lease.
    Raises: InvalidValueError.
    """

    workers: int = 10
    queues: Sequence[str] | None = None
    tick: float = limits.TICK_SECONDS
    poll: float = limits.POLL_SECONDS
    heartbeat: float = limits.HEARTBEAT_SECONDS
    heartbeat_timeout: float = limits.HEARTBEAT_TIMEOUT_SECONDS
    grace: float = limits.GRACE_SECONDS
    wakes: bool = True

    def __post_init__(self) -> None:
        check_integer(self.workers, what="workers", minimum=1, maximum=limits.WORKERS_MAX)
        bounds = (
            ("tick", _CADENCE_MIN_SECONDS, _CADENCE_MAX_SECONDS),
            ("poll", _CADENCE_MIN_SECONDS, _CADENCE_MAX_SECONDS),
            ("heartbeat", _CADENCE_MIN_SECONDS, _CADENCE_MAX_SECONDS),
            ("heartbeat_timeout", _CADENCE_MIN_SECONDS, _TIMEOUT_MAX_SECONDS),
            ("grace", 0.0, _GRACE_MAX_SECONDS),
        )
        for name, minimum, maximum in bounds:
            seconds = check_seconds(
                getattr(self, name), what=name, minimum=minimum, maximum=maximum
            )
            object.__setattr__(self, name, seconds)
        if self.heartbeat * limits.HEARTBEATS_PER_TIMEOUT > self.heartbeat_timeout:
            raise InvalidValueError(
                f"heartbeat of {self.heartbeat:g} s is too rare for a heartbeat_timeout of "
                f"{self.heartbeat_timeout:g} s: healthy jobs would be taken back; expected at "
                f"most {self.heartbeat_timeout / limits.HEARTBEATS_PER_TIMEOUT:g} s",
                heartbeat=self.heartbeat,
                heartbeat_timeout=self.heartbeat_timeout,
            )
        object.__setattr__(self, "queues", _checked_queues(self.queues))
        if not isinstance(self.wakes, bool):  # a word such as "no" would turn them on
            raise InvalidValueError(
                f"wakes must be True or False, found {self.wakes!r:.200}", value=self.wakes
            )


def check_grace(grace: float) -> float:
    """The seconds of a stop's own grace. Raises: InvalidValueError."""
    return check_seconds(grace, what="grace", minimum=0.0, maximum=_GRACE_MAX_SECONDS)


def _checked_queues(queues: object) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str) or not isinstance(queues, Sequence) or not queues:
        raise InvalidValueError(
            f"queues must be a sequence of names with at least one, found {queues!r:.200}; "
            "None serves all queues",
            value=queues,
        )
    return tuple(dict.fromkeys(check_name(queue, kind="queue") for queue in queues))
