"""`demo`: real producers and workers, small; and with its worker killed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

from tests.cli.tools import command, invoke
from threadmill_sa.cli.demo.settings import DemoSettings
from threadmill_sa.cli.demo.supervisor import Supervisor

SMALL = ("--orders", "24", "--producers", "3", "--seed", "11")


def demo(*arguments: str, seconds: float = 110) -> dict[str, Any]:
    done = subprocess.run(
        command("demo", "--json", *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def assert_nothing_lost(report: dict[str, Any]) -> None:
    assert report["faults"] == []
    assert report["lost"] == 0
    assert report["out_of_order"] == 0
    assert report["uncommitted_relayed"] == 0
    assert report["rows_relayed"] == report["rows_committed"] > 24
    assert report["transactions_rolled_back"] > 0
    assert report["nudges_accepted"] >= report["transactions_committed"]
    assert 0 < report["runs"]["nudge"] <= report["transactions_committed"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small demo on SQLite leaves its files."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def small(kept: Path) -> dict[str, Any]:
    """The report of a small demo on SQLite."""
    return demo(*SMALL, "--directory", str(kept))


def test_a_small_demo_on_sqlite_loses_nothing(small: dict[str, Any]) -> None:
    assert_nothing_lost(small)
    assert small["redelivered"] == 0
    assert small["runs"]["schedule"] == 0
    assert small["commit_to_relay_ms"]["p50"] is not None


def test_the_sink_of_a_kept_demo_holds_each_row_once(small: dict[str, Any], kept: Path) -> None:
    sink = next(kept.glob("threadmill-demo-*/sink.jsonl"))

    assert len(sink.read_text().splitlines()) == small["rows_committed"]


def test_a_small_demo_on_a_given_postgresql_loses_nothing_and_leaves_nothing(
    pg_url: str,
) -> None:
    report = demo(*SMALL, "--url", pg_url)

    assert_nothing_lost(report)
    engine = create_engine(pg_url)
    schemas = inspect(engine).get_schema_names()
    engine.dispose()
    assert not [name for name in schemas if name.startswith("threadmill_demo")]


def test_a_demo_starts_its_own_postgresql() -> None:
    report = demo("--postgres", "--orders", "6", "--producers", "1", "--seed", "1")

    assert report["faults"] == []
    assert "postgresql" in report["store"]


def test_a_killed_worker_loses_nothing_and_runs_nothing_unasked(small: dict[str, Any]) -> None:
    report = demo(*SMALL, "--kills", "2")

    for figure in ("rows_committed", "transactions_committed", "transactions_rolled_back"):
        assert report[figure] == small[figure]  # the same seed
    assert_nothing_lost(report)
    assert report["kills"] == 2
    assert report["worker_starts"] == 3
    assert report["excess_runs"] == 0
    assert report["overlapping_runs"] == 0


def test_a_worker_that_is_stopped_before_its_banner_has_not_failed(tmp_path: Path) -> None:
    settings = DemoSettings(url=f"sqlite:///{tmp_path / 'desk.db'}", directory=str(tmp_path))
    supervisor = Supervisor(settings, ["--workers", "1"])

    supervisor.start()  # as after a kill that comes last

    assert supervisor.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_twenty_kills_on_sqlite_lose_nothing() -> None:
    report = demo("--kills", "20", "--seed", "20", seconds=500)

    assert_nothing_lost(report)
    assert report["kills"] == 20


@pytest.mark.long
@pytest.mark.timeout(600)
def test_twenty_kills_on_postgresql_lose_nothing(pg_url: str) -> None:
    report = demo("--kills", "20", "--seed", "20", "--url", pg_url, seconds=500)

    assert_nothing_lost(report)
    assert report["kills"] == 20


def test_a_demo_in_words_ends_with_its_verdict() -> None:
    done = subprocess.run(
        command("demo", "--orders", "6", "--producers", "1"),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1].split() == ["verdict", "ok"]
    assert "relayed" in done.stderr


def test_a_demo_that_lost_something_exits_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "threadmill_sa.cli.commands.demo._run", lambda *_, **__: {"ok": False, "lost": 1}
    )

    result = invoke("demo", "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["lost"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "postgresql://x@127.0.0.1/x", "--postgres"),
        ("--url", "sqlite:///some.db"),
        ("--url", "nonsense"),
        ("--producers", "0"),
        ("--kills", "-1"),
    ],
)
def test_a_demo_that_is_asked_wrongly_exits_with_two(arguments: tuple[str, ...]) -> None:
    assert invoke("demo", *arguments).exit_code == 2


def test_a_server_that_does_not_answer_fails_in_one_line() -> None:
    result = invoke("demo", "--url", "postgresql://nobody@127.0.0.1:1/none")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ")
