"""Schema history and store identity.

phase: expand
breaking: no
lock: none on existing tables
time for 1M rows: no rows are touched
why: every later revision records itself in the history; the identity tells a restored copy apart.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import record, target_schema

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INSTANT = sa.TIMESTAMP(timezone=True).with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    schema = target_schema()
    op.create_table(
        "threadmill_schema_history",
        sa.Column("revision", sa.String(32), nullable=False),
        sa.Column("description", sa.String(200), nullable=False),
        sa.Column("checksum", sa.String(64), nullable=False),
        sa.Column("applied_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_threadmill_schema_history")),
        schema=schema,
    )
    identity = op.create_table(
        "threadmill_store_identity",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("system_identifier", sa.String(64), nullable=True),
        sa.Column("last_epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threadmill_store_identity")),
        schema=schema,
    )
    op.execute(
        identity.insert()
        .inline()
        .values(
            id=sa.literal_column("1"),
            system_identifier=sa.null(),
            last_epoch=sa.literal_column("0"),
        )
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute(_read_system_identifier(schema))
    record(revision)


def downgrade() -> None:
    schema = target_schema()
    op.drop_table("threadmill_store_identity", schema=schema)
    op.drop_table("threadmill_schema_history", schema=schema)


def _read_system_identifier(schema: str | None) -> str:
    preparer = op.get_context().dialect.identifier_preparer
    prefix = "" if schema is None else preparer.quote(schema) + "."
    # Some hosted servers keep the function from their users; the column then stays null.
    return f"""
DO $identity$
BEGIN
  UPDATE {prefix}threadmill_store_identity
     SET system_identifier = (SELECT system_identifier::text FROM pg_catalog.pg_control_system())
   WHERE id = 1;
EXCEPTION WHEN insufficient_privilege THEN
  NULL;
END
$identity$"""
