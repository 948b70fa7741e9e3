"""How long a lease lasts and how early it is renewed, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_seconds

_NEVER_SECONDS = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """The durations of one lease, in seconds or `timedelta`; None takes a part of `ttl`.

    Args:
        ttl: how long the store keeps the lease without a renewal.
        renew_every: between renewals; None is ttl / 3.
        margin: how much earlier than the store the holder stops trusting its lease; covers the
            drift of two clocks over one ttl. None is ttl / 10.
        call_timeout: bound of one call to the store; None is renew_every / 2, at most 3 s.
        cooldown: after a resignation nothing is tried for so long; None is renew_every.
        jitter: those who wait for an expiry spread over this part of ttl, 0..1.
    Raises: InvalidValueError, also when `ttl` leaves no room for a renewal that fails once:
        renew_every + 2 * call_timeout + retry_max + margin must be shorter.
    """

    ttl: float | timedelta = limits.LEASE_TTL_SECONDS
    renew_every: float | timedelta | None = None
    margin: float | timedelta | None = None
    call_timeout: float | timedelta | None = None
    cooldown: float | timedelta | None = None
    jitter: float = 0.2

    def __post_init__(self) -> None:
        lowest, highest = limits.LEASE_TTL_MIN_SECONDS, limits.LEASE_TTL_MAX_SECONDS
        ttl = check_seconds(self.ttl, what="ttl", minimum=lowest, maximum=highest)
        given = self.renew_every
        renew_every = ttl / 3 if given is None else _positive(given, "renew_every")
        parts = {
            "margin": ttl / 10,
            "call_timeout": min(renew_every / 2, limits.LEASE_CALL_MAX_SECONDS),
            "cooldown": renew_every,
        }
        values = {"ttl": ttl, "renew_every": renew_every}
        for name, default in parts.items():
            value = getattr(self, name)
            values[name] = default if value is None else _positive(value, name)
        values["jitter"] = _fraction(self.jitter, "jitter")
        for name, value in values.items():
            object.__setattr__(self, name, float(value))
        self._check_room()

    @property
    def retry_max(self) -> float:
        """The longest pause, in seconds, between two renewals of which the first failed."""
        return min(self.seconds("renew_every") / 4, limits.LEASE_RETRY_MAX_SECONDS)

    @property
    def retry_min(self) -> float:
        """The pause after a first failure, in seconds; it doubles up to `retry_max`."""
        return min(self.retry_max, limits.LEASE_RETRY_MIN_SECONDS)

    def seconds(self, name: str) -> float:
        """Return one duration as a number of seconds."""
        value: float = getattr(self, name)
        return value

    def _check_room(self) -> None:
        renew_every, call = self.seconds("renew_every"), self.seconds("call_timeout")
        needed = renew_every + 2 * call + self.retry_max + self.seconds("margin")
        ttl = self.seconds("ttl")
        if needed >= ttl:
            raise InvalidValueError(
                f"ttl of {ttl:g} s is too short: renew_every, two calls, a retry and the margin"
                f" take {needed:g} s, so one failed renewal would end the lease; expected more"
                f" than {needed:g} s, or shorter parts",
                ttl=ttl,
                needed=needed,
            )


def _fraction(value: object, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]
        raise InvalidValueError(
            f"{name} must be a part of ttl between 0 and 1, found {value!r:.200}", value=value
        )
    return float(value)  # type: ignore[arg-type]


def _positive(value: float | timedelta, name: str) -> float:
    seconds = check_seconds(
        value, what=name, minimum=_NEVER_SECONDS, maximum=limits.LEASE_TTL_MAX_SECONDS
    )
    if seconds == _NEVER_SECONDS:
        raise InvalidValueError(f"{name} must be longer than 0 s, found {value!r}", value=value)
    return seconds
