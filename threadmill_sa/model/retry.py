"""When a failed attempt runs again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential pause between attempts: initial, initial*factor, ... up to maximum, jittered.

    Args:
        initial: seconds (or a `timedelta`, as for the maximum) before the second attempt, >= 0.
        factor: growth per attempt, >= 1.
        maximum: seconds, the cap before jitter, at most a year.
        jitter: 0..1; the pause is spread over +- this share of itself.
    """

    initial: float = 5.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("initial", "maximum"):
            seconds = check_seconds(
                getattr(self, name),
                what=f"backoff {name}",
                minimum=0.0,
                maximum=limits.BACKOFF_MAX_SECONDS,
            )
            object.__setattr__(self, name, seconds)
        bounds = (("factor", self.factor, 1.0, math.inf), ("jitter", self.jitter, 0.0, 1.0))
        for name, value, low, high in bounds:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise InvalidValueError(
                    f"backoff {name} must be between {low:g} and {high:g}, found {value!r}",
                    value=value,
                )

    def seconds(self, failed_attempts: int, noise: float, *, cap: float | None = None) -> float:
        """Return the pause after `failed_attempts` (>= 1); never negative, never above the cap.

        Args:
            noise: 0..1, the randomness of this call.
            cap: another maximum, in seconds, when it is lower.
        """
        maximum = self.maximum if cap is None else min(self.maximum, cap)
        if self.initial == 0 or maximum == 0:
            return 0.0
        # Compare logarithms: the power itself overflows long before the cap is asked.
        exponent = math.log(self.initial) + (failed_attempts - 1) * math.log(self.factor)
        pause = maximum if exponent >= math.log(maximum) else math.exp(exponent)
        return min(maximum, pause * (1 + self.jitter * (2 * noise - 1)))


DEFAULT_BACKOFF = Backoff()
