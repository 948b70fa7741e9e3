"""A host application with an Alembic history of its own."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData

ENV = """
from alembic import context
from threadmill_sa import migrations

attributes = context.config.attributes
options = dict(target_metadata=attributes["metadata"], **attributes["options"])
if context.is_offline_mode():
    context.configure(url=attributes["engine"].url, literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    with attributes["engine"].connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
"""
PLAIN_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = {revision!r}
down_revision = {down_revision!r}


def upgrade():
    op.create_table({table!r}, sa.Column("id", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table({table!r})
"""


@dataclass(frozen=True, slots=True)
class Host:
    """Runs the host's everyday Alembic commands."""

    folder: Path
    engine: Engine
    metadata: MetaData
    options: dict[str, Any]

    def add(self, revision: str, text: str) -> None:
        (self.folder / "versions" / f"{revision}.py").write_text(text)

    def add_table(self, revision: str, down_revision: str | None, table: str) -> None:
        self.add(
            revision,
            PLAIN_REVISION.format(revision=revision, down_revision=down_revision, table=table),
        )

    def config(self) -> Config:
        config = Config(stdout=io.StringIO(), output_buffer=io.StringIO())
        config.set_main_option("script_location", str(self.folder))
        config.attributes.update(engine=self.engine, metadata=self.metadata, options=self.options)
        return config

    def upgrade(self, revision: str = "head") -> None:
        command.upgrade(self.config(), revision)

    def downgrade(self, revision: str) -> None:
        command.downgrade(self.config(), revision)

    def printed(self, revisions: str, *, down: bool = False) -> str:
        """What `--sql` prints."""
        config = self.config()
        (command.downgrade if down else command.upgrade)(config, revisions, sql=True)
        buffer = config.output_buffer
        assert isinstance(buffer, io.StringIO)
        return buffer.getvalue()

    def current(self) -> str:
        config = self.config()
        command.current(config)
        assert isinstance(config.stdout, io.StringIO)
        return config.stdout.getvalue().strip()

    def heads(self) -> list[str]:
        return ScriptDirectory(str(self.folder)).get_heads()


def make_host(
    folder: Path, engine: Engine, metadata: MetaData | None = None, **options: Any
) -> Host:
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENV)
    return Host(folder, engine, metadata or MetaData(), options)
