"""The attempts of one node: which hold a slot, and for which the node answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from threadmill_sa.engine.processing.context import Cancellation
from threadmill_sa.model import limits
from threadmill_sa.model.job import ClaimedJob, JobId
from threadmill_sa.model.node import HeldJob


class Attempt:
    """One claimed job on its way to one outcome."""

    __slots__ = ("_lock", "_settled", "cancellation", "job", "lost")

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.cancellation = Cancellation()
        self.lost = False  # the store says that another one holds the job
        self._settled = False
        self._lock = threading.Lock()

    @property
    def settled(self) -> bool:
        """True once an outcome was accepted; its handler may still run."""
        return self._settled

    def settle(self) -> bool:
        """Claim the right to the one outcome; False for everyone but the first."""
        with self._lock:
            if self._settled:
                return False
            self._settled = True
            return True

    @property
    def key(self) -> tuple[JobId, int]:
        return self.job.id, self.job.attempt_token


class AttemptBook:
    """Counts slots and holds, two lives that end apart.

    A slot is taken until the handler has really ended, a timed out thread included. A job is
    held, and kept alive by heartbeats, until the store has taken its outcome. Outcomes that wait
    for the store are bounded by limits.COMPLETE_BATCH_MAX, so an outage stops the claims.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held_max = slots + limits.COMPLETE_BATCH_MAX
        self._running: set[Attempt] = set()
        self._held: dict[tuple[JobId, int], Attempt] = {}
        self._changed = threading.Condition()

    def add(self, attempt: Attempt) -> None:
        """Take a slot and hold the job."""
        with self._changed:
            self._running.add(attempt)
            self._held[attempt.key] = attempt

    def ended(self, attempt: Attempt) -> None:
        """Free the slot: the handler has ended or never began."""
        with self._changed:
            self._running.discard(attempt)
            self._changed.notify_all()

    def forget(self, attempt: Attempt) -> None:
        """Hold the job no longer: its outcome is recorded, lost or given up."""
        with self._changed:
            self._held.pop(attempt.key, None)
            self._changed.notify_all()

    def notify(self) -> None:
        """Let waiters look again, after an attempt was settled or a deadline moved."""
        with self._changed:
            self._changed.notify_all()

    def free(self) -> int:
        """How many jobs may be claimed now."""
        with self._changed:
            return self._free()

    def wait_free(self, seconds: float) -> None:
        """Wait until a job may be claimed, something changes, or the time passes."""
        with self._changed:
            if self._free() == 0:
                self._changed.wait(min(seconds, limits.WAIT_MAX_SECONDS))

    def wait_settled(self, remaining: Callable[[], float]) -> bool:
        """Wait until each running attempt has an outcome; False when `remaining()` is used up.

        `remaining` is asked again at each change, so a second stop can shorten the wait.
        """
        with self._changed:
            while any(not attempt.settled for attempt in self._running):
                left = remaining()
                if left <= 0:
                    return False
                self._changed.wait(min(left, limits.WAIT_MAX_SECONDS))
            return True

    def unsettled(self) -> list[Attempt]:
        """The attempts whose outcome is still open."""
        with self._changed:
            return [attempt for attempt in self._running if not attempt.settled]

    def running(self) -> int:
        """How many slots are taken."""
        with self._changed:
            return len(self._running)

    def holds(self) -> list[HeldJob]:
        """The newest claim of each held job that is not known to be lost."""
        newest: dict[JobId, int] = {}
        with self._changed:
            for (job_id, token), attempt in self._held.items():
                # A job can be held twice for a moment: claimed again before the completer has
                # heard that its last outcome was recorded. Only the newest claim counts.
                if not attempt.lost:
                    newest[job_id] = max(token, newest.get(job_id, token))
        return [HeldJob(job_id, token) for job_id, token in newest.items()]

    def mark_lost(self, beaten: Collection[HeldJob], lost: Collection[JobId]) -> list[Attempt]:
        """Mark the attempts that a heartbeat found lost; returns those newly so and still open.

        An attempt that was settled meanwhile is not lost: its own record ended the hold.
        """
        found = []
        with self._changed:
            for held in beaten:
                attempt = self._held.get((held.job_id, held.attempt_token))
                if held.job_id in lost and attempt and not (attempt.lost or attempt.settled):
                    attempt.lost = True
                    found.append(attempt)
        return found

    def _free(self) -> int:
        return max(0, min(self._slots - len(self._running), self._held_max - len(self._held)))
