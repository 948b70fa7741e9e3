"""${message}.

phase: expand | contract
breaking: yes | no (would it break nodes of the release before)
lock: which tables, how strong
time for 1M rows:
why:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from threadmill_sa.migrations import forget, record, target_schema
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
    record(revision)


def downgrade() -> None:
    forget(revision)
    ${downgrades if downgrades else "pass"}
