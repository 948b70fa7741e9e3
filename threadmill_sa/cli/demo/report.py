"""The demo's verdict, as one JSON object and as a table."""

from __future__ import annotations

from typing import Any

from threadmill_sa.cli.demo.judgement import delays_ms, excess_runs, percentile
from threadmill_sa.cli.demo.run import Outcome
from threadmill_sa.cli.demo.settings import DemoSettings
from threadmill_sa.model.recurring import CronOrigin

_FAULTS = (
    "lost",
    "out_of_order",
    "uncommitted_relayed",
    "excess_runs",
    "overlapping_runs",
    "failed_processes",
)


def make_report(settings: DemoSettings, outcome: Outcome) -> dict[str, Any]:
    """Everything the demo promises to show; `ok` is the verdict, `faults` says why not."""
    seen = outcome.progress
    relayed = seen.deliveries.first
    origins = {origin.value: outcome.origins.get(origin.value, 0) for origin in CronOrigin}
    delays = delays_ms(seen.commits.rows, relayed)
    overlaps = seen.runs.overlaps + max(0, seen.most_unfinished - 1)
    report: dict[str, Any] = {
        "store": outcome.store,
        "seconds": round(outcome.seconds, 1),
        "seed": settings.seed,
        "producers": settings.producers,
        "transactions_committed": seen.commits.committed,
        "transactions_rolled_back": seen.commits.rolled_back,
        "rows_committed": len(outcome.committed_rows),
        "rows_relayed": len(relayed.keys() & outcome.committed_rows),
        "lost": len(outcome.committed_rows - relayed.keys()),
        "redelivered": seen.deliveries.redelivered,
        "out_of_order": seen.deliveries.out_of_order,
        "uncommitted_relayed": len(relayed.keys() - outcome.committed_rows),
        "nudges_accepted": seen.commits.nudges,
        "runs": origins,
        "attempts": seen.runs.attempts,
        "nudges_per_run": _ratio(seen.commits.nudges, origins[CronOrigin.NUDGE]),
        "commit_to_relay_ms": {
            "p50": _rounded(percentile(delays, 0.50)),
            "p95": _rounded(percentile(delays, 0.95)),
            "p99": _rounded(percentile(delays, 0.99)),
            "max": _rounded(percentile(delays, 1.0)),
        },
        # A nudged instance consumes a committed nudge of its own; see `judgement.excess_runs`.
        "excess_runs": max(
            excess_runs(seen.runs.nudged_starts, seen.commits.began),
            origins[CronOrigin.NUDGE] - seen.commits.committed,
            0,
        ),
        "overlapping_runs": overlaps,
        "kills": seen.kills,
        "worker_starts": seen.worker_starts,
        "recovery_seconds": {
            "p50": _rounded(percentile(outcome.recoveries, 0.50)),
            "max": _rounded(percentile(outcome.recoveries, 1.0)),
        },
        "failed_processes": sum(code != 0 for code in outcome.producer_codes)
        + len(outcome.unexpected_exits)
        + (outcome.worker_code != 0),
    }
    report["faults"] = [name for name in _FAULTS if report[name]]
    report["ok"] = not report["faults"]
    return report


def report_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people, one line for each figure."""
    runs, delay, recovery = (
        report["runs"],
        report["commit_to_relay_ms"],
        report["recovery_seconds"],
    )
    by_origin = ", ".join(f"{count} {origin}" for origin, count in runs.items())
    rows = [
        ("store", report["store"]),
        ("seconds", f"{report['seconds']:g} (seed {report['seed']})"),
        (
            "transactions",
            _transactions(report),
        ),
        ("rows committed", str(report["rows_committed"])),
        ("rows relayed", str(report["rows_relayed"])),
        ("lost", str(report["lost"])),
        ("redelivered", str(report["redelivered"])),
        ("out of order", str(report["out_of_order"])),
        ("relayed uncommitted", str(report["uncommitted_relayed"])),
        ("nudges accepted", str(report["nudges_accepted"])),
        ("runs", f"{by_origin} ({report['attempts']} attempts)"),
        ("nudges per run", _shown(report["nudges_per_run"])),
        (
            "commit to relay, ms",
            "  ".join(f"{name} {_shown(value)}" for name, value in delay.items()),
        ),
        ("runs without a nudge", str(report["excess_runs"])),
        ("runs side by side", str(report["overlapping_runs"])),
    ]
    if report["kills"]:
        rows.append(("worker killed", f"{report['kills']} times"))
        rows.append(
            (
                "recovery, s",
                "  ".join(f"{name} {_shown(value)}" for name, value in recovery.items()),
            )
        )
    verdict = "ok" if report["ok"] else f"FAILED: {', '.join(report['faults'])}"
    return [*rows, ("verdict", verdict)]


def _transactions(report: dict[str, Any]) -> str:
    return (
        f"{report['transactions_committed']} committed by {report['producers']} producers,"
        f" {report['transactions_rolled_back']} rolled back"
    )


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 2) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
