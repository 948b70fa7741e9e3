"""How long finished jobs are kept."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_seconds
from threadmill_sa.model.state import JobState

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a finished job is kept, counted from its last change of state.

    Each is seconds or a `timedelta`, 1 second to 100 years, and is read back in seconds; None
    keeps such jobs for ever.
    Raises: InvalidValueError.
    """

    succeeded: float | timedelta | None = 7 * _DAY
    failed: float | timedelta | None = 30 * _DAY
    deleted: float | timedelta | None = 7 * _DAY
    quarantined: float | timedelta | None = 30 * _DAY

    def __post_init__(self) -> None:
        for each in fields(self):
            kept = getattr(self, each.name)
            if kept is not None:
                seconds = check_seconds(
                    kept,
                    what=f"retention of {each.name} jobs",
                    minimum=limits.RETENTION_MIN_SECONDS,
                    maximum=limits.RETENTION_MAX_SECONDS,
                )
                object.__setattr__(self, each.name, seconds)

    @property
    def seconds(self) -> dict[JobState, float]:
        """The seconds for each state whose jobs are not kept for ever."""
        kept = {JobState(each.name.upper()): getattr(self, each.name) for each in fields(self)}
        return {state: seconds for state, seconds in kept.items() if seconds is not None}


DEFAULT_RETENTION = Retention()


def check_retention(value: object) -> Retention:
    """Return a `Retention`. Raises: InvalidValueError for anything else."""
    if not isinstance(value, Retention):
        raise InvalidValueError(
            f"retention must be a Retention, found {value!r:.200}: pass Retention(succeeded=...),"
            " where None keeps such jobs for ever",
            value=value,
        )
    return value
