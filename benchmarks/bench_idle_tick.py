"""Does an idle tick cost more with 100,000 recurring tasks than with 10?

Goal: at most 1.5 times.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import create_engine, text

from benchmarks.common import database, interleave, median, report
from threadmill_sa import Every, Threadmill

SIZES = (10, 100_000)
TICKS = 200
ROUNDS = 9

_CLONE_TASKS = """
INSERT INTO threadmill_cron_tasks (name, trigger_kind, trigger_value, zone, handler, payload,
  queue, priority, missed_run_policy, timeout_seconds, max_attempts, enabled, epoch, anchor_at,
  created_at, updated_at)
SELECT 'task-' || n, trigger_kind, trigger_value, zone, handler, payload, queue, priority,
  missed_run_policy, timeout_seconds, max_attempts, enabled, epoch, anchor_at, created_at,
  updated_at FROM threadmill_cron_tasks, generate_series(1, :count) AS n WHERE name = 'model'
"""
_CLONE_STATES = """
INSERT INTO threadmill_cron_task_state (task_name, next_run_at, timing_fingerprint)
SELECT 'task-' || n, next_run_at + n * interval '1 second', timing_fingerprint
FROM threadmill_cron_task_state, generate_series(1, :count) AS n WHERE task_name = 'model'
"""


def idle_ticks(url: str, size: int) -> Callable[[], float]:
    engine = create_engine(url)
    tm = Threadmill(engine)

    @tm.job("work")
    def work() -> None:
        """Never due here."""

    tm.recurring("model", work, Every(days=1))
    tm.register()
    with engine.begin() as connection:
        connection.execute(text(_CLONE_TASKS), {"count": size - 1})
        connection.execute(text(_CLONE_STATES), {"count": size - 1})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))

    def run() -> float:
        started = time.perf_counter()
        for _ in range(TICKS):
            assert tm.tick() == []
        return (time.perf_counter() - started) / TICKS * 1e6

    return run


def main() -> None:
    with database() as small, database() as large:
        figures = interleave(
            {
                str(size): idle_ticks(url, size)
                for size, url in zip(SIZES, (small, large), strict=True)
            },
            rounds=ROUNDS,
        )
    base = median(figures[str(SIZES[0])])
    report(
        "idle_tick",
        [
            {
                "tasks": size,
                "us_per_tick": median(figures[str(size)]),
                "ratio": median(figures[str(size)]) / base,
            }
            for size in SIZES
        ],
    )


if __name__ == "__main__":
    main()
