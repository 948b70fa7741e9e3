"""Statements of the hottest path, whose text is made once for each engine."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sqlalchemy.engine import Connection, CursorResult, Dialect
from sqlalchemy.sql.base import Executable

# What a user may have set on an engine or a connection and our statements must not inherit: a
# map would send our names elsewhere, a server-side cursor cannot carry a write.
OWN_OPTIONS: Final[Mapping[str, Any]] = {
    "schema_translate_map": None,
    "stream_results": False,
    "yield_per": None,
}


class Prepared:
    """A statement that is sent as the text SQLAlchemy made of it, without asking its cache again.

    Inside a caller's transaction that is about a fifth of what a nudge costs. Source:
    docs/decisions/0014-joined-writes-as-text.md.

    Args:
        statement: with plain binds alone.
    """

    def __init__(self, statement: Executable) -> None:
        self.statement = statement
        self._forms: dict[Dialect, _Form] = {}  # one for each engine of the store

    def execute(self, connection: Connection, binds: Mapping[str, Any]) -> CursorResult[Any]:
        """Run it on `connection`, whatever options that has; results are the driver's.

        Raises: KeyError for a bind that is missing; nothing was sent then.
        """
        return self._send(connection, self._form(connection), binds)

    def rows(self, connection: Connection, binds: Mapping[str, Any]) -> list[Any]:
        """As `execute`, and return all rows, with values as the types of the columns make them."""
        form = self._form(connection)
        return form.rows(self._send(connection, form, binds))

    def _form(self, connection: Connection) -> _Form:
        dialect = connection.dialect
        form = self._forms.get(dialect)
        if form is None:
            form = self._forms[dialect] = _Form(self.statement, dialect)
        return form

    def _send(
        self, connection: Connection, form: _Form, binds: Mapping[str, Any]
    ) -> CursorResult[Any]:
        return connection.exec_driver_sql(
            form.text,
            form.parameters(binds),
            execution_options=OWN_OPTIONS if connection.get_execution_options() else None,
        )


class _Form:
    """What one dialect makes of a statement: its text, its binds and its results."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        clause: Any = statement
        compiled: Any = clause.compile(dialect=dialect)
        self.text: str = compiled.string
        self._positions: list[str] | None = compiled.positiontup if compiled.positional else None
        self._given: dict[str, Any] = {}  # literals of the statement itself
        self._plain: list[str] = []
        self._processed: list[tuple[str, Callable[[Any], Any]]] = []
        for bind, name in compiled.bind_names.items():
            process = bind.type.dialect_impl(dialect).bind_processor(dialect)
            if not bind.required:
                self._given[name] = process(bind.value) if process else bind.value
            elif process:
                self._processed.append((name, process))
            else:
                self._plain.append(name)
        self._dialect = dialect
        self._columns = tuple(getattr(clause, "exported_columns", ()))
        shape = namedtuple("_Found", [column.key for column in self._columns])  # type: ignore[misc]  # noqa: PYI024
        self._make: Callable[[list[Any]], Any] = shape._make
        self._readers: list[tuple[int, Callable[[Any], Any]]] | None = None

    def parameters(self, binds: Mapping[str, Any]) -> Any:
        values = self._given | {name: binds[name] for name in self._plain}
        for name, process in self._processed:
            values[name] = process(binds[name])
        return values if self._positions is None else tuple(values[key] for key in self._positions)

    def rows(self, result: CursorResult[Any]) -> list[Any]:
        if self._readers is None:
            self._readers = list(self._readers_of(result.cursor))
        found = []
        for values in map(list, result):
            for place, read in self._readers:
                values[place] = read(values[place])
            found.append(self._make(values))
        return found

    def _readers_of(self, cursor: Any) -> Iterator[tuple[int, Callable[[Any], Any]]]:
        """What each column's type makes of what the driver gives; asked with the driver's type."""
        for place, (column, described) in enumerate(
            zip(self._columns, cursor.description, strict=True)
        ):
            read = column.type.dialect_impl(self._dialect).result_processor(
                self._dialect, described[1]
            )
            if read:
                yield place, read
