"""`leases`: text and JSON."""

from __future__ import annotations

import os
from datetime import datetime

from tests.cli.tools import answer, invoke, until
from tests.fixtures.sql import engine_for
from threadmill_sa import Threadmill


def test_leases_of_nothing_is_an_empty_list(sqlite_url: str) -> None:
    result = invoke("leases", "--url", sqlite_url)

    assert (result.exit_code, result.stdout) == (0, "")
    assert answer("leases", "--url", sqlite_url) == []


def test_leases_show_holder_term_and_the_rest(sql_url: str) -> None:
    with engine_for(sql_url) as engine:
        tm = Threadmill(engine)
        with tm.lock("a free one"):
            pass
        with tm.lock("settle") as grant:
            free, held = answer("leases", "--url", sql_url)
            lines = invoke("leases", "--url", sql_url).stdout.splitlines()
        tm.close()

    assert (free["name"], free["holder"], free["term"]) == ("a free one", None, 1)
    assert free["remaining_seconds"] == 0
    assert (held["name"], held["holder"], held["term"]) == ("settle", grant.lease.holder, 1)
    assert 0 < held["remaining_seconds"] <= 15
    assert datetime.fromisoformat(held["acquired_at"]).tzinfo is not None
    assert lines[0].split() == ["name", "holder", "term", "acquired", "(UTC)", "remaining"]
    assert lines[1].split()[-1] == "-"
    assert lines[2].split()[-1] == "s"


def test_the_node_that_keeps_house_is_shown(pg_url: str) -> None:
    with engine_for(pg_url) as engine:
        tm = Threadmill(engine)
        with tm.node():
            until(tm.leases, "a holder")
            [held] = answer("leases", "--url", pg_url)
        [free] = answer("leases", "--url", pg_url)
        tm.close()

    assert held["name"] == free["name"] == "threadmill:maintenance"
    assert f":{os.getpid()}:" in held["holder"]
    assert 0 < held["remaining_seconds"] <= 15
    assert (free["holder"], free["term"]) == (None, held["term"])  # given back by the stop
