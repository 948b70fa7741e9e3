"""Entry point of the alembic command; what it does stands in `threadmill_sa.migrations`."""

from __future__ import annotations

from logging.config import fileConfig

from alembic import context

from threadmill_sa import migrations

if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

migrations.run_env(context)
