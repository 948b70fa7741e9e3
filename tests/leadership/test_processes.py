"""Real processes that are killed, stopped, forked and cut off from their store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, make_url, text

from tests.fixtures.servers import EMBEDDED, Server
from tests.leadership.contestant import NAME
from threadmill_sa import Threadmill
from threadmill_sa.clock import suspend_proof_seconds

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60.0
TTL = 3.0
# ttl, jitter, a call, and what a busy machine takes.
TAKEOVER_SECONDS = TTL * 1.2 + 10.0

News = dict[str, Any]


class Contestant:
    """One process and everything it has said."""

    def __init__(self, url: str, mode: str, ttl: float = TTL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.leadership.contestant", url, str(ttl), mode],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.news: list[News] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.news.append(json.loads(line))
                self._changed.notify_all()

    def wait(self, event: str, *, after: int = 0, term: int | None = None) -> News:
        """Return the first news of `event` from position `after` on."""

        def found() -> News | None:
            for each in self.news[after:]:
                if each["event"] == event and term in {None, each.get("term")}:
                    return each
            return None

        with self._changed:
            assert self._changed.wait_for(found, WAIT_SECONDS), f"{event}: {self.news[-5:]}"
            news = found()
        assert news is not None
        return news

    def began(self) -> int:
        """The latest term that it said to have begun."""
        return max((each["term"] for each in self.news if each["event"] == "began"), default=0)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        for each in {news["pid"] for news in self.news} | {self.process.pid}:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def contest(url: str, *modes: str, ttl: float = TTL) -> Iterator[list[Contestant]]:
    """Processes, one for each mode; whatever they said is checked at the end."""
    contestants: list[Contestant] = []
    try:
        for mode in modes:
            contestants.append(Contestant(url, mode, ttl))  # noqa: PERF401 - each is ended below
        yield contestants
    finally:
        for each in contestants:
            each.end()
    check_that_one_led_at_most([news for each in contestants for news in each.news])


def check_that_one_led_at_most(news: list[News]) -> None:
    """No term is begun while an earlier one may still be acted on, by the clock they share."""
    terms: dict[int, tuple[float, float]] = {}
    holders: dict[int, set[str]] = {}
    for each in news:
        if each["event"] == "began":
            terms[each["term"]] = (each["at"], each["until"])
            holders.setdefault(each["term"], set()).add(each["holder"])
    for each in news:
        if each["event"] == "trusted":
            began, until = terms[each["term"]]
            terms[each["term"]] = (began, max(until, each["until"]))
    for each in news:
        if each["event"] == "ended":
            began, until = terms[each["term"]]
            terms[each["term"]] = (began, min(until, each["at"]))
    assert terms
    assert all(len(found) == 1 for found in holders.values())
    ordered = [terms[term] for term in sorted(terms)]
    for (_, until), (began, _) in pairwise(ordered):
        assert began >= until, ordered


def leader_of(contestants: list[Contestant], *, after: int = 0) -> Contestant:
    """Wait until one of them has begun a term later than `after`."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS * 100)):
        for each in contestants:
            if each.began() > after:
                return each
        pause.wait(0.01)
    raise AssertionError(f"nobody leads: {[each.news[-3:] for each in contestants]}")


