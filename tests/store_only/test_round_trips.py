"""What calls send to SQL databases: statements, and which of them need BEGIN and COMMIT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from tests.promises.shop import PUMP, Shop
from threadmill_sa import Threadmill


@contextmanager
def sent(engine: Engine) -> Iterator[list[tuple[str, bool]]]:
    """Statements, each as its first word and whether it ran inside BEGIN and COMMIT."""
    heard: list[tuple[str, bool]] = []

    def note(conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        first = statement.split(maxsplit=1)[0]
        heard.append((first, not conn.connection.dbapi_connection.autocommit))

    event.listen(engine, "before_cursor_execute", note)
    yield heard
    event.remove(engine, "before_cursor_execute", note)


def test_a_nudged_run_is_five_statements_without_begin_and_commit(pg_engine: Engine):
    shop = Shop(Threadmill(pg_engine))
    shop.nudge()
    assert shop.settle() == 1  # the connections are warm
    shop.nudge()

    with sent(pg_engine) as heard:
        shop.tick()
        node, jobs = shop.claim()
        shop.finish(node, jobs)

    assert [job.cron_task_name for job in jobs] == [PUMP]
    nominate, read, commit, claim, finish = heard
    assert (nominate, read) == (("SELECT", False), ("SELECT", False))
    assert (commit, claim, finish) == (("WITH", False), ("WITH", False), ("UPDATE", False))
    shop.tm.close()


def test_a_claim_from_several_queues_is_one_transaction(pg_engine: Engine):
    shop = Shop(Threadmill(pg_engine))
    node, _ = shop.claim()

    with sent(pg_engine) as heard:
        shop.store.jobs.claim(node, queues=["relay", "mail"], handlers=["relay"], limit=5)

    assert heard == [("WITH", True), ("WITH", True)]
    shop.tm.close()


def test_an_idle_tick_is_one_statement(pg_engine: Engine):
    shop = Shop(Threadmill(pg_engine))
    shop.tick()

    with sent(pg_engine) as heard:
        shop.tick()

    assert heard == [("SELECT", False)]
    shop.tm.close()


def test_a_listing_reads_no_payload_and_no_result(sql_engine: Engine):
    shop = Shop(Threadmill(sql_engine))
    shop.tm.enqueue("mail", 1)
    shop.run_all()
    statements: list[str] = []
    event.listen(sql_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    [listed] = shop.tm.list_jobs(state="SUCCEEDED", queue="mail")

    [statement] = [each for each in statements if each.startswith("SELECT")]
    assert "payload" not in statement
    assert "result" not in statement
    statements.clear()
    assert shop.tm.get_job(listed.id)
    assert any("payload" in each and "result" in each for each in statements)
    shop.tm.close()
