"""The states of a job and the moves between them."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands. Stored as the upper-case word."""

    AWAITING = "AWAITING"  # waits for another job
    SCHEDULED = "SCHEDULED"  # waits for its time; promoted to ENQUEUED when due
    ENQUEUED = "ENQUEUED"  # ready; a node claims it
    PROCESSING = "PROCESSING"  # held by one node under an attempt token
    PROCESSED = "PROCESSED"  # reserved
    SUCCEEDED = "SUCCEEDED"  # the handler returned
    FAILED = "FAILED"  # the last attempt failed; nothing retries it by itself
    DELETED = "DELETED"  # taken away by an operator
    QUARANTINED = "QUARANTINED"  # its stored form cannot be run; never retried


UNFINISHED = (JobState.AWAITING, JobState.SCHEDULED, JobState.ENQUEUED, JobState.PROCESSING)
"""What the pile-up guard counts: an instance in one of these holds back the next."""

FINISHED = (JobState.SUCCEEDED, JobState.FAILED, JobState.DELETED, JobState.QUARANTINED)
"""What nothing moves on by itself: a job in one of these is kept for its time and then removed."""
