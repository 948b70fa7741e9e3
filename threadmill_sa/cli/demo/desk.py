"""The business: orders, and an outbox of what others must hear about them."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

PENDING, SENT = "pending", "sent"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "demo_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(String(40), unique=True)
    status: Mapped[str] = mapped_column(String(20))
    outbox: Mapped[list[OutboxRow]] = relationship(back_populates="order")

    def tell(self, event: str, sequence: int) -> None:
        """Add an outbox row: `sequence` counts the events of this order from 1."""
        self.outbox.append(OutboxRow(sequence=sequence, event=event))


class OutboxRow(Base):
    """One event to relay.

    The status says what is still to send. A cursor ("id greater than the last one sent") would
    skip the rows of a transaction that drew its ids early and committed late.
    """

    __tablename__ = "demo_outbox"
    __table_args__ = (
        UniqueConstraint("order_id", "sequence"),
        Index(
            "ix_demo_outbox_pending",
            "id",
            postgresql_where=text("status = 'pending'"),
            sqlite_where=text("status = 'pending'"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    sequence: Mapped[int]
    event: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(10), default=PENDING)
    order: Mapped[Order] = relationship(back_populates="outbox")
