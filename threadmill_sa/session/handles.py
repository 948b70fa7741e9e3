"""What callers pass as a session: recognised by type, proxies unwrapped, anything else refused."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from threadmill_sa.errors import UnsupportedSessionError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

ACCEPTED = "a Session, scoped_session or Connection"
ACCEPTED_ASYNC = "an AsyncSession, async_scoped_session or AsyncConnection"


def unwrap(handle: object) -> Session | Connection:
    """Return the session or connection that `handle` is or stands for. Sends no SQL.

    Raises: UnsupportedSessionError, for an async handle with the call that takes it.
    """
    if isinstance(handle, Session | Connection):
        return handle
    if isinstance(handle, scoped_session):
        return unwrap(handle())
    if _is_async(handle):
        raise UnsupportedSessionError(
            f"{_kind(handle)} cannot be used in a synchronous call: await the twin of this call"
            " that starts with 'a', such as `await tm.anudge(...)`",
            found=_kind(handle),
        )
    raise _refusal(handle, ACCEPTED)


def unwrap_async(handle: object) -> AsyncSession | AsyncConnection:
    """Return the async session or connection that `handle` is or stands for. Sends no SQL.

    Raises: UnsupportedSessionError, for a synchronous handle with the call that takes it.
    """
    if isinstance(handle, Session | Connection | scoped_session):
        raise UnsupportedSessionError(
            f"{_kind(handle)} cannot be awaited and would block the event loop: use the"
            " synchronous call without the leading 'a', such as `tm.nudge(...)`",
            found=_kind(handle),
        )
    asyncio_ext = _asyncio_ext()
    if asyncio_ext is not None:
        if isinstance(handle, asyncio_ext.async_scoped_session):
            handle = handle()
        if isinstance(handle, asyncio_ext.AsyncSession):
            return cast("AsyncSession", handle)
        if isinstance(handle, asyncio_ext.AsyncConnection):
            connection = cast("AsyncConnection", handle)
            if connection.sync_connection is None:
                raise UnsupportedSessionError(
                    "the AsyncConnection is not started: await it or enter it first",
                    found=_kind(handle),
                )
            return connection
    raise _refusal(handle, ACCEPTED_ASYNC)


def borrowed_connection(session: Session) -> Connection | None:
    """Return a connection that `session` was bound to by its maker, or None.

    The end of such a session's transaction is not the end of the connection's.
    """
    # SQLAlchemy 2.1 shows the map of binds, 2.0 keeps it private.
    binds: Any = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})
    for bind in (session.bind, *binds.values()):
        if isinstance(bind, Connection):
            return bind
    return None


def is_async_engine(engine: object) -> TypeGuard[AsyncEngine]:
    """Return whether `engine` is an AsyncEngine, without importing what needs greenlet."""
    extension = _asyncio_ext()
    return extension is not None and isinstance(engine, extension.AsyncEngine)


def _asyncio_ext() -> Any:
    # An async handle exists only where its module was imported, and without greenlet it cannot
    # be: so looking is enough, and hosts without asyncio never pay for the import.
    return sys.modules.get("sqlalchemy.ext.asyncio")


def _is_async(handle: object) -> bool:
    extension = _asyncio_ext()
    return extension is not None and isinstance(
        handle,
        (extension.AsyncSession, extension.async_scoped_session, extension.AsyncConnection),
    )


def _kind(handle: object) -> str:
    return type(handle).__name__


def _refusal(handle: object, accepted: str) -> UnsupportedSessionError:
    advice = f"pass {accepted}"
    if handle is None:
        advice = f"this mode needs a transaction of yours: {advice}"
    elif isinstance(handle, Engine) or is_async_engine(handle):
        advice = f"an engine has no transaction to ride: {advice}, or leave the argument out"
    return UnsupportedSessionError(
        f"cannot use {handle!r:.200} of type {_kind(handle)} as a session; {advice}",
        found=_kind(handle),
    )
