"""What does a joined nudge add to a caller's transaction, against one more bare UPDATE?

Goal: at most 1.4 times. Each variant runs whole Session transactions; the cost is what it adds
to the transaction that all share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Column, Integer, MetaData, Table, bindparam, create_engine, update
from sqlalchemy.orm import Session

from benchmarks.common import database, interleave, median, report
from threadmill_sa import Every, Threadmill

TRANSACTIONS = 300
ROUNDS = 15


def main() -> None:
    with database() as url:
        engine = create_engine(url)
        rows = Table(
            "bench_rows", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer)
        )
        rows.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(rows.insert(), [{"id": 1, "n": 0}, {"id": 2, "n": 0}])
        tm = Threadmill(engine)

        @tm.job("work")
        def work() -> None:
            """Never run here."""

        tm.recurring("pump", work, Every(minutes=10))
        tm.register()
        bump = update(rows).where(rows.c.id == bindparam("row")).values(n=rows.c.n + 1)

        def timed(extra: Callable[[Session], object]) -> Callable[[], float]:
            def run() -> float:
                started = time.perf_counter()
                for _ in range(TRANSACTIONS):
                    with Session(engine) as session, session.begin():
                        session.execute(bump, {"row": 1})
                        extra(session)
                elapsed = time.perf_counter() - started
                tm.store.recurring.clear_cron_nudge(
                    "pump", tm.get_recurring("pump").nudge_revisions
                )
                return elapsed / TRANSACTIONS * 1e6

            return run

        figures = interleave(
            {
                "base": timed(lambda _: None),
                "bare_update": timed(lambda session: session.execute(bump, {"row": 2})),
                "joined_nudge": timed(lambda session: tm.nudge("pump", session)),
                "joined_enqueue": timed(lambda session: tm.enqueue(work, session=session)),
            },
            rounds=ROUNDS,
        )
        tm.close()
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
