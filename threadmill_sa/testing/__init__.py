"""For tests of programs that use Threadmill, and for authors of stores.

`threadmill_sa.testing.suite` is the contract that every store passes; it needs pytest and is
imported on its own.
"""

from __future__ import annotations

from threadmill_sa.testing.checker import (
    CoverageReport,
    assert_every_nudge_covered,
    clear_nudge_records,
)
from threadmill_sa.testing.clock import ManualClock
from threadmill_sa.testing.commits import treat_commit_as_final

__all__ = [
    "CoverageReport",
    "ManualClock",
    "assert_every_nudge_covered",
    "clear_nudge_records",
    "treat_commit_as_final",
]
