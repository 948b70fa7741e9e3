"""Throughput before and after a fault, as one row of a table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path

from tests.processes.fleet import Depot, wait_until
from threadmill_sa import JobId
from threadmill_sa.clock import SystemClock

BASELINE_SECONDS, AFTER_SECONDS = 10.0, 60.0
WARM_UP_SECONDS = 2.0
ROWS: list[Row] = []
TITLE = (
    f"recovery: jobs/s over {BASELINE_SECONDS:g} s before the fault"
    f" and {AFTER_SECONDS:g} s after its end"
)


@dataclass(frozen=True, slots=True)
class Row:
    fault: str
    baseline_per_second: float
    after_per_second: float
    percent: float
    first_seconds: float  # from the end of the fault to the first success
    held_seconds: float  # ... to the end of the last job that ran when it began


class Study:
    """Measures one fault of one depot whose workers are never idle."""

    def __init__(self, depot: Depot, fault: str) -> None:
        self._depot = depot
        self._fault = fault
        self._clock = SystemClock()

    def baseline(self) -> None:
        """Wait for the window before the fault and note what runs at its end."""
        self._began = self._clock.now() + timedelta(seconds=WARM_UP_SECONDS)
        self._struck = self._began + timedelta(seconds=BASELINE_SECONDS)
        wait_until(self._struck)
        self._held = self._depot.held_by()

    def fault_ended(self) -> None:
        self._ended = self._clock.now()

    def after(self) -> None:
        """Wait for the window after the fault."""
        wait_until(self._ended + timedelta(seconds=AFTER_SECONDS))

    def conclude(self) -> Row:
        """The row, once all is done; it joins the table at the end of the run."""
        before = self._depot.finished_between(self._began, self._struck) / BASELINE_SECONDS
        end = self._ended + timedelta(seconds=AFTER_SECONDS)
        after = self._depot.finished_between(self._ended, end) / AFTER_SECONDS
        row = Row(
            fault=self._fault,
            baseline_per_second=before,
            after_per_second=after,
            percent=100 * after / before if before else 0.0,
            first_seconds=self._first(),
            held_seconds=self._last(self._held),
        )
        ROWS.append(row)
        print(f"{row.fault}: {_shown(row)}")  # noqa: T201 - with -s, while the others still run
        return row

    def _first(self) -> float:
        return self._since(self._depot.first_finished_after(self._ended))

    def _last(self, job_ids: Sequence[JobId]) -> float:
        ends = [self._depot.job(job_id).state_at for job_id in job_ids]
        return max(0.0, self._since(max(ends, default=self._ended)))

    def _since(self, instant: datetime | None) -> float:
        return (instant - self._ended).total_seconds() if instant is not None else float("nan")


def lines() -> list[str]:
    """The table as text."""
    head = (
        f"{'fault':<44} {'before/s':>9} {'after/s':>9} {'%':>5} {'first job s':>12} {'held s':>7}"
    )
    return [TITLE, head, *(f"{row.fault:<44} {_shown(row)}" for row in ROWS)]


def _shown(row: Row) -> str:
    return (
        f"{row.baseline_per_second:9.0f} {row.after_per_second:9.0f} {row.percent:5.0f}"
        f" {row.first_seconds:12.2f} {row.held_seconds:7.2f}"
    )


def write(directory: Path) -> None:
    """Write the table where the benchmarks write theirs."""
    directory.mkdir(exist_ok=True)
    with (directory / "recovery.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in ROWS)
