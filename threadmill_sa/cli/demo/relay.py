"""The consuming side: what `threadmill-sa worker` runs in the demo."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import closing
from typing import Any

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from threadmill_sa.app import Threadmill
from threadmill_sa.cli.demo.desk import PENDING, SENT, Order, OutboxRow
from threadmill_sa.cli.demo.journal import Journal
from threadmill_sa.cli.demo.settings import DemoSettings, wall_seconds
from threadmill_sa.engine.processing.context import JobContext
from threadmill_sa.model.retry import Backoff
from threadmill_sa.model.trigger import Every

PUMP = "outbox-pump"
BATCH = 100  # rows delivered and marked together: what a crash between the two repeats
_ATTEMPTS = 1000  # a killed attempt counts, and the demo may kill many


def app() -> Threadmill:
    """The worker's Threadmill; the worker ends when the demo that started it is gone."""
    settings = DemoSettings.from_environment()
    threading.Thread(target=_end_with_parent, name="demo-parent", daemon=True).start()
    return declare(settings.engine(), settings)


def declare(engine: Engine, settings: DemoSettings) -> Threadmill:
    """A Threadmill that knows the pump."""
    tm = settings.threadmill(engine)

    @tm.job(
        "relay-outbox", max_attempts=_ATTEMPTS, backoff=Backoff(initial=0.1, factor=1, maximum=1)
    )
    def relay_outbox(ctx: JobContext) -> int:
        with closing(_Relay(engine, settings, ctx)) as relay:
            return relay.run()

    tm.recurring(PUMP, relay_outbox, Every(minutes=10))
    return tm


class _Relay:
    """One attempt: delivers what is pending until nothing is.

    Delivering and marking are two steps, and no transaction is open while the receiver works. A
    crash between them delivers the batch again: at least once.
    """

    def __init__(self, engine: Engine, settings: DemoSettings, ctx: JobContext) -> None:
        self._engine = engine
        self._receiver_seconds = settings.receiver_seconds
        self._ctx = ctx
        self._sink = Journal(settings.sink)
        self._runs = Journal(settings.runs)

    def run(self) -> int:
        self._note("start")
        sent = 0
        while batch := self._pending():
            self._ctx.check_in()
            for row in batch:
                self._deliver(row)
            if self._receiver_seconds:
                self._ctx.wait_cancelled(self._receiver_seconds)
            self._mark([row.id for row in batch])
            sent += len(batch)
        self._note("end", rows=sent)
        return sent

    def close(self) -> None:
        self._sink.close()
        self._runs.close()

    def _pending(self) -> list[Any]:
        # Rows of one order become visible in the order of their sequence, and so of their ids:
        # whoever adds one has seen the one before committed.
        query = (
            select(OutboxRow.id, Order.number, OutboxRow.sequence, OutboxRow.event)
            .join(OutboxRow.order)
            .where(OutboxRow.status == PENDING)
            .order_by(OutboxRow.id)
            .limit(BATCH)
        )
        with Session(self._engine) as session:
            return list(session.execute(query).all())

    def _deliver(self, row: Any) -> None:
        self._sink.write(
            {
                "order": row.number,
                "sequence": row.sequence,
                "event": row.event,
                "at": wall_seconds(),
                "job": str(self._ctx.id),
            }
        )

    def _mark(self, ids: list[int]) -> None:
        with Session(self._engine) as session, session.begin():
            session.execute(update(OutboxRow).where(OutboxRow.id.in_(ids)).values(status=SENT))

    def _note(self, what: str, **facts: Any) -> None:
        self._runs.write(
            {
                "what": what,
                "job": str(self._ctx.id),
                "attempt": self._ctx.attempt,
                "origin": self._ctx.cron_origin,
                "at": wall_seconds(),
                **facts,
            }
        )


def _end_with_parent() -> None:
    # The demo holds the other end of stdin: it closes however the demo ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
