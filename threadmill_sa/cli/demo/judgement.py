"""From journals to a verdict: pure functions over what every process wrote down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from threadmill_sa.cli.demo.producer import COMMIT

Line = Mapping[str, Any]
RowKey = tuple[str, int, str]  # order, sequence, event


@dataclass(slots=True)
class Deliveries:
    """The sink, read line by line in the order it was written."""

    first: dict[RowKey, float] = field(default_factory=dict)  # when each row came first
    redelivered: int = 0
    out_of_order: int = 0
    _last: dict[str, int] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        key = (line["order"], line["sequence"], line["event"])
        if key in self.first:
            self.redelivered += 1
            return
        self.first[key] = line["at"]
        expected = self._last.get(line["order"], 0) + 1
        self.out_of_order += line["sequence"] != expected
        self._last[line["order"]] = line["sequence"]


@dataclass(slots=True)
class Commits:
    """What the producers say they did."""

    rows: dict[RowKey, float] = field(default_factory=dict)  # when the commit had returned
    began: list[float] = field(default_factory=list)  # of each commit that carried a nudge
    committed: int = 0
    rolled_back: int = 0
    nudges: int = 0  # accepted in transactions that committed

    def add(self, line: Line) -> None:
        if line["what"] != COMMIT:
            self.rolled_back += 1
            return
        self.committed += 1
        self.nudges += line["nudges"]
        self.began.append(line["began"])
        for order, sequence, event in line["rows"]:
            self.rows[order, sequence, event] = line["committed"]


@dataclass(slots=True)
class Runs:
    """The attempts of the pump, in the order they began."""

    attempts: int = 0
    overlaps: int = 0  # an instance that ran while another was unfinished
    nudged_starts: list[float] = field(default_factory=list)  # first attempts, origin nudge
    _seen: set[str] = field(default_factory=set)
    _current: str = ""
    _ended: bool = True

    def add(self, line: Line) -> None:
        job = line["job"]
        if line["what"] == "end":
            self._ended = self._ended or job == self._current
            return
        self.attempts += 1
        if job != self._current:
            # A finished instance never comes back, and the next waits for its end.
            self.overlaps += job in self._seen or not self._ended
            if job not in self._seen and line["origin"] == "nudge":
                self.nudged_starts.append(line["at"])
        self._seen.add(job)
        self._current, self._ended = job, False


def excess_runs(nudged_starts: Sequence[float], began: Sequence[float]) -> int:
    """How far nudged instances ever ran ahead of the nudges that may have caused them.

    Each instance consumes at least one committed nudge that no other instance consumed. So by
    the time the n-th nudged instance starts, n transactions with a nudge have begun to commit:
    a bound without tolerance, since a commit begins before anyone sees it, and an instance
    starts after it was created. 0 when it holds.
    """
    commits, begun, worst = sorted(began), 0, 0
    for number, start in enumerate(sorted(nudged_starts), start=1):
        while begun < len(commits) and commits[begun] <= start:
            begun += 1
        worst = max(worst, number - begun)
    return worst


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that `share` (0..1) of all do not exceed; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def delays_ms(committed: Mapping[RowKey, float], relayed: Mapping[RowKey, float]) -> list[float]:
    """Commit to relay of each row that arrived; 0 where the relay was first to know."""
    return [max(0.0, relayed[key] - at) * 1000 for key, at in committed.items() if key in relayed]
