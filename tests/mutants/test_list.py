"""The list of mutants fits the code: each can be applied, and names tests that exist."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutant import SUITE, Mutant, OutOfDateError
from tests.mutants.mutants import MUTANTS
from tests.mutants.scratch import ROOT
from threadmill_sa.testing.suite import SUITES

_SUITES = {f"Test{suite.__name__.removesuffix('Suite')}": suite for suite in SUITES}


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    named = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node.name for node in tree.body if isinstance(node, named)]
    methods = [
        f"{group.name}::{node.name}"
        for group in tree.body
        if isinstance(group, ast.ClassDef)
        for node in group.body
        if isinstance(node, named)
    ]
    return frozenset([*functions, *methods])


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    if path == SUITE:
        suite, _, case = name.partition("::")
        return hasattr(_SUITES.get(suite), case)
    return (ROOT / path).is_file() and name in _tests_of(path)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_another_program_and_names_tests_that_exist(mutant: Mutant) -> None:
    wrong = mutant.applied(ROOT)

    if mutant.file.endswith(".py"):
        compile(wrong, mutant.file, "exec", dont_inherit=True)
    assert wrong != (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.rule
    assert mutant.tests
    assert mutant.store in {None, "memory", "sqlite", "pg", "valkey"}
    assert [test for test in mutant.tests if not _exists(test)] == []


def test_no_two_mutants_have_one_name() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)

    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(("old", "found"), [("b", "found 0 times"), ("a", "found 2 times")])
def test_a_text_that_is_not_there_once_is_told(tmp_path: Path, old: str, found: str) -> None:
    (tmp_path / "m.py").write_text("a = a\n")
    mutant = Mutant("x", "a rule", "m.py", old, "c", ("tests/x.py::test_x",))

    with pytest.raises(OutOfDateError, match=found):
        mutant.applied(tmp_path)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    mutant = Mutant("x", "a rule", "m.py", "a", "c", ("tests/x.py::test_x",))

    with pytest.raises(OutOfDateError, match=r"there is no m\.py"):
        mutant.applied(tmp_path)
