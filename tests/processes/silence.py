"""Making one connection of another process silent, as a route that drops every packet does.

A filter on the socket throws away what arrives, acknowledgements included, before TCP sees it.
The peer is alive, no reset comes, and what is sent is never confirmed.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import closing, suppress
from pathlib import Path

import pytest

_PIDFD_GETFD = 438  # the number of the system call, the same on every architecture
_SO_ATTACH_FILTER = getattr(socket, "SO_ATTACH_FILTER", 26)
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # the one instruction: keep 0 bytes


def silence(pid: int, server_port: int, *, own_port: int | None = None) -> int:
    """Let connections of child process `pid` receive nothing any more; returns how many.

    Args:
        own_port: the one with this port at the child's end; None is all to that server.
    """
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError), closing(_socket_of(pid, int(link.name))) as found:
            right = found.family == socket.AF_INET and found.getpeername()[1] == server_port
            if right and own_port in (None, found.getsockname()[1]):
                instruction = ctypes.create_string_buffer(_RETURN_NOTHING)
                program = struct.pack("HL", 1, ctypes.addressof(instruction))
                found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
                count += 1
    return count


def skip_unless_possible() -> None:
    """Skip the test where a child's sockets cannot be reached."""
    if not hasattr(os, "pidfd_open"):
        pytest.skip("sockets of other processes can be reached on Linux only")
    with socket.socket() as own:
        try:
            _socket_of(os.getpid(), own.fileno()).close()
        except OSError as error:
            pytest.skip(f"sockets of other processes cannot be reached here: {error}")


def _socket_of(pid: int, descriptor: int) -> socket.socket:
    process = os.pidfd_open(pid)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        found = library.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(process)
    try:
        return socket.socket(fileno=found)
    except OSError:  # not a socket
        os.close(found)
        raise
