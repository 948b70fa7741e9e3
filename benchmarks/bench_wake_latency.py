"""How long from a nudge's commit in one process to the handler's start in another?

Goal with wakes: p50 <= 5 ms, p99 <= 15 ms. Without: at most one tick and 100 ms.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from benchmarks.common import database, percentile, report
from threadmill_sa import Every, Threadmill

TRIES = {"on": 300, "off": 30}
WAIT_SECONDS = 10.0


def build(url: str, started: Any = None) -> tuple[Any, Threadmill]:
    engine = create_engine(url)
    tm = Threadmill(engine)

    @tm.job("work")
    def work() -> None:
        if started is not None:
            started.send(time.monotonic())

    tm.recurring("pump", work, Every(hours=1))
    return engine, tm


def serve(url: str, started: Connection, control: Connection, *, wakes: bool) -> None:
    engine, tm = build(url, started)
    with tm.node(workers=4, wakes=wakes):
        control.send("ready")
        control.recv()
    tm.close()
    engine.dispose()


def measure(url: str, *, wakes: bool) -> list[float]:
    context = multiprocessing.get_context("spawn")
    started, started_there = context.Pipe(duplex=False)
    control, control_there = context.Pipe()
    process = context.Process(
        target=serve, args=(url, started_there, control_there), kwargs={"wakes": wakes}
    )
    process.start()
    control.recv()
    engine, tm = build(url)
    latencies = []
    for _ in range(TRIES["on" if wakes else "off"]):
        time.sleep(random.uniform(0.02, 0.06))
        with Session(engine) as session, session.begin():
            tm.nudge("pump", session)
        committed = time.monotonic()
        if not started.poll(WAIT_SECONDS):
            sys.exit("a nudged run did not start")
        latencies.append((started.recv() - committed) * 1000)
    control.send("stop")
    process.join(WAIT_SECONDS)
    tm.close()
    engine.dispose()
    return latencies


def main() -> None:
    lines = []
    for wakes in (True, False):
        with database() as url:
            latencies = measure(url, wakes=wakes)
        lines.append(
            {
                "wakes": "on" if wakes else "off",
                "tries": len(latencies),
                "p50_ms": percentile(latencies, 0.5),
                "p95_ms": percentile(latencies, 0.95),
                "p99_ms": percentile(latencies, 0.99),
                "max_ms": max(latencies),
            }
        )
    report("wake_latency", lines)


if __name__ == "__main__":
    main()
