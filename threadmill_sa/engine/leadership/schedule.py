"""When a leader's work is due: pure arithmetic on numbered slots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self

from threadmill_sa.engine.leadership.choices import parse_choice
from threadmill_sa.model import limits
from threadmill_sa.model.names import check_integer, check_seconds


class Strategy(StrEnum):
    """From when the period is counted."""

    FIXED_RATE = "fixed_rate"  # on a grid that begins at the acquisition + initial_delay
    FIXED_DELAY = "fixed_delay"  # a period after the end of the run before


class MissedTicks(StrEnum):
    """What becomes of fixed-rate ticks that a long run or a paused process has missed."""

    ONCE = "once"  # one late run for all of them, then back on the grid
    SKIP = "skip"  # none: the next one on the grid
    REPLAY = "replay"  # one run each, at most `max_replay`, the oldest are dropped


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """How often leader-gated work runs; `rate` and `delay` make one. Durations in seconds.

    Args:
        initial_delay: from each acquisition to the first run of the term, >= 0.
        period: limits.INTERVAL_MIN_SECONDS at least.
        missed, max_replay: for FIXED_RATE.
    Raises: InvalidValueError.
    """

    strategy: Strategy | str
    initial_delay: float | timedelta
    period: float | timedelta
    missed: MissedTicks | str = MissedTicks.ONCE
    max_replay: int = 10

    def __post_init__(self) -> None:
        lowest, highest = limits.INTERVAL_MIN_SECONDS, limits.INTERVAL_MAX_SECONDS
        values = {
            "strategy": parse_choice(Strategy, self.strategy, what="strategy"),
            "missed": parse_choice(MissedTicks, self.missed, what="missed"),
            "initial_delay": check_seconds(
                self.initial_delay, what="initial_delay", minimum=0.0, maximum=highest
            ),
            "period": check_seconds(self.period, what="period", minimum=lowest, maximum=highest),
        }
        check_integer(
            self.max_replay, what="max_replay", minimum=1, maximum=limits.TICK_REPLAY_MAX
        )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def rate(
        cls,
        *,
        period: float | timedelta,
        initial_delay: float | timedelta = 0.0,
        missed: MissedTicks | str = MissedTicks.ONCE,
        max_replay: int = 10,
    ) -> Self:
        """Return a FIXED_RATE schedule."""
        return cls(Strategy.FIXED_RATE, initial_delay, period, missed, max_replay)

    @classmethod
    def delay(cls, *, period: float | timedelta, initial_delay: float | timedelta = 0.0) -> Self:
        """Return a FIXED_DELAY schedule."""
        return cls(Strategy.FIXED_DELAY, initial_delay, period)


@dataclass(frozen=True, slots=True)
class Due:
    """The next run of a term. Slots are counted from 0 and only grow."""

    slot: int
    at: float  # local seconds
    missed: int = 0  # slots between the last run and this one that nobody ran


class Grid:
    """The runs of one term, by a local clock that goes on."""

    def __init__(self, config: ScheduleConfig, began: float, last_end: float | None) -> None:
        self._config = config
        self._period = _number(config.period)
        self._origin = began + _number(config.initial_delay)
        if config.strategy is Strategy.FIXED_DELAY and last_end is not None:
            self._origin = max(self._origin, last_end + self._period)

    def first(self) -> Due:
        return Due(0, self._origin)

    def settled(self, due: Due, now: float) -> Due:
        """Return what to run now that `due` was not run before `now`, maybe a later slot."""
        latest = self._latest(now)
        if self._config.strategy is Strategy.FIXED_DELAY or latest <= due.slot:
            return due
        match self._config.missed:
            case MissedTicks.ONCE:
                slot = latest
            case MissedTicks.SKIP:
                slot = latest + 1
            case _:
                slot = max(due.slot, latest - self._config.max_replay + 1)
        return Due(slot, self._at(slot), due.missed + slot - due.slot)

    def following(self, done: Due, now: float) -> Due:
        """Return what comes after `done`, whose run has ended at `now`."""
        slot = done.slot + 1
        if self._config.strategy is Strategy.FIXED_DELAY:
            return Due(slot, now + self._period)
        due = Due(slot, self._at(slot))
        latest = self._latest(now)
        if self._config.missed is MissedTicks.SKIP and latest >= slot:
            return Due(latest + 1, self._at(latest + 1), latest + 1 - slot)
        return self.settled(due, now)

    def _at(self, slot: int) -> float:
        return self._origin + slot * self._period

    def _latest(self, now: float) -> int:
        """The last slot whose time has come; it never decides alone which slot is next."""
        return int((now - self._origin) // self._period)


def _number(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value
