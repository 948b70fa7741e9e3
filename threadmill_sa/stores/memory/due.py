"""Which recurring tasks want a look at an instant, without a scan of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush

_SLACK = 64  # stale entries that are not worth a rebuild


@dataclass(slots=True)
class DueIndex:
    """Names by the instant at which each wants a look; idle names cost nothing per question."""

    _at: dict[str, datetime] = field(default_factory=dict)
    _heap: list[tuple[datetime, str]] = field(default_factory=list)  # entries may be stale
    _ripe: set[str] = field(default_factory=set)  # taken off the heap, their instant was reached

    def put(self, name: str, at: datetime | None) -> None:
        """Look at `name` from `at` on, or never."""
        if self._at.get(name) == at:
            return
        self._ripe.discard(name)
        if at is None:
            del self._at[name]
            return
        self._at[name] = at
        heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [(at, name) for name, at in self._at.items() if name not in self._ripe]
            heapify(self._heap)

    def names(self, now: datetime) -> set[str]:
        """Every name whose instant is not after `now`."""
        while self._heap and self._heap[0][0] <= now:
            at, name = heappop(self._heap)
            if self._at.get(name) == at:
                self._ripe.add(name)
        # Asked again, since an injected clock may stand before an earlier question.
        return {name for name in self._ripe if self._at[name] <= now}
