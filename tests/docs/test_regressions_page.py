"""Each row of docs/regressions.md names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.blocks import ROOT

_PAGE = (ROOT / "docs" / "regressions.md").read_text(encoding="utf-8")
_ROWS = [
    line
    for line in _PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| what goes wrong")
]


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_each_failure_mode_names_tests_that_exist(row: str) -> None:
    _, what, guards, _ = row.split("|")
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", guards)

    assert what.strip()
    assert named
    for path, name in named:
        assert name in _tests_of(path), f"{path} has no {name}"


def test_no_failure_mode_is_told_twice() -> None:
    told = [row.split("|")[1].strip() for row in _ROWS]

    assert len(told) == len(set(told))
