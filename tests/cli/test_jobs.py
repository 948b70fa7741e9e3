"""`jobs`: list, show and delete, in text and JSON, and how they exit."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from tests.cli.tools import answer, invoke
from tests.fixtures.sql import engine_for
from threadmill_sa import Threadmill

NOBODY = UUID(int=7)


@pytest.fixture
def ids(sql_url: str) -> list[str]:
    """A job that has failed, one that has succeeded, and one that waits."""
    with engine_for(sql_url) as engine:
        tm = Threadmill(engine)

        @tm.job("mail", queue="mail", max_attempts=1)
        def mail(number: int) -> int:
            return 10 // number

        made = [tm.enqueue(mail, 0), tm.enqueue(mail, 5)]
        tm.run_until_idle()
        made.append(tm.enqueue(mail, 2, queue="bulk"))
        tm.close()
    return [str(each) for each in made]


def test_list_shows_the_newest_first(sql_url: str, ids: list[str]) -> None:
    found = answer("jobs", "list", "--url", sql_url)
    lines = invoke("jobs", "list", "-n", "2", "--url", sql_url).stdout.splitlines()

    assert [job["id"] for job in found] == ids[::-1]
    assert [job["state"] for job in found] == ["ENQUEUED", "SUCCEEDED", "FAILED"]
    assert lines[0].split("  ")[0] == "id"
    assert [line.split()[:4] for line in lines[1:]] == [
        [ids[2], "ENQUEUED", "mail", "bulk"],
        [ids[1], "SUCCEEDED", "mail", "mail"],
    ]


def test_list_takes_filters(sql_url: str, ids: list[str]) -> None:
    def listed(*options: str) -> list[str]:
        return [job["id"] for job in answer("jobs", "list", *options, "--url", sql_url)]

    assert listed("--state", "failed") == ids[:1]
    assert listed("--queue", "bulk") == ids[2:]
    assert listed("--task", "nobody") == []
    assert listed("-n", "1") == ids[2:]
    assert invoke("jobs", "list", "--state", "done", "--url", sql_url).exit_code == 2


def test_list_of_nothing_is_an_empty_list(sqlite_url: str) -> None:
    result = invoke("jobs", "list", "--url", sqlite_url)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no job matches\n")
    assert answer("jobs", "list", "--url", sqlite_url) == []


def test_show_tells_everything_of_one_job(sql_url: str, ids: list[str]) -> None:
    failed, succeeded = (answer("jobs", "show", each, "--url", sql_url) for each in ids[:2])
    words = invoke("jobs", "show", ids[0], "--url", sql_url).stdout

    assert (succeeded["payload"], succeeded["result"]) == (5, 2)
    assert failed["history"][0]["reason"] == "engine.exception"
    assert "FAILED since" in words
    assert "1 of 1" in words
    assert "engine.exception  ZeroDivisionError" in words


def test_delete_takes_a_job_away_once(sql_url: str, ids: list[str]) -> None:
    first = invoke("jobs", "delete", ids[2], "--url", sql_url)
    again = invoke("jobs", "delete", ids[2], "--url", sql_url)

    assert (first.exit_code, first.stdout) == (0, f"{ids[2]}: deleted\n")
    assert (again.exit_code, again.stdout) == (0, f"{ids[2]}: was deleted already\n")
    assert answer("jobs", "delete", ids[1], "--url", sql_url) == {"job": ids[1], "deleted": True}
    assert answer("jobs", "delete", ids[1], "--url", sql_url)["deleted"] is False
    assert answer("jobs", "show", ids[2], "--url", sql_url)["state"] == "DELETED"


@pytest.mark.parametrize("command", ["show", "delete"])
def test_an_unknown_job_fails(sqlite_url: str, command: str) -> None:
    result = invoke("jobs", command, str(NOBODY), "--url", sqlite_url, "--json")

    assert result.exit_code == 1
    told = json.loads(result.stdout)["error"]
    assert str(NOBODY) in told["message"]
    assert told["job_id"] == str(NOBODY)


def test_a_running_job_is_not_deleted(sqlite_url: str) -> None:
    with engine_for(sqlite_url) as engine:
        tm = Threadmill(engine)

        @tm.job("looks-at-itself")
        def looks(text: str) -> int:
            del text
            [job] = tm.list_jobs()
            return invoke("jobs", "delete", str(job.id), "--url", sqlite_url).exit_code

        job_id = tm.enqueue(looks, "x")
        tm.run_until_idle()
        job = tm.get_job(job_id)
        tm.close()

    assert job is not None
    assert job.result == "1"


def test_what_is_no_id_is_refused_by_the_command_line(sqlite_url: str) -> None:
    result = invoke("jobs", "show", "seven", "--url", sqlite_url)

    assert result.exit_code == 2
    assert "'seven'" in result.stderr
