"""Growing pauses and one log line per outage, for every loop that talks to the store."""

from __future__ import annotations

import logging

from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model import limits

_log = logging.getLogger(__name__)


def is_outage(error: BaseException) -> bool:
    """True when the same call may well work later, so nothing is decided by this failure."""
    return isinstance(error, StoreUnavailableError | OSError)


class Outage:
    """The state of one activity: well, or failing since its first failure."""

    def __init__(
        self, activity: str, *, longest_seconds: float = limits.OUTAGE_PAUSE_MAX_SECONDS
    ) -> None:
        self._activity = activity
        self._longest = longest_seconds
        self._failures = 0

    @property
    def active(self) -> bool:
        return self._failures > 0

    def failed(self, error: Exception) -> float:
        """Note a failure; returns the seconds to pause. Only the first of an outage is logged."""
        if self._failures == 0:
            # An unavailable store says enough in its message; anything else needs its frames.
            trace = None if is_outage(error) else error
            _log.warning("%s failed, trying again: %s", self._activity, error, exc_info=trace)
        self._failures += 1
        doublings = min(self._failures - 1, 32)
        return min(self._longest, limits.OUTAGE_PAUSE_MIN_SECONDS * 2.0**doublings)

    def ended(self) -> None:
        """Note a success."""
        if self._failures:
            _log.info("%s works again after %d failures", self._activity, self._failures)
            self._failures = 0
