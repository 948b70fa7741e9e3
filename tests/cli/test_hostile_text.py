"""No text of a handler, a payload, a row or an argument steers the operator's terminal."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

import threadmill_sa.cli
from tests.cli.tools import answer, invoke, running_worker
from tests.fixtures.sql import engine_for
from threadmill_sa import Every, Threadmill
from threadmill_sa.cli.output import emit_table

# Clears the screen, names the window, the same by C1, rings, deletes, and turns the text around.
HOSTILE = "a\x1b[2J\x1b]0;owned\x07\x9b2J\x7f\r\x85\u202eb\u2066c"
SHOWN = r"a\x1b[2J\x1b]0;owned\x07\x9b2J\x7f\r\x85\u202eb\u2066c"
BIDI = "mail\u202egpj"  # what a name may hold
STEERING = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}

# Every column of text that a command shows, as if a hand or another program had written it.
COLUMNS = {
    "threadmill_jobs": ("handler", "queue", "payload", "result"),
    "threadmill_job_history": ("message", "reason"),
    "threadmill_cron_tasks": (
        "trigger_kind",
        "trigger_value",
        "zone",
        "handler",
        "payload",
        "queue",
        "missed_run_policy",
    ),
    "threadmill_cron_task_state": ("broken_reason",),
    "threadmill_leases": ("holder",),
}


@pytest.fixture
def ids(sqlite_url: str) -> list[str]:
    """A failed job, and a succeeded one without its result."""
    with engine_for(sqlite_url) as engine:
        tm = Threadmill(engine)

        class Odd:
            def __repr__(self) -> str:
                return HOSTILE

        @tm.job("fails", max_attempts=1)
        def fails() -> None:
            raise ValueError(HOSTILE)

        @tm.job("odd")
        def odd() -> object:
            return {HOSTILE: Odd()}

        made = [str(tm.enqueue(fails)), str(tm.enqueue(odd))]
        tm.run_until_idle()
        tm.recurring(BIDI, fails, Every(minutes=10))
        tm.register()
        with tm.lock(BIDI):
            pass
        tm.close()
    return made


def steering(told: str) -> list[str]:
    """What no listing may hold."""
    return [ascii(char) for char in told if ord(char) in STEERING - {0x0A, 0x09}]


def overwrite(url: str, table: str, column: str) -> None:
    with engine_for(url) as engine, engine.begin() as connection:
        changed = connection.execute(text(f"UPDATE {table} SET {column} = :it"), {"it": HOSTILE})
        assert changed.rowcount, table


def test_a_failure_that_carries_escapes_is_shown_with_them_written_out(
    sqlite_url: str, ids: list[str]
) -> None:
    words = invoke("jobs", "show", ids[0], "--url", sqlite_url).stdout

    assert f"ValueError: {SHOWN}" in words
    assert steering(words) == []
    told = answer("jobs", "show", ids[0], "--url", sqlite_url)["history"][0]["message"]
    assert told.startswith(f"ValueError: {HOSTILE}")


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, names in COLUMNS.items() for column in names]
)
def test_no_stored_text_steers_the_terminal_in_any_listing(
    sqlite_url: str, ids: list[str], table: str, column: str
) -> None:
    overwrite(sqlite_url, table, column)

    told = [
        invoke(*words, "--url", sqlite_url)
        for words in (
            ["jobs", "list"],
            *(["jobs", "show", each] for each in ids),
            *(["jobs", "delete", each] for each in ids),
            ["jobs", "list", "--task", HOSTILE],
            ["jobs", "list", "--queue", HOSTILE],
            ["recurring", "list"],
            ["recurring", "show", BIDI],
            ["recurring", "preview", BIDI],
            ["recurring", "nudge", BIDI],
            ["recurring", "trigger", BIDI],
            ["recurring", "disable", BIDI],
            ["recurring", "enable", BIDI],
            ["leases"],
            ["recurring", "delete", BIDI],
            ["recurring", "delete", BIDI, "--yes"],
        )
    ]

    assert [steering(each.output) for each in told] == [[]] * len(told)
    assert any(SHOWN in each.stdout for each in told)


def test_a_name_that_turns_text_around_is_written_out(sqlite_url: str, ids: list[str]) -> None:
    del ids
    lines = invoke("recurring", "list", "--url", sqlite_url).stdout.splitlines()
    nudged = invoke("recurring", "nudge", BIDI, "--url", sqlite_url)

    assert lines[1].startswith(r"mail\u202egpj  every")
    assert nudged.stdout == "mail\\u202egpj: nudged\n"
    assert answer("recurring", "list", "--url", sqlite_url)[0]["name"] == BIDI


@pytest.mark.parametrize(
    "words",
    [
        ["recurring", "show", HOSTILE, "--url", "sqlite:///shop.db"],
        ["recurring", "list", "--url", f"sqlite:///{HOSTILE}.db"],
        ["recurring", "list", "--url", f"sqlite:///{HOSTILE}/a.db", "--traceback"],
        ["recurring", "list", "--url", HOSTILE],
        ["recurring", "list", "--url", f"{HOSTILE}://host/name"],
        ["recurring", "list", "--url", f"redis://host/{HOSTILE}"],
        ["recurring", "list", "--url", f"postgresql+{HOSTILE}://host/name"],
        ["recurring", "list", "--url", f"postgresql://127.0.0.1:1/{HOSTILE}", "--traceback"],
        ["recurring", "list", "--app", HOSTILE],
        ["recurring", "list", "--app", f"{HOSTILE}:tm"],
        ["recurring", "list", "--app", f"json:{HOSTILE}"],
        ["recurring", "list", f"--{HOSTILE}"],
        ["recurring", "list", HOSTILE],
        ["worker", "json:loads", HOSTILE],
        ["recurring", HOSTILE],
        ["recurring", "preview", "x", "-n", HOSTILE],
        ["jobs", "show", HOSTILE],
        ["jobs", "list", "--state", HOSTILE],
        ["db", "grants", HOSTILE, "--url", f"sqlite:///{HOSTILE}.db"],
        ["db", "host-revision", "--output", f"/dev/null/{HOSTILE}"],
        ["db", "host-revision", "--to", HOSTILE],
        ["worker", HOSTILE],
        ["worker", "json:loads", "--queues", HOSTILE],
        ["demo", "--url", HOSTILE],
        [HOSTILE],
        [f"--{HOSTILE}"],
    ],
    ids=lambda words: ascii(" ".join(words)),
)
def test_an_argument_is_written_out_in_the_refusal_that_repeats_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    found = invoke(*words)

    assert found.exit_code in {1, 2}
    assert found.stderr
    assert steering(found.output) == []


def test_what_the_applications_own_code_raises_is_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("hostile_shop.py").write_text(f"raise ValueError({HOSTILE!r})\n")

    found = invoke("recurring", "list", "--app", "hostile_shop:tm")

    assert found.exit_code == 1
    assert found.stderr.count(f"ValueError: {SHOWN}\n") == 2  # the trace, and the last line
    assert steering(found.output) == []


def test_a_drawn_table_writes_cells_out_as_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")

    emit_table((BIDI, "b"), [("c\nd", "\x1b[2J")])

    told = capsys.readouterr().out
    assert r"mail\u202egpj" in told
    assert r"\x1b[2J" in told
    assert r"c\nd" in told
    assert steering(told) == []


@pytest.mark.parametrize("name", ["fails", "odd"])
def test_a_log_line_writes_out_what_a_handler_left_behind(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    class Odd:
        def __getattribute__(self, name: str) -> object:
            raise ValueError(HOSTILE)

    with engine_for(sqlite_url) as engine:
        tm = Threadmill(engine)

        @tm.job(name, max_attempts=1)
        def handler() -> object:
            if name == "fails":
                raise ValueError(HOSTILE)
            return Odd()

        tm.enqueue(handler)
        with caplog.at_level(logging.WARNING):
            tm.run_until_idle()
        tm.close()

    [line] = [each.getMessage() for each in caplog.records if name in each.getMessage()]
    assert SHOWN in line
    assert steering(line) == []


def test_the_log_of_a_worker_writes_out_whatever_its_jobs_log(
    shop_directory: Path, sqlite_url: str
) -> None:
    with (shop_directory / "shop.py").open("a") as file:
        file.write(f"""