def ledger(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT term FROM ledger")).scalars())


def _kill_and_follow(url: str) -> None:
    with contest(url, *["lead"] * 3) as contestants:
        leader = leader_of(contestants)
        term = leader.began()
        leader.signal(signal.SIGKILL)
        killed_at = suspend_proof_seconds()
        others = [each for each in contestants if each is not leader]

        follower = leader_of(others, after=term)

        news = next(each for each in follower.news if each.get("term", 0) > term)
        assert news["at"] - killed_at < TAKEOVER_SECONDS


def test_a_killed_leader_is_followed_within_a_lease(pg_url: str) -> None:
    _kill_and_follow(pg_url)


@pytest.mark.long
def test_a_killed_leader_is_followed_within_a_lease_on_sqlite(sqlite_url: str) -> None:
    _kill_and_follow(sqlite_url)


def test_a_leader_that_is_killed_inside_on_acquired_is_followed_like_any_other(
    pg_url: str,
) -> None:
    with contest(pg_url, *["stuck"] * 2) as contestants:
        leader = leader_of(contestants)
        term = leader.wait("acquiring")["term"]
        [other] = [each for each in contestants if each is not leader]
        leader.signal(signal.SIGKILL)
        killed_at = suspend_proof_seconds()

        news = other.wait("acquiring")

        assert news["term"] == term + 1
        assert news["at"] - killed_at < TAKEOVER_SECONDS
    for each in contestants:  # each term was told once
        assert [news["event"] for news in each.news].count("acquiring") == 1


@pytest.mark.long
def test_a_frozen_leader_does_not_take_itself_for_one_when_it_thaws(sql_url: str) -> None:
    with contest(sql_url, *["lead"] * 2) as contestants:
        frozen = leader_of(contestants)
        [other] = [each for each in contestants if each is not frozen]
        term = frozen.began()
        frozen.signal(signal.SIGSTOP)
        other.wait("began", term=term + 1)
        frozen.signal(signal.SIGCONT)

        ended = frozen.wait("ended", term=term)

        assert ended["reason"] == "expired"
        said_after = [each for each in frozen.news if each["at"] > ended["at"]]
        assert all(each.get("term") != term for each in said_after)


@pytest.mark.parametrize("mode", ["fenced", pytest.param("unfenced", marks=pytest.mark.long)])
def test_a_leader_that_was_frozen_in_the_middle_of_a_write(
    pg_url: str, pg_engine: Engine, mode: str
) -> None:
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (term integer, who varchar(255))"))
    with contest(pg_url, mode) as [frozen]:
        term = frozen.wait("middle")["term"]
        frozen.signal(signal.SIGSTOP)
        with contest(pg_url, "lead") as [other]:
            assert other.wait("began")["term"] > term
            frozen.go_on()
            frozen.signal(signal.SIGCONT)

            frozen.wait("refused" if mode == "fenced" else "written", term=term)

    # Without the fence the old leader's write lands after the new leader has begun.
    assert ledger(pg_engine) == ([] if mode == "fenced" else [term])


def test_forked_children_contend_as_somebody_else(pg_url: str) -> None:
    """Three processes with one host name, and all that was random drawn before the fork."""
    with contest(pg_url, "fork") as [family]:
        parent = family.wait("began")
        children = [family.wait("child")]
        children.append(family.wait("child", after=family.news.index(children[0]) + 1))
        leaders = [parent]
        for _ in children:
            os.kill(leaders[-1]["pid"], signal.SIGKILL)
            leaders.append(family.wait("began", term=leaders[-1]["term"] + 1))
        # The child of a killed process belongs to nobody here.
        os.kill(leaders[-1]["pid"], signal.SIGKILL)

    assert [(child["leads"], child["running"]) for child in children] == [(False, False)] * 2
    assert {each["pid"] for each in leaders} == {each["pid"] for each in [parent, *children]}
    assert len({each["holder"] for each in leaders}) == 3


def _outage(postgres_servers: Callable[[str], Server], *, seconds: float, ttl: float) -> None:
    server = postgres_servers(EMBEDDED)
    with server.fresh_database() as url, contest(url, *["lead"] * 2, ttl=ttl) as contestants:
        first = leader_of(contestants)
        term = first.began()
        name = make_url(url).database
        with server.admin() as admin:
            admin.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            admin.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    f" WHERE datname = '{name}'"
                )
            )
        ended = first.wait("ended", term=term)
        threading.Event().wait(seconds)
        assert [each.began() for each in contestants if each is not first] == [0]
        with server.admin() as admin:
            admin.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))

        leader = leader_of(contestants, after=term)

        assert ended["reason"] == "expired"
        assert leader.began() == term + 1


@pytest.mark.long
def test_a_store_that_is_down_for_long_is_led_again_when_it_is_back(
    postgres_servers: Callable[[str], Server],
) -> None:
    _outage(postgres_servers, seconds=1.0, ttl=TTL)


@pytest.mark.long
def test_a_store_that_is_down_for_a_minute_is_led_again_when_it_is_back(
    postgres_servers: Callable[[str], Server],
) -> None:
    _outage(postgres_servers, seconds=60.0, ttl=5.0)


@pytest.mark.long
def test_a_crowd_that_is_killed_stopped_and_resumed_has_one_leader_at_most(
    pg_url: str, pg_engine: Engine
) -> None:
    with contest(pg_url, *["lead"] * 3) as contestants:
        last = 0
        for number in range(20):
            leader = leader_of(contestants, after=last)
            last = leader.began()
            if number % 4 == 3:
                leader.end()
                contestants.append(Contestant(pg_url, "lead"))
                contestants.remove(leader)
                continue
            leader.signal(signal.SIGSTOP)
            others = [each for each in contestants if each is not leader]
            leader_of(others, after=last)
            leader.signal(signal.SIGCONT)
    [view] = Threadmill(pg_engine).leases()
    assert view.name == NAME
    assert view.term >= 20
