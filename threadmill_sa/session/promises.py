"""What is recorded of a nudge that waits for a commit, where nudges are recorded.

It is only a log: a failure here is told, and changes neither the write nor what it counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from threadmill_sa.spi.records import NudgeRecords

logger = logging.getLogger(__name__)


def expect_write(records: NudgeRecords, name: str, *, now: datetime | None) -> Mapping[str, int]:
    """Record that a nudge of `name` is about to be written, and return its promise, if any."""
    try:
        return records.expect([name], now=now)
    except Exception:
        logger.exception("the nudge of recurring task %r was not recorded as promised", name)
        return {}


def note_refusal(records: NudgeRecords, name: str, promise: int) -> None:
    """Record that the write of an expected nudge was refused: no run has to follow it."""
    try:
        records.refuse(name, promise)
    except Exception:
        logger.exception(
            "the refusal of the nudge of recurring task %r was not recorded; the check of nudges"
            " may miss a run for it",
            name,
        )
