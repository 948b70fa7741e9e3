"""`recurring`: every command, in text and JSON, and how it exits."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, column, table, text

from tests.cli.tools import answer, invoke
from tests.fixtures.sql import engine_for
from threadmill_sa import Every, JobId, Threadmill
from threadmill_sa.stores.sql.schema import UtcDateTime

ODD_NAMES = ["a/b", "two words", "\N{PARTY POPPER} party", "-dash", "[bold]x[/bold]", "quote'\"s"]


@pytest.fixture
def odd_url(sqlite_url: str) -> str:
    with engine_for(sqlite_url) as engine:
        tm = Threadmill(engine)

        @tm.job("pump")
        def pump() -> None: ...

        for name in ODD_NAMES:
            tm.recurring(name, pump, Every(minutes=10))
        tm.register()
        tm.close()
    return sqlite_url


def test_list_shows_every_task(stocked_url: str) -> None:
    value = answer("recurring", "list", "--url", stocked_url)

    assert [task["name"] for task in value] == ["nightly", "outbox-pump"]
    assert value[0]["state"] == "disabled"
    assert value[0]["next_run_at"] is None
    assert datetime.fromisoformat(value[1]["next_run_at"]).tzinfo is not None
    assert value[1]["payload"] == {"batch": 50}


def test_list_in_words_keeps_one_task_on_one_line(url: str) -> None:
    lines = invoke("recurring", "list", "--url", url).stdout.splitlines()

    assert len(lines) == 3
    assert lines[0].split("  ")[0] == "name"
    assert "30 2 * * *" in lines[1]
    assert "Europe/Berlin" in lines[1]
    assert "every 600 s" in lines[2]


def test_list_of_nothing_is_an_empty_list(sqlite_url: str) -> None:
    result = invoke("recurring", "list", "--url", sqlite_url)

    assert (result.exit_code, result.stdout) == (0, "")
    assert answer("recurring", "list", "--url", sqlite_url) == []


def test_show_tells_everything_of_one_task(stocked_url: str) -> None:
    value = answer("recurring", "show", "nightly", "--url", stocked_url)
    words = invoke("recurring", "show", "nightly", "--url", stocked_url).stdout

    assert value["trigger_value"] == "30 2 * * *"
    assert value["nudge_revisions"] == []
    assert "disabled" in words
    assert "30 2 * * *" in words


def test_times_are_shown_in_utc_and_in_the_tasks_zone(url: str) -> None:
    invoke("recurring", "enable", "nightly", "--url", url)

    value = answer("recurring", "show", "nightly", "--url", url)
    words = invoke("recurring", "show", "nightly", "--url", url).stdout

    line = next(line for line in words.splitlines() if line.startswith("next run"))
    fire = datetime.fromisoformat(value["next_run_at"])
    assert fire.utcoffset() == UTC.utcoffset(None)
    assert f"{fire.replace(tzinfo=None)} UTC" in line
    assert "02:30:00+0" in line
    assert "Europe/Berlin" in line


def test_preview_shows_the_next_fires_of_a_paused_task(stocked_url: str) -> None:
    value = answer("recurring", "preview", "nightly", "-n", "3", "--url", stocked_url)
    words = invoke("recurring", "preview", "nightly", "-n", "3", "--url", stocked_url).stdout

    assert value["zone"] == "Europe/Berlin"
    assert len(value["fires"]) == 3
    assert value["fires"] == sorted(value["fires"])
    assert words.count("02:30:00+0") == 3


def test_preview_counts_are_bounded(url: str) -> None:
    assert invoke("recurring", "preview", "nightly", "-n", "0", "--url", url).exit_code == 2
    assert invoke("recurring", "preview", "nightly", "-n", "1001", "--url", url).exit_code == 2


def test_nudge_leaves_a_pending_nudge(stocked_url: str) -> None:
    receipts = answer("recurring", "nudge", "outbox-pump", "--url", stocked_url)

    shown = answer("recurring", "show", "outbox-pump", "--url", stocked_url)
    listed = invoke("recurring", "list", "--url", stocked_url).stdout
    assert shown["nudge_revisions"] == [receipts[0]["revision"]]
    assert "pending" in listed.splitlines()[2]


def test_nudge_of_a_paused_or_unknown_task_is_refused_and_writes_nothing(url: str) -> None:
    paused = invoke("recurring", "nudge", "outbox-pump", "nightly", "--url", url)
    unknown = invoke("recurring", "nudge", "outbox-pump", "nobody", "--url", url)

    assert (paused.exit_code, unknown.exit_code) == (1, 1)
    assert "[TM-R03]" in paused.stderr
    assert "[TM-R01]" in unknown.stderr
    assert answer("recurring", "show", "outbox-pump", "--url", url)["nudge_revisions"] == []


def test_trigger_creates_a_manual_instance(stocked_url: str) -> None:
    value = answer("recurring", "trigger", "nightly", "--url", stocked_url)

    with engine_for(stocked_url) as engine:
        tm = Threadmill(engine)
        job = tm.get_job(JobId(UUID(value["job"])))
        tm.close()
    assert job is not None
    assert job.cron_origin == "manual"
    assert job.cron_task_name == "nightly"


def test_disable_and_enable_say_whether_something_changed(stocked_url: str) -> None:
    arguments = ("--url", stocked_url)

    assert answer("recurring", "disable", "outbox-pump", "nightly", *arguments) == [
        {"task": "outbox-pump", "enabled": False, "changed": True},
        {"task": "nightly", "enabled": False, "changed": False},
    ]
    words = invoke("recurring", "enable", "outbox-pump", *arguments).stdout
    again = invoke("recurring", "enable", "outbox-pump", *arguments).stdout
    assert words == "outbox-pump: enabled\n"
    assert again == "outbox-pump: was enabled already\n"


def test_an_unknown_name_among_several_flips_none(url: str) -> None:
    result = invoke("recurring", "disable", "outbox-pump", "nobody", "--url", url)

    assert result.exit_code == 1
    assert answer("recurring", "show", "outbox-pump", "--url", url)["enabled"] is True


def test_delete_asks_first(stocked_url: str) -> None:
    refused = invoke("recurring", "delete", "nightly", "--url", stocked_url, typed="n\n")
    kept = answer("recurring", "list", "--url", stocked_url)
    agreed = invoke("recurring", "delete", "nightly", "--url", stocked_url, typed="y\n")

    assert refused.exit_code == 1
    assert len(kept) == 2
    assert agreed.exit_code == 0
    assert [task["name"] for task in answer("recurring", "list", "--url", stocked_url)] == [
        "outbox-pump"
    ]


def test_delete_without_an_answer_deletes_nothing(url: str) -> None:
    assert invoke("recurring", "delete", "nightly", "--url", url).exit_code == 1
    assert len(answer("recurring", "list", "--url", url)) == 2


def test_delete_with_yes_does_not_ask(url: str) -> None:
    assert answer("recurring", "delete", "nightly", "--yes", "--url", url) == {
        "task": "nightly",
        "deleted": True,
    }


def test_delete_of_an_unknown_task_asks_nothing(url: str) -> None:
    result = invoke("recurring", "delete", "nobody", "--url", url)

    assert result.exit_code == 1
    assert "[TM-R01]" in result.stderr
    assert "delete recurring" not in result.stderr


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_work_in_every_command(odd_url: str, name: str) -> None:
    target = ("--url", odd_url, "--json")

    for words in (["show"], ["preview"], ["nudge"], ["trigger"], ["disable"], ["enable"]):
        result = invoke("recurring", *words, *target, "--", name)
        assert result.exit_code == 0, result.stderr
    assert invoke("recurring", "delete", "--yes", *target, "--", name).exit_code == 0
    assert name not in [task["name"] for task in answer("recurring", "list", "--url", odd_url)]


def test_odd_names_are_printed_as_they_are(odd_url: str) -> None:
    listed = invoke("recurring", "list", "--url", odd_url).stdout

    for name in ODD_NAMES:
        assert any(line.startswith(f"{name}  ") for line in listed.splitlines())


def test_a_long_name_is_never_cut_or_wrapped(sqlite_url: str) -> None:
    name = "x" * 128
    with engine_for(sqlite_url) as engine:
        tm = Threadmill(engine)
        tm.job("pump")(lambda: None)
        tm.recurring(name, "pump", Every(minutes=10))
        tm.register()
        tm.close()

    lines = invoke("recurring", "list", "--url", sqlite_url).stdout.splitlines()

    assert lines[1].startswith(name)


def test_a_broken_task_is_listed_with_its_reason(url: str) -> None:
    invoke("recurring", "enable", "nightly", "--url", url)
    with engine_for(url) as engine:
        with engine.begin() as connection:
            connection.execute(text("UPDATE threadmill_cron_tasks SET zone = 'Mars/Base'"))
            connection.execute(text("UPDATE threadmill_cron_task_state SET next_run_at = 0"))
        tm = Threadmill(engine)
        tm.tick()
        tm.close()

    shown = answer("recurring", "show", "nightly", "--url", url)
    words = invoke("recurring", "show", "nightly", "--url", url).stdout
    listed = invoke("recurring", "list", "--url", url).stdout
    preview = invoke("recurring", "preview", "nightly", "--url", url)
    assert shown["state"] == "broken"
    assert "broken: " in words
    assert "Mars/Base" in words
    assert "broken" in listed.splitlines()[1]
    assert preview.exit_code == 1
    assert "[TM-V04]" in preview.stderr


@pytest.mark.parametrize("wanted", ["fire", "nudge"])
def test_show_names_the_job_that_holds_a_task_back(stocked_url: str, wanted: str) -> None:
    target = ("--url", stocked_url)
    with engine_for(stocked_url) as engine:
        tm = Threadmill(engine)
        tm.nudge("outbox-pump")
        tm.tick()
        [job] = tm.list_jobs(task="outbox-pump")
        before = answer("recurring", "show", "outbox-pump", *target)
        if wanted == "nudge":
            tm.nudge("outbox-pump")
        else:
            make_due(engine, "outbox-pump")
        tm.tick()
        held = answer("recurring", "show", "outbox-pump", *target)
        words = invoke("recurring", "show", "outbox-pump", *target).stdout
        tm.delete_job(job.id)
        freed = answer("recurring", "show", "outbox-pump", *target)
        tm.close()

    assert before["held_by"] is None
    assert held["state"] == "enabled"
    since = held["held_by"].pop("since")
    assert held["held_by"] == {"job": str(job.id), "state": "ENQUEUED"}
    assert since == (held["nudge_requested_at"] or job.created_at.isoformat())
    line = next(line for line in words.splitlines() if line.startswith("held "))
    moment = datetime.fromisoformat(since).replace(tzinfo=None)
    assert line.split(maxsplit=1)[1] == f"by job {job.id} since {moment} UTC; it is ENQUEUED"
    assert freed["held_by"] is None


def test_a_paused_task_is_not_held(url: str) -> None:
    with engine_for(url) as engine:
        tm = Threadmill(engine)
        tm.nudge("outbox-pump")
        tm.tick()
        tm.nudge("outbox-pump")
        tm.close()
        with engine.begin() as connection:  # a nudge that commits during the pause stays so
            connection.execute(text("UPDATE threadmill_cron_tasks SET enabled = 0"))

    shown = answer("recurring", "show", "outbox-pump", "--url", url)
    assert (shown["state"], len(shown["nudge_revisions"])) == ("disabled", 1)
    assert shown["held_by"] is None


def test_a_damaged_job_does_not_hide_its_task(url: str) -> None:
    with engine_for(url) as engine:
        tm = Threadmill(engine)
        tm.nudge("outbox-pump")
        tm.tick()
        tm.close()
        with engine.begin() as connection:
            connection.execute(text("UPDATE threadmill_jobs SET created_at = 'yesterday'"))

    assert answer("recurring", "show", "outbox-pump", "--url", url)["held_by"] is None


def make_due(engine: Engine, task: str) -> None:
    """Let the next run of `task` lie an hour back, before whatever is stored now."""
    state = table(
        "threadmill_cron_task_state", column("task_name"), column("next_run_at", UtcDateTime)
    )
    past = datetime.now(UTC) - timedelta(hours=1)
    change = state.update().where(state.c.task_name == task).values(next_run_at=past)
    with engine.begin() as connection:
        connection.execute(change)


def test_a_name_with_control_characters_is_refused(url: str) -> None:
    result = invoke("recurring", "show", "a\nb", "--url", url, "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "TM-V02"


def test_a_database_that_does_not_answer_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = invoke(
            "recurring", "list", "--json", "--url", f"postgresql://a@127.0.0.1:{port}/b"
        )

    assert found.exit_code == 1
    assert json.loads(found.stdout)["error"]["code"] == "TM-D02"
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