@tm.job("says")
def says(ctx: JobContext) -> None:
    ctx.log("said: %s", {HOSTILE!r})
""")
    with engine_for(sqlite_url) as engine:
        tm = Threadmill(engine)
        tm.job("says")(lambda: None)
        tm.enqueue("says")
        tm.close()

    with running_worker(shop_directory, sqlite_url, "shop:tm") as worker:
        worker.wait_for_words("said: ")
        worker.wait_for_words("c\n")
        worker.process.terminate()
        assert worker.exit_code() == 0, worker.err

    assert f"said: {SHOWN}" in worker.err
    assert steering(worker.err) == []


def test_one_module_writes_for_the_whole_command_line() -> None:
    root = Path(threadmill_sa.cli.__file__).parent
    writers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "click.echo"}
    }

    assert writers == {"__init__.py", "output.py"}  # the first one says what to install


def test_json_holds_the_text_as_it_is_and_only_ascii(sqlite_url: str, ids: list[str]) -> None:
    overwrite(sqlite_url, "threadmill_jobs", "queue")

    result = invoke("jobs", "show", ids[0], "--json", "--url", sqlite_url)

    assert json.loads(result.stdout)["queue"] == HOSTILE
    assert result.stdout.isascii()
    assert steering(result.stdout) == []
