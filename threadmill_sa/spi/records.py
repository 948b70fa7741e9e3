"""The role that records nudges and runs, for a check that none was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from threadmill_sa.model.job import JobId
from threadmill_sa.model.records import RecordsAudit


class NudgeRecords(Protocol):
    """A log beside the tasks: written where recording is on, read by nothing but an audit.

    A store that records leaves a record of each accepted nudge in the accepting transaction, and
    of each `set_enabled` and `clear_cron_nudge` that found such records. `now` is as in `Jobs`.
    """

    def expect(self, names: Sequence[str], *, now: datetime | None = None) -> Mapping[str, int]:
        """Record, in a transaction of its own, that nudges of `names` are about to be written.

        For those whose caller has committed and cannot be told any more. Unknown and disabled
        names leave no record.
        Returns: for each name that left one, the promise to give to `refuse`.
        """
        ...

    def refuse(self, name: str, promise: int) -> None:
        """Record that the write of an expected nudge was refused, which excuses it.

        Guarantee: nothing else is excused, neither what was accepted in the same transaction nor
        another transaction's promise. No such promise, any more: nothing changes.
        """
        ...

    def record_run(
        self, task: str, job_id: JobId, attempt: int, *, now: datetime | None = None
    ) -> None:
        """Record what is committed as an instance of `task` starts an attempt.

        Guarantee: what the record shows was committed when this call began or ended, so what the
        handler reads after it shows it too.
        """
        ...

    def audit(self, tasks: Sequence[str] | None, *, examples: int) -> RecordsAudit:
        """Judge every record, or those of `tasks`, as committed at one instant.

        Args:
            examples: the most uncovered nudges, and runs of each of their tasks, to return.
        """
        ...

    def clear(self) -> int:
        """Delete all records and return how many nudges were among them.

        Guarantee: a nudge that commits meanwhile stays recorded together with the runs after it.
        """
        ...
