"""The demo's verdict is a pure function: each kind of fault is seen."""

from __future__ import annotations

from typing import Any

import pytest

from threadmill_sa.cli.demo.journal import Journal, Tail
from threadmill_sa.cli.demo.judgement import (
    Commits,
    Deliveries,
    Runs,
    delays_ms,
    excess_runs,
    percentile,
)
from threadmill_sa.cli.demo.report import make_report, report_rows
from threadmill_sa.cli.demo.run import Outcome, Progress
from threadmill_sa.cli.demo.settings import DemoSettings

SETTINGS = DemoSettings(url="sqlite:///x.db", directory="/nowhere")


def delivered(order: str, sequence: int, at: float = 1.0) -> dict[str, Any]:
    return {"order": order, "sequence": sequence, "event": "e", "at": at, "job": "j"}


def committed(order: str, sequence: int, at: float = 0.5) -> dict[str, Any]:
    return {
        "what": "commit",
        "rows": [[order, sequence, "e"]],
        "nudges": 1,
        "began": at - 0.1,
        "committed": at,
    }


def run(what: str, job: str, at: float = 1.0, origin: str = "nudge") -> dict[str, Any]:
    return {"what": what, "job": job, "origin": origin, "attempt": 1, "at": at}


def outcome(**changes: Any) -> Outcome:
    progress = Progress(Deliveries(), Commits(), Runs(), started=0.0)
    for sequence in (1, 2):
        progress.commits.add(committed("A", sequence))
        progress.deliveries.add(delivered("A", sequence))
    progress.runs.add(run("start", "j"))
    progress.runs.add(run("end", "j"))
    values: dict[str, Any] = {
        "progress": progress,
        "committed_rows": {("A", 1, "e"), ("A", 2, "e")},
        "origins": {"nudge": 1},
        "recoveries": [],
        "producer_codes": [0],
        "worker_code": 0,
        "unexpected_exits": [],
        "store": "sqlite:///x.db",
        "seconds": 2.0,
    }
    return Outcome(**(values | changes))


def test_a_run_without_faults_is_ok() -> None:
    report = make_report(SETTINGS, outcome())

    assert report["ok"] is True
    assert report["faults"] == []
    assert (report["rows_committed"], report["rows_relayed"], report["lost"]) == (2, 2, 0)
    assert report["runs"] == {"schedule": 0, "nudge": 1, "manual": 0}
    assert report["nudges_per_run"] == 2.0
    assert report["commit_to_relay_ms"]["p50"] == 500.0
    assert dict(report_rows(report))["verdict"] == "ok"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"committed_rows": {("A", 1, "e"), ("A", 2, "e"), ("B", 1, "e")}}, "lost"),
        ({"committed_rows": {("A", 1, "e")}}, "uncommitted_relayed"),
        ({"origins": {"nudge": 3}}, "excess_runs"),
        ({"producer_codes": [0, 1]}, "failed_processes"),
        ({"worker_code": 1}, "failed_processes"),
        ({"unexpected_exits": [1]}, "failed_processes"),
    ],
)
def test_each_fault_fails_the_run_by_name(changes: dict[str, Any], fault: str) -> None:
    report = make_report(SETTINGS, outcome(**changes))

    assert report["ok"] is False
    assert report["faults"] == [fault]
    assert dict(report_rows(report))["verdict"] == f"FAILED: {fault}"


def test_two_unfinished_instances_in_one_sample_are_a_fault() -> None:
    seen = outcome()
    seen.progress.most_unfinished = 2

    assert make_report(SETTINGS, seen)["faults"] == ["overlapping_runs"]


def test_a_row_that_overtakes_another_of_its_order_is_out_of_order() -> None:
    deliveries = Deliveries()

    for line in (delivered("A", 1), delivered("B", 1), delivered("A", 3), delivered("A", 2)):
        deliveries.add(line)

    assert deliveries.out_of_order == 2


def test_a_repeated_row_is_redelivered_and_not_out_of_order() -> None:
    deliveries = Deliveries()

    for line in (delivered("A", 1, 1.0), delivered("A", 2), delivered("A", 1, 9.0)):
        deliveries.add(line)

    assert (deliveries.redelivered, deliveries.out_of_order) == (1, 0)
    assert deliveries.first["A", 1, "e"] == 1.0


def test_a_rolled_back_transaction_counts_no_nudge() -> None:
    commits = Commits()

    commits.add({"what": "rollback", "nudges": 2})
    commits.add(committed("A", 1))

    assert (commits.committed, commits.rolled_back, commits.nudges) == (1, 1, 1)


def test_an_instance_that_starts_before_the_last_has_ended_overlaps() -> None:
    runs = Runs()

    for line in (run("start", "a"), run("start", "b"), run("end", "b")):
        runs.add(line)

    assert runs.overlaps == 1


def test_an_instance_that_comes_back_after_another_overlaps() -> None:
    runs = Runs()

    for job in ("a", "b", "a"):
        runs.add(run("start", job))
        runs.add(run("end", job))

    assert runs.overlaps == 1


def test_a_killed_attempt_that_runs_again_does_not_overlap() -> None:
    runs = Runs()

    for line in (run("start", "a"), run("start", "a"), run("end", "a"), run("start", "b")):
        runs.add(line)

    assert (runs.overlaps, runs.attempts, len(runs.nudged_starts)) == (0, 3, 2)


@pytest.mark.parametrize(
    ("starts", "began", "excess"),
    [
        ([], [], 0),
        ([2.0], [1.0], 0),
        ([2.0, 3.0], [1.0, 1.5], 0),
        ([2.0, 3.0], [1.0], 1),
        ([2.0, 3.0], [1.0, 9.0], 1),  # enough in all, but too late for the second run
        ([0.5], [1.0], 1),
    ],
)
def test_runs_never_outnumber_the_nudges_before_them(
    starts: list[float], began: list[float], excess: int
) -> None:
    assert excess_runs(starts, began) == excess


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_the_nearest_rank(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_a_percentile_of_nothing_is_none() -> None:
    assert percentile([], 0.5) is None


def test_a_relay_that_knows_of_a_commit_first_is_no_time_travel() -> None:
    assert delays_ms({("A", 1, "e"): 2.0}, {("A", 1, "e"): 1.9}) == [0.0]


def test_a_tail_waits_for_the_end_of_a_line(tmp_path: Any) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.read() == []
    journal = Journal(path)
    journal.write({"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": ')

    assert tail.read() == [{"n": 1}]
    with path.open("ab") as file:
        file.write(b"2}\n")
    assert tail.read() == [{"n": 2}]
    journal.close()
