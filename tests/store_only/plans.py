"""What the planner does with the statements that a store really sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, event

_PLANNED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement and the nodes of its plan."""

    statement: str
    nodes: tuple[dict[str, Any], ...]

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    def scans_whole(self, table: str) -> bool:
        """True when the plan reads every row of `table`."""
        return any(
            node["Node Type"] == "Seq Scan" and node.get("Relation Name") == table
            for node in self.nodes
        )

    def total(self, key: str) -> float:
        """The number `key` of the whole plan."""
        return float(self.nodes[0][key])

    def __str__(self) -> str:
        shown = [
            f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}"
            for node in self.nodes
        ]
        return "\n".join([self.statement, *shown])


@contextmanager
def plans_of(engine: Engine, options: str = "FORMAT JSON") -> Iterator[list[Plan]]:
    """The plans of everything that is executed on `engine` within the block."""
    found: list[Plan] = []

    def explain(conn: Any, _cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if not statement.startswith(_PLANNED):
            return
        many = rest[-1]
        cursor = conn.connection.dbapi_connection.cursor()
        cursor.execute(f"EXPLAIN ({options}) {statement}", parameters[0] if many else parameters)
        found.append(Plan(statement, tuple(_walk(cursor.fetchone()[0][0]["Plan"]))))
        cursor.close()

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def generic_plans(connection: Any, part: str) -> list[Plan]:
    """The generic plans of the statements with `part` that a driver connection has prepared."""
    cursor = connection.cursor()
    cursor.execute("SET plan_cache_mode = force_generic_plan")
    cursor.execute(
        "SELECT name, statement, cardinality(parameter_types), generic_plans + custom_plans"
        " FROM pg_prepared_statements WHERE position(%s in statement) > 0",
        (part,),
    )
    plans = []
    for name, statement, count, _uses in cursor.fetchall():
        nulls = ", ".join(["NULL"] * count)
        arguments = f"({nulls})" if count else ""
        cursor.execute(f'EXPLAIN (FORMAT JSON) EXECUTE "{name}"{arguments}', prepare=False)
        plans.append(Plan(statement, tuple(_walk(cursor.fetchone()[0][0]["Plan"]))))
    cursor.execute("RESET plan_cache_mode")
    cursor.close()
    return plans


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _walk(child)


@contextmanager
def sqlite_plans_of(engine: Engine) -> Iterator[list[tuple[str, list[str]]]]:
    """Statement and lines of EXPLAIN QUERY PLAN of everything executed within the block."""
    found: list[tuple[str, list[str]]] = []

    def explain(conn: Any, _cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if not statement.startswith(_PLANNED):
            return
        many = rest[-1]
        driver = conn.connection.dbapi_connection
        rows = driver.execute(
            f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters
        )
        found.append((statement, [row[3] for row in rows]))

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def pick(plans: list[Plan], part: str) -> Plan:
    """The one plan whose statement has `part`."""
    [found] = [plan for plan in plans if part in plan.statement]
    return found
