"""The producing side: one process that takes orders and nudges the pump.

The parent starts several with `python -m threadmill_sa.cli.demo.producer NUMBER`.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from threadmill_sa.cli.demo.desk import Order
from threadmill_sa.cli.demo.journal import Journal
from threadmill_sa.cli.demo.relay import PUMP
from threadmill_sa.cli.demo.settings import DemoSettings, wall_seconds

COMMIT, ROLLBACK = "commit", "rollback"
_TRANSACTIONS = 2  # of an order: placed, paid
_ROLLED_BACK, _RELEASED, _UNDONE = 0.10, 0.20, 0.20  # shares of the orders


class ChangedMindError(Exception):
    """The customer leaves: the transaction rolls back."""


@dataclass(slots=True)
class Work:
    """What one transaction did, for the journal."""

    rows: list[tuple[str, int, str]] = field(default_factory=list)  # order, sequence, event
    nudges: int = 0


class Producer:
    """Takes orders: some are rolled back, some use savepoints, the rest are plain."""

    def __init__(self, settings: DemoSettings, number: int) -> None:
        self._engine = settings.engine(writes_first=True)
        self._threadmill = settings.threadmill(self._engine)
        self._journal = Journal(settings.commits(number))
        self._random = random.Random(f"{settings.seed}-{number}")  # noqa: S311 - no secret
        self._number = number
        self._count = len(range(number, settings.orders, settings.producers))
        self._interval = settings.spread_seconds / max(1, _TRANSACTIONS * self._count)
        self._due = 0.0
        self._waiting = threading.Event()  # never set

    def run(self) -> None:
        """Take this producer's share of the orders."""
        self._due = wall_seconds()
        for index in range(self._count):
            self._take(f"P{self._number}-{index:06d}")
        self._threadmill.close()
        self._engine.dispose()

    def _take(self, number: str) -> None:
        kind = self._random.random()
        if kind < _ROLLED_BACK:
            self._transaction(lambda session, work: self._leave(session, work, number))
            return
        self._transaction(lambda session, work: self._place(session, work, number, kind))
        self._transaction(lambda session, work: self._pay(session, work, number))

    def _transaction(self, business: Callable[[Session, Work], None]) -> None:
        """One transaction of the desk: rows and nudge commit together, or neither does."""
        work = Work()
        self._wait_for_customer()
        try:
            with Session(self._engine) as session, session.begin():
                business(session, work)
                self._nudge(session, work)
                began = wall_seconds()
        except ChangedMindError:
            self._journal.write({"what": ROLLBACK, "nudges": work.nudges})
            return
        committed = wall_seconds()
        self._journal.write(
            {
                "what": COMMIT,
                "rows": work.rows,
                "nudges": work.nudges,
                "began": began,
                "committed": committed,
            }
        )

    def _wait_for_customer(self) -> None:
        """Keep to a random timetable; a desk that is late does not rest."""
        self._due += self._random.uniform(0, 2 * self._interval)
        self._waiting.wait(max(0.0, self._due - wall_seconds()))

    def _nudge(self, session: Session, work: Work) -> None:
        self._threadmill.nudge(PUMP, session)
        work.nudges += 1

    def _place(self, session: Session, work: Work, number: str, kind: float) -> None:
        order = Order(number=number, status="placed")
        session.add(order)
        self._tell(order, work, "placed")
        if kind < _ROLLED_BACK + _RELEASED:
            with session.begin_nested():  # released: commits with the rest
                self._tell(order, work, "gift-wrapped")
                self._nudge(session, work)
        elif kind < _ROLLED_BACK + _RELEASED + _UNDONE:
            self._undo(session, number)

    def _undo(self, session: Session, number: str) -> None:
        """A savepoint whose row and nudge must never be heard of, inside a good transaction."""
        savepoint, undone = session.begin_nested(), Work()
        order = Order(number=f"{number}-undone", status="placed")
        session.add(order)
        self._tell(order, undone, "undone")
        self._nudge(session, undone)
        savepoint.rollback()

    def _leave(self, session: Session, work: Work, number: str) -> None:
        order = Order(number=number, status="placed")
        session.add(order)
        self._tell(order, work, "left")
        with session.begin_nested():  # released, and still gone with the transaction
            self._tell(order, work, "left-again")
            self._nudge(session, work)
        raise ChangedMindError

    def _pay(self, session: Session, work: Work, number: str) -> None:
        order = session.scalars(select(Order).where(Order.number == number)).one()
        order.status = "paid"
        self._tell(order, work, "paid")

    def _tell(self, order: Order, work: Work, event: str) -> None:
        sequence = len(order.outbox) + 1
        order.tell(event, sequence)
        work.rows.append((order.number, sequence, event))


def main() -> None:
    """Get ready, wait for the parent's word and take orders."""
    producer = Producer(DemoSettings.from_environment(), int(sys.argv[1]))
    if sys.stdin.readline():  # nothing when the parent is gone
        producer.run()


if __name__ == "__main__":
    main()
