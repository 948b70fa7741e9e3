"""One guard taken out of the code, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUITE = "tests/contract/test_suite.py"


class OutOfDateError(Exception):
    """The list and the code no longer fit together."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A small program that is wrong on purpose.

    Args:
        name: words joined by hyphens, unique.
        rule: what the guard carries, as a sentence about the right program.
        file: under the root of the project.
        old: text that occurs exactly once in the file.
        new: what takes its place.
        tests: node ids; at least one of their tests fails on the mutant. A few seconds in all.
        more: further (old, new) in the same file, where one place is not enough.
        store: the one store that is mutated, `memory`, `sqlite`, `pg` or `valkey`; None runs the
            tests on every store that they ask for.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()
    store: str | None = None

    def applied(self, root: Path) -> str:
        """Return the text of the mutated file. Raises: OutOfDateError; nothing is written."""
        path = root / self.file
        if not path.is_file():
            raise OutOfDateError(f"{self.name}: there is no {self.file}")
        text = path.read_text(encoding="utf-8")
        for old, new in ((self.old, self.new), *self.more):
            found = text.count(old)
            if found != 1:
                raise OutOfDateError(
                    f"{self.name}: found {found} times in {self.file}, expected once:\n{old}"
                )
            text = text.replace(old, new)
        return text


def contract(suite: str, *names: str) -> tuple[str, ...]:
    """Return the node ids of cases of the shipped suite, such as `contract("Nudge", "test_…")`."""
    return tuple(f"{SUITE}::Test{suite}::{name}" for name in names)


def tests_of(path: str, *names: str) -> tuple[str, ...]:
    """Return the node ids of tests of one file under `tests/`."""
    return tuple(f"tests/{path}::{name}" for name in names)
