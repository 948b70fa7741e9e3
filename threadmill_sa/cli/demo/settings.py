"""What every process of one demo must know, handed over in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Engine, create_engine

from threadmill_sa import sqlite
from threadmill_sa.app import Threadmill
from threadmill_sa.cli.redis_url import redis_client
from threadmill_sa.clock import SystemClock
from threadmill_sa.errors import InvalidValueError
from threadmill_sa.stores.sql.servers import engine_url

VARIABLE = "THREADMILL_DEMO"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One demo; `directory` holds the sink and the journals of all processes."""

    url: str
    directory: str
    schema: str | None = None  # PostgreSQL: a schema of the demo's own
    redis: str | None = None  # jobs and nudges live there; the desk stays in the database of `url`
    orders: int = 300
    producers: int = 4
    seed: int = 0
    spread_seconds: float = 8.0  # the orders come in spread over so long, on average
    receiver_seconds: float = 0.0  # what the receiver of a batch takes before it is marked sent

    @classmethod
    def from_environment(cls) -> DemoSettings:
        """The settings that the demo's parent process passed on."""
        text = os.environ.get(VARIABLE)
        if text is None:
            raise InvalidValueError(f"{VARIABLE} is not set: this part is started by the demo")
        return cls(**json.loads(text))

    def environment(self) -> dict[str, str]:
        """This process's environment with the settings in it."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}

    def engine(self, *, writes_first: bool = False) -> Engine:
        """An engine as an application would make it.

        Args:
            writes_first: on SQLite, take the write lock at the start of each transaction, for
                transactions that read before they write.
        """
        engine = create_engine(engine_url(self.url))
        if engine.dialect.name == "sqlite":
            sqlite.configure(engine)
            if writes_first:
                return engine.execution_options(threadmill_begin="IMMEDIATE")
        elif self.schema is not None:
            return engine.execution_options(schema_translate_map={None: self.schema})
        return engine

    def threadmill(self, engine: Engine) -> Threadmill:
        """A Threadmill of one process: on the desk's database, or on Redis beside it."""
        if self.redis is None:
            return Threadmill(engine, schema=self.schema)
        return Threadmill.redis(*redis_client(self.redis))

    @property
    def sink(self) -> Path:
        """Where the relay delivers: one line for each outbox row."""
        return Path(self.directory) / "sink.jsonl"

    @property
    def runs(self) -> Path:
        """Where the relay notes the start and end of each attempt."""
        return Path(self.directory) / "runs.jsonl"

    def commits(self, producer: int) -> Path:
        """Where a producer notes its transactions."""
        return Path(self.directory) / f"producer-{producer}.jsonl"


def wall_seconds() -> float:
    """Seconds since 1970: all processes of a demo run on one host and share its clock."""
    return SystemClock().now().timestamp()
