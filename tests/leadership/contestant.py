"""A process that contends, leads and writes; started by `test_processes.py`.

It says one JSON object per line: began, trusted (how long the grant may be acted on), ended, and
what became of its write. The instants are those of a clock that all processes of a host share.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from sqlalchemy import create_engine, text

import threadmill_sa.sqlite
from threadmill_sa import Grant, Threadmill, Timings
from threadmill_sa.clock import suspend_proof_seconds
from threadmill_sa.model.lease import FenceVerdict

NAME = "settle"
WRITE = text("INSERT INTO ledger (term, who) VALUES (:term, :who)")

_saying = threading.Lock()


def say(event: str, **facts: Any) -> None:
    line = {"event": event, "at": suspend_proof_seconds(), "pid": os.getpid(), **facts}
    with _saying:
        os.write(1, (json.dumps(line) + "\n").encode())


def main(url: str, ttl: float, mode: str) -> None:
    engine = create_engine(url)
    if url.startswith("sqlite"):
        threadmill_sa.sqlite.configure(engine)
    tm = Threadmill(engine)
    on_acquired = never_return if mode == "stuck" else None
    leader = tm.leader(NAME, timings=Timings(ttl=ttl), on_acquired=on_acquired).start()
    if mode == "fork":
        leader.wait_leader(30)
        if any(os.fork() == 0 for _ in range(2)):  # a child forks no more
            say("child", leads=leader.is_leader, running=leader.running)
            leader.start()
    for grant in leader.terms():
        say("began", term=grant.term, holder=grant.lease.holder, until=grant._trusted_until)
        grant.when_lost(lambda grant=grant: say("ended", term=grant.term, reason=grant.reason))  # type: ignore[misc]
        if mode in {"fenced", "unfenced"}:
            write_in_the_middle(engine, grant, fenced=mode == "fenced")
        while trusts(grant):
            grant.lost.wait(0.02)


def trusts(grant: Grant) -> bool:
    """Look at the grant and say so while it may be acted on; the instant is that of the look."""
    looked_at, lost = suspend_proof_seconds(), grant.lost.is_set()
    if not lost:
        say("trusted", term=grant.term, until=grant._trusted_until, at=looked_at)
    return not lost


def never_return(grant: Grant) -> None:
    """An `on_acquired` that is at work when its process is killed."""
    say("acquiring", term=grant.term)
    threading.Event().wait()


def write_in_the_middle(engine: Any, grant: Grant, *, fenced: bool) -> None:
    """Write, wait for a line on stdin as long as it takes, then fence or not, and commit."""
    refused = False
    with engine.connect() as connection:
        connection.execute(WRITE, {"term": grant.term, "who": grant.lease.holder})
        say("middle", term=grant.term)
        sys.stdin.readline()
        if fenced:
            # Without the look at this process's own clock: it is the database that refuses.
            refused = grant._fencing.fence(connection, grant.lease) is FenceVerdict.LOST
        if refused:
            connection.rollback()
        else:
            connection.commit()
    say("refused" if refused else "written", term=grant.term)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
