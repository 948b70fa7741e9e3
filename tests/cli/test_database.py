"""`db`: every command, in text and JSON, and how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.cli.tools import answer, invoke
from threadmill_sa.migrations import HEAD


def test_upgrade_applies_what_is_missing_and_then_nothing(sql_empty_url: str) -> None:
    first = answer("db", "upgrade", "--url", sql_empty_url)
    second = answer("db", "upgrade", "--url", sql_empty_url)

    assert first["applied"][0] == "0001"
    assert first["applied"][-1] == first["head"] == HEAD
    assert second["applied"] == []


def test_upgrade_in_words(sqlite_empty_url: str) -> None:
    first = invoke("db", "upgrade", "--url", sqlite_empty_url)
    second = invoke("db", "upgrade", "--url", sqlite_empty_url)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "applied 0001, 0002" in first.stdout
    assert f"already at {HEAD}" in second.stdout


def test_validate_accepts_the_schema_of_this_release(sql_url: str) -> None:
    assert answer("db", "validate", "--url", sql_url)["valid"] is True
    assert f"valid at {HEAD}" in invoke("db", "validate", "--url", sql_url).stdout


def test_validate_names_the_command_for_a_database_without_schema(pg_empty_url: str) -> None:
    result = invoke("db", "validate", "--url", pg_empty_url)

    assert result.exit_code == 1
    assert "threadmill-sa db upgrade" in result.stderr
    assert "[TM-S01]" in result.stderr
    assert result.stdout == ""


def test_a_failure_in_json_is_one_value_as_well(pg_empty_url: str) -> None:
    result = invoke("db", "validate", "--json", "--url", pg_empty_url)

    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "TM-S01"


def test_current_lists_applied_revisions(sql_url: str) -> None:
    value = answer("db", "current", "--url", sql_url)

    assert value["applied"][-1] == value["head"] == HEAD
    assert HEAD in invoke("db", "current", "--url", sql_url).stdout


def test_current_of_an_empty_database_is_none(pg_empty_url: str) -> None:
    assert answer("db", "current", "--url", pg_empty_url)["applied"] == []
    assert "none" in invoke("db", "current", "--url", pg_empty_url).stdout


def test_sql_prints_what_is_pending_and_executes_nothing(pg_empty_url: str) -> None:
    result = invoke("db", "sql", "--url", pg_empty_url)

    assert result.exit_code == 0
    assert "threadmill_jobs" in result.stdout
    assert answer("db", "current", "--url", pg_empty_url)["applied"] == []


def test_sql_at_head_prints_nothing_on_stdout(sql_url: str) -> None:
    result = invoke("db", "sql", "--url", sql_url)

    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing is missing" in result.stderr
    assert answer("db", "sql", "--url", sql_url) == {"sql": ""}


def test_clean_sql_needs_no_database_and_builds_one(pg_empty_url: str) -> None:
    printed = invoke("db", "sql", "--clean", "--url", "postgresql://nobody@127.0.0.1:1/none")

    assert printed.exit_code == 0
    engine = create_engine(pg_empty_url)
    with engine.begin() as connection:
        connection.connection.driver_connection.execute(  # type: ignore[union-attr]
            "\n".join(
                line
                for line in printed.stdout.splitlines()
                if line.strip() not in {"BEGIN;", "COMMIT;"}
            )
        )
    engine.dispose()
    assert answer("db", "validate", "--url", pg_empty_url)["valid"] is True


def test_clean_sql_for_sqlite_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "none.db"

    assert invoke("db", "sql", "--clean", "--url", f"sqlite:///{path}").exit_code == 0
    assert not path.exists()


def test_a_named_schema_is_used_throughout(pg_empty_url: str) -> None:
    target = ("--url", pg_empty_url, "--schema", "back office")

    assert invoke("db", "upgrade", *target).exit_code == 0
    assert answer("db", "validate", *target)["valid"] is True
    assert answer("recurring", "list", *target) == []
    assert invoke("db", "validate", "--url", pg_empty_url).exit_code == 1


def test_grants_are_printed_for_the_role(pg_url: str) -> None:
    result = invoke("db", "grants", "web shop", "--url", pg_url)

    assert result.exit_code == 0
    assert '"web shop"' in result.stdout
    assert answer("db", "grants", "web shop", "--url", pg_url)["sql"] == result.stdout


def test_grants_on_sqlite_say_that_there_are_no_roles(sqlite_url: str) -> None:
    assert "no roles" in invoke("db", "grants", "web", "--url", sqlite_url).stdout


def test_an_app_in_memory_has_no_schema(shop: Path) -> None:
    (shop / "memory_shop.py").write_text(
        "from threadmill_sa import Threadmill\ntm = Threadmill.in_memory()\n"
    )

    result = invoke("db", "upgrade", "--app", "memory_shop:tm")

    assert result.exit_code == 1
    assert "[TM-D01]" in result.stderr


def test_a_host_revision_is_printed(tmp_path: Path) -> None:
    result = invoke("db", "host-revision", "--revision", "ab12", "--down-revision", "cd34")

    assert result.exit_code == 0
    compile(result.stdout, "revision", "exec")
    assert "revision = 'ab12'" in result.stdout
    assert "down_revision = 'cd34'" in result.stdout


def test_a_host_revision_is_written_into_a_directory_once(tmp_path: Path) -> None:
    arguments = ("db", "host-revision", "--revision", "ab12", "--output", str(tmp_path))

    first = answer(*arguments)
    second = invoke(*arguments)

    assert Path(first["file"]).read_text() == first["text"]
    assert second.exit_code == 1
    assert "cannot be written" in second.stderr


def test_a_host_revision_of_an_unknown_one_is_refused() -> None:
    result = invoke("db", "host-revision", "--to", "9999")

    assert result.exit_code == 1
    assert "[TM-V01]" in result.stderr


@pytest.mark.parametrize("command", ["list", "nudge"])
def test_a_task_command_on_a_database_without_schema_names_the_cure(
    pg_empty_url: str, command: str
) -> None:
    names = [] if command == "list" else ["outbox-pump"]

    result = invoke("recurring", command, *names, "--url", pg_empty_url)

    assert result.exit_code == 1
    assert "threadmill-sa db upgrade" in result.stderr


def test_an_edited_history_is_refused(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE threadmill_schema_history SET checksum = 'edited'"))
    engine.dispose()

    result = invoke("db", "validate", "--url", sqlite_url)

    assert result.exit_code == 1
    assert "[TM-S04]" in result.stderr
