"""What commands print: JSON for programs, tables for people.

Nothing else of the command line writes to a terminal, and no text leaves here that could steer
one: most of it is not the operator's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from threadmill_sa._util.visible import visible_line, visible_text

_GAP = "  "


def emit_json(value: object) -> None:
    """Print one JSON value on stdout. ASCII only, so that no terminal or pipe can spoil it."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def emit_json_line(value: object) -> None:
    """The same on one line, for a process that goes on."""
    click.echo(json.dumps(value, default=_plain))
    sys.stdout.flush()


def emit_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: drawn on a terminal, aligned columns elsewhere; no cell is ever cut."""
    body = [_cells(row) for row in rows]
    if sys.stdout.isatty():
        table = Table(header_style="bold")
        for heading in headings:
            table.add_column(Text(visible_line(heading)), overflow="fold")
        for row in body:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    for line in aligned([_cells(headings), *body]):
        click.echo(line)


def emit_fields(fields: Mapping[str, str]) -> None:
    """Print one `name  value` line for each field; never wrapped."""
    for line in aligned([_cells(field) for field in fields.items()]):
        click.echo(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, columns padded to their widest cell as a terminal shows it."""
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def say(text: str) -> None:
    """Print a result on stdout; its newlines stay."""
    click.echo(visible_text(text), nl=not text.endswith("\n"))


def note(text: str) -> None:
    """Print a remark for people on stderr; its newlines stay."""
    click.echo(visible_text(text), err=True, nl=not text.endswith("\n"))


def _cells(row: Sequence[str]) -> list[str]:
    return [visible_line(cell) for cell in row]


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"no JSON form for {type(value).__name__}")
