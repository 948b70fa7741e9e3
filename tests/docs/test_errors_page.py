"""docs/errors.md and errors.py tell the same story."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.docs.blocks import ROOT
from threadmill_sa import errors
from threadmill_sa.errors import ThreadmillError

_PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
_HEADINGS = re.findall(r"^## (TM-\w+) (\w+)$", _PAGE, flags=re.MULTILINE)
_CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, ThreadmillError)
]


def test_every_error_class_has_its_heading_and_every_heading_its_class() -> None:
    assert sorted(_HEADINGS) == sorted((found.code, found.__name__) for found in _CLASSES)


def test_every_code_belongs_to_one_class() -> None:
    codes = [found.code for found in _CLASSES]

    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("heading", _HEADINGS, ids=lambda heading: heading[1])
def test_every_error_has_a_cure_unless_it_is_never_raised_itself(heading: tuple[str, str]) -> None:
    code, name = heading
    section = _PAGE.split(f"## {code} {name}\n")[1].split("\n## ")[0]
    raised = any(
        re.search(rf"(raise|return) {name}\(", path.read_text(encoding="utf-8"))
        for path in (ROOT / "threadmill_sa").rglob("*.py")
    )

    if "never raised itself" in section:
        assert not raised
    else:
        assert "**Cure:**" in section
