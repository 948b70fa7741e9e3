"""Counts are exact, whatever producers, nodes and folding do at the same time."""

from __future__ import annotations

from functools import partial

from sqlalchemy import text

from tests.promises.shop import Shop, background, in_thread
from threadmill_sa.model.node import HeldJob, NodeInfo


def _truth(shop: Shop) -> tuple[dict[str, int], dict[str, int]]:
    with shop.sql.connect() as connection:
        states = connection.execute(
            text("SELECT state, count(*) FROM threadmill_jobs GROUP BY state")
        )
        queues = connection.execute(
            text(
                "SELECT queue, count(*) FROM threadmill_jobs WHERE state = 'ENQUEUED'"
                " GROUP BY queue"
            )
        )
        return {row[0]: row[1] for row in states}, {row[0]: row[1] for row in queues}


def _told(shop: Shop) -> tuple[dict[str, int], dict[str, int]]:
    counts = shop.store.jobs.counts()
    return (
        {state.value: n for state, n in counts.items() if n},
        dict(shop.store.jobs.queue_depths()),
    )


def test_counts_are_exact_after_producers_workers_and_three_folders_at_once(sql_shop: Shop):
    def produce(seed: int) -> None:
        for number in range(8):
            with sql_shop.transaction() as session:
                queue = f"queue-{(seed + number) % 3}"
                sql_shop.tm.enqueue("mail", number, session=session, queue=queue)
                with session.begin_nested() as savepoint:
                    entries = [("mail", 1), ("mail", 2), ("relay", None)]
                    sql_shop.tm.enqueue_many(entries, session)
                    if number % 2:
                        savepoint.rollback()
                if number % 4 == 3:
                    session.rollback()

    def fold() -> None:
        sql_shop.store.jobs.fold_counts(limit=7)

    def work() -> None:
        node, jobs = sql_shop.claim(limit=5)
        sql_shop.finish(node, jobs)

    with background(fold, fold, fold, work):
        for wait in [in_thread(partial(produce, seed)) for seed in range(6)]:
            wait()

    assert _told(sql_shop) == _truth(sql_shop)
    while sql_shop.store.jobs.fold_counts(limit=1000):
        pass
    assert _told(sql_shop) == _truth(sql_shop)


def test_counts_see_no_delta_of_an_open_transaction_and_each_once_it_commits(pg_shop: Shop):
    with pg_shop.transaction() as session:
        pg_shop.tm.enqueue("mail", 1, session=session)
        assert _told(pg_shop) == ({}, {})
        assert pg_shop.store.jobs.fold_counts(limit=100) == 0

    assert _told(pg_shop) == ({"ENQUEUED": 1}, {"mail": 1})


def test_counts_do_not_drift_when_the_same_rows_are_folded_by_four_at_once(pg_shop: Shop):
    for _ in range(3):
        for number in range(10):
            pg_shop.tm.enqueue("mail", number)
        folders = [in_thread(lambda: pg_shop.store.jobs.fold_counts(limit=100)) for _ in range(4)]
        assert sum(wait() for wait in folders) == 10
        assert _told(pg_shop) == _truth(pg_shop)


def test_counts_write_nothing_for_a_heartbeat(pg_shop: Shop):
    pg_shop.tm.enqueue("mail", 1)
    node, [job] = pg_shop.claim()
    while pg_shop.store.jobs.fold_counts(limit=100):
        pass
    info = NodeInfo(node, host="here", pid=1, queues=None, workers=1)
    pg_shop.store.nodes.beat(info, [HeldJob(job.id, job.attempt_token)])

    assert pg_shop.store.jobs.fold_counts(limit=100) == 0
