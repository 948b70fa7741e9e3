"""A pgbouncer in transaction mode before one server, where the program is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.tools import WAIT_SECONDS, until
from tests.processes.server import HOST, OwnServer, free_port

SERVER_CONNECTIONS = 6  # fewer than its clients have, so that they change hands all the time
_PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))

_CONFIGURATION = """
[databases]
* = host={host} port={port} user=postgres

[pgbouncer]
listen_addr = {host}
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
server_login_retry = 1
logfile = {log}
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def running_pooler(server: OwnServer) -> Iterator[int]:
    """The port of a pgbouncer before `server`; skips the test where the program is absent."""
    program = shutil.which("pgbouncer", path=_PLACES)
    if program is None:
        pytest.skip("the program `pgbouncer` is not installed (Debian package pgbouncer)")
    port = free_port()
    home = Path(tempfile.mkdtemp(prefix="threadmill-pooler-"))
    configuration = home / "pgbouncer.ini"
    configuration.write_text(
        _CONFIGURATION.format(
            host=HOST,
            port=server.port,
            own_port=port,
            size=SERVER_CONNECTIONS,
            log=home / "log",
        )
    )
    if server.user is not None:  # as root it refuses to run
        shutil.chown(home, server.user)
    process = subprocess.Popen(
        [program, "-q", configuration],
        user=server.user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: _answers(process, port), "the pooler")
        yield port
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
        shutil.rmtree(home, ignore_errors=True)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "the pooler has ended"
    with suppress(OSError):
        socket.create_connection((HOST, port), timeout=1).close()
        return True
    return False
