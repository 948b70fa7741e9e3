"""From `MODULE:APP` or a URL to a Threadmill."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from threadmill_sa import sqlite
from threadmill_sa.app import Threadmill
from threadmill_sa.cli.output import note
from threadmill_sa.cli.redis_url import is_redis_url, open_redis
from threadmill_sa.errors import InvalidValueError, SchemaError, ThreadmillError
from threadmill_sa.stores.sql.servers import engine_url

_DRIVER_EXTRAS = {"psycopg": "postgresql"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command works: an app, or a database by its URL."""

    app: str | None
    url: str | None
    schema: str | None = None

    @contextmanager
    def open(self, *, creates: bool = False) -> Iterator[Threadmill]:
        """The Threadmill, closed at the end.

        Args:
            creates: a SQLite file that does not exist may be created.
        Raises: click.UsageError for a target that cannot be read; ThreadmillError.
        """
        engine = None
        if self.app is None and is_redis_url(self.url or ""):
            with self._open_redis() as threadmill:
                yield threadmill
            return
        if self.app is not None:
            threadmill = load_app(self.app)
        else:
            engine = _engine(self.url or "", creates=creates)
            threadmill = Threadmill(engine, schema=self.schema)
        try:
            yield threadmill
        except SQLAlchemyError:
            _explain_by_schema(threadmill)
            raise
        finally:
            threadmill.close()
            if engine is not None:
                engine.dispose()

    def _open_redis(self) -> AbstractContextManager[Threadmill]:
        if self.schema is not None:
            raise click.UsageError("--schema is for PostgreSQL; on Redis: redis://host/0?prefix=")
        return open_redis(self.url or "")


def load_app(spec: str) -> Threadmill:
    """The Threadmill that `MODULE:APP` names; a factory is called.

    The current directory is importable, as for other tools that load an application.
    Raises: click.UsageError for a name that leads nowhere; click.ClickException when the code
    itself fails; ThreadmillError as it raises them.
    """
    module_name, colon, path = spec.partition(":")
    if not colon or not module_name or not path:
        raise click.UsageError(
            f"app {spec!r} is not of the form MODULE:APP, such as shop.tasks:tm"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise click.UsageError(f"module {module_name!r} has no {path!r}")
        found = getattr(found, name)
    if not isinstance(found, Threadmill) and callable(found):
        found = _guarded(found, f"calling {spec!r}")
    if not isinstance(found, Threadmill):
        raise click.UsageError(
            f"app {spec!r} is of type {type(found).__name__!r}, expected a Threadmill"
            " or a function without arguments that returns one"
        )
    return found


def _explain_by_schema(threadmill: Threadmill) -> None:
    """Raise the SchemaError that explains why a statement was refused, if one does."""
    try:
        threadmill.schema.validate()
    except SchemaError:
        raise
    except (ThreadmillError, SQLAlchemyError):
        return  # the first error tells more


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself or a package on the way to it is the user's typing.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(f"importing {name!r}", error) from error
        raise click.UsageError(
            f"module {name!r} cannot be found: no module named {error.name!r}"
            f" in {str(Path.cwd())!r} or on the Python path"
        ) from error
    except (ThreadmillError, SQLAlchemyError):
        raise
    except Exception as error:
        raise _failed(f"importing {name!r}", error) from error


def _guarded(factory: Any, what: str) -> Any:
    try:
        return factory()
    except (ThreadmillError, SQLAlchemyError, click.ClickException):
        raise
    except Exception as error:
        raise _failed(what, error) from error


def _failed(what: str, error: Exception) -> click.ClickException:
    """The user's own code raised: the trace is what helps."""
    note("".join(traceback.format_exception(error)))
    return click.ClickException(f"{what} failed: {type(error).__name__}: {error}")


def read_url(text: str) -> URL:
    """A URL of a supported database. Raises: click.UsageError that repeats no password."""
    try:
        url = engine_url(text)
        backend = url.get_backend_name()
        url.get_dialect()
    except ModuleNotFoundError:
        return url  # the driver is missed when an engine is made
    except (ValueError, ArgumentError, NoSuchModuleError) as error:
        raise click.UsageError(f"database URL cannot be read: {_line(error)}") from error
    if backend not in {"postgresql", "sqlite"}:
        raise click.UsageError(
            f"database {backend!r} is not supported,"
            " expected postgresql://, sqlite:/// or redis://"
        )
    return url


def _engine(text: str, *, creates: bool) -> Engine:
    url = read_url(text)
    try:
        engine = create_engine(url)
    except ModuleNotFoundError as error:
        extra = _DRIVER_EXTRAS.get(error.name or "")
        advice = f': pip install "threadmill-sa[{extra}]"' if extra else ""
        raise click.UsageError(f"driver {error.name!r} is not installed{advice}") from error
    if engine.dialect.name == "sqlite":
        if not creates:
            _require_file(url)
        sqlite.configure(engine)
    return engine


def _require_file(url: URL) -> None:
    # Opening a mistyped name would create an empty file.
    name = url.database or ""
    if name not in {"", ":memory:"} and not name.startswith("file:") and not Path(name).exists():
        raise click.ClickException(
            f"SQLite file {name!r} does not exist; `threadmill-sa db upgrade` creates it"
        )


def _line(error: Exception) -> str:
    if isinstance(error, InvalidValueError):
        return error.message
    if isinstance(error, NoSuchModuleError):
        return "its dialect or driver is unknown"
    return "expected for example postgresql://user@host/name, sqlite:///app.db or redis://host"
