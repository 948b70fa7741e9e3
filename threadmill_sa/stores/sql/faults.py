"""From a driver's error to what the gateway does about it."""

from __future__ import annotations

from enum import Enum

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_CONFLICT_STATES = frozenset({"40001", "40P01", "55P03"})  # serialization, deadlock, lock timeout
# A server that is shutting down, starting, read-only, or that cancelled the statement; lost
# connections, missing resources (a full disk) and system errors. Nothing of it speaks of a row.
_OUTAGE_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "57014", "25006"})
_OUTAGE_CLASSES = ("08", "53", "58")
_UNDEFINED_TABLE, _INSUFFICIENT_PRIVILEGE = "42P01", "42501"
_LOCK_NOT_AVAILABLE = "55P03"
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6
# The file's, never a row's: permissions, memory, read-only, interrupt, I/O, corrupt, full disk,
# cannot open, locking protocol, not a database.
_SQLITE_OUTAGES = frozenset({3, 7, 8, 9, 10, 11, 13, 14, 15, 26})


class Fault(Enum):
    """What may be done after an error of the database."""

    CONFLICT = "conflict"  # rolled back for sure: run the transaction again
    OUTAGE = "outage"  # unknown whether it was applied: the caller decides
    OTHER = "other"  # a defect, or a constraint that speaks


def classify(error: BaseException) -> Fault:
    """Return the kind of fault, from SQLSTATE or SQLite's code, whatever the driver."""
    if isinstance(error, PoolTimeoutError):
        return Fault.OUTAGE
    if not isinstance(error, DBAPIError):
        return Fault.OTHER
    state = sql_state(error)
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    if code in {_SQLITE_BUSY, _SQLITE_LOCKED} or state in _CONFLICT_STATES:
        return Fault.CONFLICT
    lost = error.connection_invalidated or code in _SQLITE_OUTAGES
    lost = lost or (state is not None and state.startswith(_OUTAGE_CLASSES))
    if lost or state in _OUTAGE_STATES or _never_connected(error, state):
        return Fault.OUTAGE
    return Fault.OTHER


def waited_in_vain(error: BaseException | None) -> bool:
    """Return True when a lock that another transaction holds was not to be had in time."""
    if not isinstance(error, DBAPIError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    return code == _SQLITE_BUSY or sql_state(error) == _LOCK_NOT_AVAILABLE


def lacks_table(error: DBAPIError) -> bool:
    """Return True when a statement of ours met a database without our tables."""
    missing = str(error.orig).startswith("no such table: ")  # SQLite has no code of its own for it
    return missing or sql_state(error) == _UNDEFINED_TABLE


def lacks_privilege(error: DBAPIError) -> bool:
    """Return True when the role may not do what our statement does."""
    return sql_state(error) == _INSUFFICIENT_PRIVILEGE


def _never_connected(error: DBAPIError, state: str | None) -> bool:
    """Return True for a connection that was refused: the driver has no code for it."""
    coded = state is not None or hasattr(error.orig, "sqlite_errorcode")
    return not coded and isinstance(error, OperationalError | InterfaceError)


def sql_state(error: DBAPIError) -> str | None:
    """Return the five characters of SQLSTATE, or None where the driver has none."""
    for source in (error.orig, getattr(error.orig, "__cause__", None)):
        for attribute in ("sqlstate", "pgcode"):
            value = getattr(source, attribute, None)
            if isinstance(value, str) and len(value) == 5:  # noqa: PLR2004 - SQLSTATE's length
                return value
    return None
