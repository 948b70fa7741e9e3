"""From what a user gives as the engine to a store."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from threadmill_sa.clock import Clock
from threadmill_sa.errors import InvalidValueError, UnsupportedStoreError
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.sql.migrate import SchemaManager
from threadmill_sa.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def choose_store(
    engine: Engine | JobStore,
    *,
    also: Sequence[Engine | AsyncEngine],
    schema: str | None,
    clock: Clock,
    record_nudges: bool,
) -> tuple[JobStore, SchemaManager | None]:
    """Return the store on `engine` with its schema's operations, or the store that it is.

    Raises: UnsupportedStoreError, InvalidValueError; no SQL is sent.
    """
    # An async engine exists only where its module was imported, which needs greenlet: looking is
    # enough, and hosts without asyncio need neither.
    extension: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if extension is not None and isinstance(engine, extension.AsyncEngine):
        raise UnsupportedStoreError(
            "Threadmill(engine) needs a sync Engine, found an AsyncEngine: create one for the"
            " same database and pass the async one as also=[async_engine]"
        )
    if not isinstance(engine, Engine):
        return _given(engine, record_nudges=record_nudges), None
    others = [_sync_engine(each) for each in _engines(also)]
    store = SqlStore(engine, also=others, schema=schema, clock=clock, record_nudges=record_nudges)
    return store, store.manager


def _given(store: JobStore, *, record_nudges: bool) -> JobStore:
    if not hasattr(store, "capabilities"):
        raise InvalidValueError(
            # Not the value: a URL as text may hold a password.
            f"engine must be a sync Engine or a JobStore, found {type(store).__name__}: pass"
            " what create_engine(url) returns, or use Threadmill.in_memory()",
            found=type(store).__name__,
        )
    if record_nudges and store.records is None:
        raise InvalidValueError(
            f"record_nudges=True, but {type(store).__name__} records nothing: give it a store that"
            " was made to record, or an engine",
            found=type(store).__name__,
        )
    return store


def _engines(also: object) -> Iterable[object]:
    if isinstance(also, str) or not isinstance(also, Iterable):
        raise InvalidValueError(
            f"also must be a list of engines, found {type(also).__name__}: pass also=[engine]",
            found=type(also).__name__,
        )
    return also


def _sync_engine(each: object) -> Engine:
    engine = getattr(each, "sync_engine", each)
    if not isinstance(engine, Engine):
        raise InvalidValueError(
            f"also must hold engines, found {type(each).__name__}: pass what create_engine(url)"
            " or create_async_engine(url) returns",
            found=type(each).__name__,
        )
    return engine
