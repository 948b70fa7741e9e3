"""A program that forks after it has worked on PostgreSQL, as a server that preloads does."""

from __future__ import annotations

import subprocess
import sys

from sqlalchemy import create_engine

from threadmill_sa import Threadmill

CHILDREN, JOBS = 3, 20

# Each child nudges and enqueues at once with its siblings, while the parent goes on.
_PROGRAM = """
import os, sys, threading, warnings
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from threadmill_sa import Every, Threadmill

warnings.simplefilter("ignore")
children, jobs = int(sys.argv[2]), int(sys.argv[3])
engine = create_engine(sys.argv[1])
tm = Threadmill(engine)
tm.job("work")(lambda: None)
tm.recurring("pump", "work", Every(minutes=10))
tm.register()

heard = threading.Event()

def listen():
    tm.store.wakes.listen(heard.set)
    assert heard.wait(10)  # the listener begins with one

def produce():
    heard.clear()
    for _ in range(jobs // 2):
        with Session(engine) as session, session.begin():
            tm.enqueue("work", session=session)
            tm.nudge("pump", session)
        tm.enqueue("work")
        tm.nudge("pump")
    return heard.wait(10)

listen()
assert produce()
tm.store.leases.watch("a", lambda: None)
lease = tm.store.leases.acquire("a", "parent", ttl_seconds=60, timeout_seconds=5).lease
pids = []
for _ in range(children):
    pid = os.fork()
    if pid == 0:
        engine.dispose(close=False)
        heard.clear()
        listen()
        held = tm.store.leases.acquire("a", "child", ttl_seconds=60, timeout_seconds=5)
        assert held.lease == lease
        assert produce()
        tm.run_until_idle()
        os._exit(0)
    pids.append(pid)
assert produce()
for pid in pids:
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
assert tm.store.leases.renew(lease, ttl_seconds=60, timeout_seconds=5) == "renewed"
tm.run_until_idle()
tm.close()
"""


def test_forked_children_use_nothing_of_their_parent(pg_url: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, pg_url, str(CHILDREN), str(JOBS)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    assert done.returncode == 0, done.stderr
    engine = create_engine(pg_url)
    tm = Threadmill(engine)
    assert len(tm.list_jobs(limit=500, state="SUCCEEDED")) == len(tm.list_jobs(limit=500))
    own = [job for job in tm.list_jobs(limit=500) if job.cron_task_name is None]
    assert len(own) == (CHILDREN + 2) * JOBS
    assert not tm.get_recurring("pump").nudge_revisions
    tm.close()
    engine.dispose()
