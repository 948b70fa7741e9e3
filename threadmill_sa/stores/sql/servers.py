"""Which databases are supported, and how their URLs are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from threadmill_sa.errors import (
    InvalidValueError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from threadmill_sa.stores.sql.faults import Fault, classify

POSTGRESQL_MIN = 15
SQLITE_MIN = (3, 35)  # RETURNING
SCHEMA_MAX_BYTES = 63  # the server cuts longer names, and then does not find them
_IN_MEMORY = (
    "an in-memory SQLite database lives in one connection and cannot hold jobs; "
    "use a file, or Threadmill.in_memory()"
)
# An async driver's URL names a database as well; schema work is sync.
_SYNC_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
    "sqlite+aiosqlite": "sqlite",
}


def engine_url(url: str | URL) -> URL:
    """The URL for a sync engine; `postgresql://` means psycopg, whatever SQLAlchemy's default."""
    scheme, separator, rest = (
        url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    ).partition("://")
    if not separator:
        # The text is not repeated: it may hold a password.
        raise InvalidValueError("database URL has no '://'; expected for example sqlite:///app.db")
    return make_url(f"{_SYNC_DRIVERS.get(scheme, scheme)}://{rest}")


def is_supported(engine: Engine) -> bool:
    """True when dialect and file can hold a store; reads only the engine, sends no SQL."""
    return _refusal(engine) is None


def check_supported(engine: Engine) -> None:
    """Refuse an engine that no server version could make right; sends no SQL.

    Raises: UnsupportedStoreError with the advice.
    """
    refusal = _refusal(engine)
    if refusal is not None:
        raise UnsupportedStoreError(refusal, dialect=engine.dialect.name)


def check_server(engine: Engine) -> None:
    """Refuse a dialect, server version or in-memory database that is not supported.

    Raises: UnsupportedStoreError with what was found, expected and the advice;
    StoreUnavailableError.
    """
    check_supported(engine)
    with connected(engine) as connection:
        check_connection(connection)


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    """A connection from the engine's pool, given back at the end.

    Raises: StoreUnavailableError when none can be had, and when the server fails in the block.
    """
    try:
        connection = engine.connect()
    except (DBAPIError, PoolTimeoutError) as error:
        if classify(error) is Fault.OTHER:
            raise
        raise unavailable(engine, getattr(error, "orig", None) or error) from error
    try:
        with connection:
            yield connection
    except DBAPIError as error:
        if classify(error) is Fault.OTHER:
            raise
        raise StoreUnavailableError(
            f"{_place(engine)} failed in the middle ({_words(error.orig or error)}); try again"
            " later: every step is done whole or not at all, and only what is missing is done"
        ) from error


def unavailable(engine: Engine, reason: BaseException) -> StoreUnavailableError:
    """The error for a database that could not be reached; its password is not shown."""
    return StoreUnavailableError(
        f"{_place(engine)} cannot be reached ({_words(reason)});"
        " look at its address, or try again later"
    )


def _place(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _words(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {' '.join(str(reason).split())[:300]}"


def check_connection(connection: Connection) -> None:
    """The same on a connection, in its transaction."""
    check_supported(connection.engine)
    if connection.dialect.name == "postgresql":
        number = connection.scalar(text("SELECT pg_catalog.current_setting('server_version_num')"))
        require_postgresql(int(number or 0))
        return
    require_sqlite(str(connection.scalar(text("SELECT sqlite_version()"))))
    files = connection.execute(text("SELECT name, file FROM pragma_database_list")).all()
    # The only certain sign when the engine was built with a creator function.
    if not any(row.file for row in files if row.name == "main"):
        raise UnsupportedStoreError(_IN_MEMORY, dialect="sqlite")


def check_schema_name(dialect: str, schema: str | None) -> None:
    """Refuse a schema that no server takes, and any on SQLite, whose triggers cannot name one.

    Raises: InvalidValueError, UnsupportedStoreError.
    """
    if schema is None:
        return
    if not isinstance(schema, str) or not 1 <= _length(schema) <= SCHEMA_MAX_BYTES:
        raise InvalidValueError(
            f"schema must be None or a name of 1 to {SCHEMA_MAX_BYTES} bytes,"
            f" found {schema!r:.200}",
            value=schema,
        )
    # A percent sign is a parameter's to the drivers; the prefix is the server's own.
    if "%" in schema or not schema.isprintable() or schema.startswith("pg_"):
        raise InvalidValueError(
            f"schema {schema!r} cannot be used, expected a name without '%' and control"
            " characters that does not begin with 'pg_'; use another schema",
            value=schema,
        )
    if dialect == "sqlite":
        raise UnsupportedStoreError(
            f"schema {schema!r} cannot be used on SQLite, expected None; use a file of its own",
            schema=schema,
        )


def require_postgresql(number: int) -> None:
    """Refuse a server by its `server_version_num`."""
    if number // 10_000 < POSTGRESQL_MIN:
        raise UnsupportedStoreError(
            f"PostgreSQL server {number // 10_000} is too old, expected {POSTGRESQL_MIN} or newer;"
            " upgrade the server",
            found=number,
            expected=POSTGRESQL_MIN * 10_000,
        )


def require_sqlite(version: str) -> None:
    """Refuse an SQLite library by its version text."""
    if tuple(int(part) for part in version.split(".")[:2]) < SQLITE_MIN:
        raise UnsupportedStoreError(
            f"SQLite library {version} is too old, expected 3.35 or newer;"
            " use a Python that was built with a newer one",
            found=version,
            expected="3.35",
        )


def _length(schema: str) -> int:
    return len(schema.encode(errors="surrogatepass"))


def _refusal(engine: Engine) -> str | None:
    name = engine.dialect.name
    if name not in {"postgresql", "sqlite"}:
        return (
            f"database dialect {name!r} is not supported, expected 'postgresql' or 'sqlite';"
            " use one of these, or Threadmill.in_memory() for tests"
        )
    if engine.dialect.is_async:
        return (
            f"engine of the async driver {engine.dialect.driver!r} cannot run the store;"
            " give a sync engine of the same database, and the async one with also=[...]"
        )
    if name == "sqlite" and _in_memory(engine.url):
        return _IN_MEMORY
    return None


def _in_memory(url: URL) -> bool:
    database = url.database or ""
    settings = {key: str(value) for key, value in url.query.items()}
    return (
        database in {"", ":memory:", "file:", "file::memory:"}
        or database.startswith("file::memory:?")
        or settings.get("mode") == "memory"
        or settings.get("vfs") == "memdb"
        or "mode=memory" in database
    )
