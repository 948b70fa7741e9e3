"""A database that has been in use for a while: 100,000 jobs and as many idle tasks."""

from __future__ import annotations

from sqlalchemy import Engine, literal_column, select, text
from sqlalchemy.sql.dml import Insert

from threadmill_sa import Every, Threadmill
from threadmill_sa.stores.sql.schema import Schema

JOBS = TASKS = 100_000


def open_store(engine: Engine) -> Threadmill:
    tm = Threadmill(engine)
    tm.job("relay")(lambda: None)
    tm.recurring("pump", "relay", Every(hours=1))
    tm.register()
    return tm


def fill_postgres(engine: Engine) -> None:
    """Half of the jobs are over, the rest waits: ready, delayed, or running."""
    schema = Schema("public")
    numbers = text("generate_series(1, :count) AS g")
    with engine.begin() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(
                text(f"ALTER TABLE public.{table.name} SET (autovacuum_enabled = false)")
            )
        connection.execute(
            text(
                "INSERT INTO threadmill_jobs (id, state, queue, priority, handler, created_at,"
                " state_at, attempt, max_attempts, attempt_token, scheduled_at, cron_task_name,"
                " heartbeat_at, owner_node_id)"
                " SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid,"
                " CASE WHEN g % 10 < 5 THEN 'SUCCEEDED' WHEN g % 10 < 8 THEN 'ENQUEUED'"
                " WHEN g % 10 < 9 THEN 'SCHEDULED' WHEN g % 1000 = 999 THEN 'PROCESSING'"
                " ELSE 'FAILED' END,"
                " 'queue-' || g % 3, g % 5, 'relay', now(), now() - random() * interval '90 days',"
                " 0, 5, 0,"
                " now() + (g - 50000) * interval '1 second',"
                " CASE WHEN g % 7 = 0 THEN 'idle-' || g END, now() - interval '1 hour',"
                " CASE WHEN g % 1000 = 999 THEN gen_random_uuid() END"
                " FROM generate_series(1, :count) AS g"
            ),
            {"count": JOBS},
        )
        connection.execute(
            text(
                "INSERT INTO threadmill_job_history (job_id, state, at, attempt, reason)"
                " SELECT id, state, state_at, 1, 'engine.exception' FROM threadmill_jobs"
                " WHERE state IN ('SUCCEEDED', 'FAILED')"
            )
        )
        for table, key in ((schema.cron_tasks, "name"), (schema.cron_task_state, "task_name")):
            names = [column.name for column in table.columns]
            copies = [
                literal_column("'idle-' || g") if name == key else table.c[name] for name in names
            ]
            rows = select(*copies).select_from(table, numbers).where(table.c[key] == "pump")
            copying: Insert = table.insert().from_select(names, rows, include_defaults=False)
            connection.execute(copying, {"count": TASKS})
        # In no order, as in life: an index in the order of the table looks cheaper than it is.
        connection.execute(
            text(
                "UPDATE threadmill_cron_task_state SET next_run_at ="
                " next_run_at + random() * interval '1 day' WHERE task_name <> 'pump'"
            )
        )


def fill_sqlite(engine: Engine, *, jobs: int, tasks: int) -> None:
    """The same on a smaller scale; SQLite's planner asks the indexes, not the size."""
    count = "WITH RECURSIVE n(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n WHERE g < {})"
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO threadmill_jobs (id, state, queue, priority, handler, created_at,"
                " state_at, attempt, max_attempts, attempt_token, scheduled_at, cron_task_name)"
                f" {count.format(jobs)}"
                " SELECT printf('%032x', g), CASE WHEN g % 10 < 5 THEN 'SUCCEEDED'"
                " WHEN g % 10 < 8 THEN 'ENQUEUED' ELSE 'SCHEDULED' END, 'queue-' || (g % 3),"
                " g % 5, 'relay', 0, 0, 0, 5, 0, g * 1000000,"
                " CASE WHEN g % 7 = 0 THEN 'idle-' || g END FROM n"
            )
        )
        for table, key in (("cron_tasks", "name"), ("cron_task_state", "task_name")):
            names = [column.name for column in Schema().metadata.tables[f"threadmill_{table}"].c]
            copies = [f"'idle-' || g AS {name}" if name == key else name for name in names]
            connection.execute(
                text(
                    f"INSERT INTO threadmill_{table} ({', '.join(names)})"
                    f" {count.format(tasks)} SELECT {', '.join(copies)}"
                    f" FROM n, threadmill_{table} WHERE {key} = 'pump'"
                )
            )
