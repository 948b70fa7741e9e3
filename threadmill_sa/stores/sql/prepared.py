"""Statements of the hottest path, whose text is made once for each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

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

    Inside a caller's transaction that is a third of what a nudge costs. Source:
    docs/decisions/0014-joined-writes-as-text.md.

    Args:
        statement: with plain binds alone; what it returns comes as the driver gives it.
    """

    def __init__(self, statement: Executable) -> None:
        self.statement = statement
        self._forms: WeakKeyDictionary[Dialect, _Form] = WeakKeyDictionary()

    def execute(self, connection: Connection, binds: Mapping[str, Any]) -> CursorResult[Any]:
        """Run it on `connection`, whatever options that has.

        Raises: KeyError for a bind that is missing; nothing was sent then.
        """
        dialect = connection.dialect
        form = self._forms.get(dialect)
        if form is None:
            form = self._forms[dialect] = _Form(self.statement, dialect)
        return connection.exec_driver_sql(
            form.text,
            form.parameters(binds),
            execution_options=OWN_OPTIONS if connection.get_execution_options() else None,
        )


class _Form:
    """What one dialect makes of a statement: its text, and how its driver takes the binds."""

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

    def parameters(self, binds: Mapping[str, Any]) -> Any:
        values = self._given | {name: binds[name] for name in self._plain}
        for name, process in self._processed:
            values[name] = process(binds[name])
        return values if self._positions is None else tuple(values[key] for key in self._positions)
