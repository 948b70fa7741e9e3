"""Do producers that nudge the same task slow each other down?

Each transaction inserts a row, then nudges (or inserts a second plain row instead), then works
10 ms before it commits. Goal: at least 0.9 of the plain rate to 32 producers, 0.8 at 64.
A node in another process ticks and runs what they ask for, as it would in life.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert
from sqlalchemy.orm import Session

from benchmarks.common import database, interleave, median, node_process, report
from threadmill_sa import Every, Threadmill

PRODUCERS = (1, 8, 32, 64)
WORK_SECONDS = 0.010
MEASURE_SECONDS = 1.5
ROUNDS = 7


def build(url: str) -> Threadmill:
    tm = Threadmill(create_engine(url))

    @tm.job("work")
    def work() -> None:
        """What a nudge starts; the producers are what is measured."""

    tm.recurring("pump", work, Every(minutes=10))
    return tm


def main() -> None:
    with database() as url, node_process(build, url):
        engine = create_engine(url, pool_size=max(PRODUCERS) + 10, max_overflow=0)
        rows = Table(
            "bench_outbox",
            MetaData(),
            Column("id", Integer, primary_key=True),
            Column("n", Integer),
        )
        rows.metadata.create_all(engine)
        add = insert(rows).values(n=1)
        tm = Threadmill(engine)

        def rate(producers: int, second: Callable[[Session], object]) -> Callable[[], float]:
            def produce(stop: threading.Event, done: list[int], index: int) -> None:
                while not stop.is_set():
                    with Session(engine) as session, session.begin():
                        session.execute(add)
                        second(session)
                        time.sleep(WORK_SECONDS)
                    done[index] += 1

            def run() -> float:
                stop, done = threading.Event(), [0] * producers
                threads = [
                    threading.Thread(target=produce, args=(stop, done, index))
                    for index in range(producers)
                ]
                started = time.perf_counter()
                for thread in threads:
                    thread.start()
                time.sleep(MEASURE_SECONDS)
                stop.set()
                for thread in threads:
                    thread.join()
                return sum(done) / (time.perf_counter() - started)

            return run

        lines = []
        for producers in PRODUCERS:
            figures = interleave(
                {
                    "plain": rate(producers, lambda session: session.execute(add)),
                    "nudge": rate(producers, lambda session: tm.nudge("pump", session)),
                },
                rounds=ROUNDS,
            )
            ratios = [
                nudged / plain
                for nudged, plain in zip(figures["nudge"], figures["plain"], strict=True)
            ]
            lines.append(
                {
                    "producers": producers,
                    "plain_per_second": median(figures["plain"]),
                    "nudge_per_second": median(figures["nudge"]),
                    "ratio": median(ratios),
                }
            )
        tm.close()
        engine.dispose()
    report("producers", lines)


if __name__ == "__main__":
    main()
