"""The contract that every store passes, unchanged.

A store's author binds it: subclass each class of `SUITES` in a test module and give two fixtures,

    store   a fresh, empty store that is ready to use
    plan    the function that decides for one `TaskReading` (the engine's planner)

The tests pass instants explicitly and ask for capabilities, never for a brand. A race that a store
loses once in many runs shows here as a failure that comes and goes: repeat it.
"""

from __future__ import annotations

import pytest

_TOPICS = (
    "attempts", "claims", "deleting", "guard", "jobs", "leases", "nodes", "nudges", "races",
    "readings", "records", "recurring", "retention", "revisions", "steering", "ticks", "tools",
    "whole",
)  # fmt: skip
for _topic in _TOPICS:  # before the imports below: what is imported cannot be rewritten any more
    pytest.register_assert_rewrite(f"{__name__}.{_topic}")

from threadmill_sa.testing.suite.attempts import FinishSuite, ReclaimSuite  # noqa: E402
from threadmill_sa.testing.suite.claims import ClaimSuite, PromoteSuite  # noqa: E402
from threadmill_sa.testing.suite.deleting import (  # noqa: E402
    DeleteInstanceSuite,
    DeleteJobSuite,
)
from threadmill_sa.testing.suite.guard import GuardSuite, NominateSuite  # noqa: E402
from threadmill_sa.testing.suite.jobs import (  # noqa: E402
    CountSuite,
    InsertSuite,
    ListSuite,
)
from threadmill_sa.testing.suite.leases import LeaseRaceSuite, LeaseSuite  # noqa: E402
from threadmill_sa.testing.suite.nodes import NodeSuite  # noqa: E402
from threadmill_sa.testing.suite.nudges import NudgeSuite  # noqa: E402
from threadmill_sa.testing.suite.races import RaceSuite  # noqa: E402
from threadmill_sa.testing.suite.readings import ReadingSuite  # noqa: E402
from threadmill_sa.testing.suite.records import RecordSuite  # noqa: E402
from threadmill_sa.testing.suite.recurring import DeleteSuite, RegisterSuite  # noqa: E402
from threadmill_sa.testing.suite.retention import RetentionSuite  # noqa: E402
from threadmill_sa.testing.suite.revisions import RevisionSuite  # noqa: E402
from threadmill_sa.testing.suite.steering import FlipSuite, TriggerSuite  # noqa: E402
from threadmill_sa.testing.suite.ticks import CommitSuite, FireSuite  # noqa: E402
from threadmill_sa.testing.suite.whole import StoreSuite  # noqa: E402

SUITES = (
    StoreSuite, InsertSuite, ListSuite, CountSuite,
    ClaimSuite, PromoteSuite, FinishSuite, ReclaimSuite,
    DeleteJobSuite, DeleteInstanceSuite, RetentionSuite,
    NodeSuite, LeaseSuite, LeaseRaceSuite,
    RegisterSuite, DeleteSuite, FlipSuite, TriggerSuite,
    NominateSuite, GuardSuite, FireSuite, CommitSuite, ReadingSuite,
    NudgeSuite, RevisionSuite, RaceSuite, RecordSuite,
)  # fmt: skip
