"""What does a joined nudge add to a caller's transaction, against one more bare UPDATE?

Goal: at most 1.4 times. Each variant runs whole Session transactions; the cost is what it adds
to the transaction that all share. Variants take turns by blocks of transactions, so that what one
leaves behind, such as the thread that sends its wakes, is its own to bear.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import Column, Integer, MetaData, Table, bindparam, create_engine, update
from sqlalchemy.orm import Session

from benchmarks.common import database, interleave, median, report
from threadmill_sa import Every, Threadmill

BLOCK, BLOCKS = 20, 300


def main() -> None:
    with database() as url:
        engine = create_engine(url)
        rows = Table(
            "bench_rows", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer)
        )
        rows.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(rows.insert(), [{"id": 1, "n": 0}, {"id": 2, "n": 0}])
        tm, recording = Threadmill(engine), Threadmill(engine, record_nudges=True)

        @tm.job("work")
        def work() -> None:
            """Never run here."""

        tm.recurring("pump", work, Every(minutes=10))
        tm.register()
        bump = update(rows).where(rows.c.id == bindparam("row")).values(n=rows.c.n + 1)

        def block(extra: Callable[[Session], object]) -> float:
            started = time.perf_counter()
            for _ in range(BLOCK):
                with Session(engine) as session, session.begin():
                    session.execute(bump, {"row": 1})
                    extra(session)
            return (time.perf_counter() - started) / BLOCK * 1e6

        extras: dict[str, Callable[[Session], object]] = {
            "base": lambda _: None,
            "bare_update": lambda session: session.execute(bump, {"row": 2}),
            "joined_nudge": lambda session: tm.nudge("pump", session),
            "recorded_nudge": lambda session: recording.nudge("pump", session),
            "joined_enqueue": lambda session: tm.enqueue(work, session=session),
        }
        figures = interleave(
            {name: partial(block, extra) for name, extra in extras.items()}, rounds=BLOCKS
        )
        tm.close()
        recording.close()
        engine.dispose()

    base = median(figures["base"])
    unit = median(figures["bare_update"]) - base
    report(
        "joined_nudge",
        [
            {
                "variant": name,
                "us_per_transaction": median(values),
                "marginal_us": median(values) - base,
                "ratio_to_bare_update": (median(values) - base) / unit,
            }
            for name, values in figures.items()
        ],
    )


if __name__ == "__main__":
    main()
