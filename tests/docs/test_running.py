"""The runner of the docs notices what is wrong on a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.running import Page


def _block(language: str, text: str, marker: str | None = None) -> Block:
    return Block(ROOT / "README.md", 1, language, marker, text)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("1\n", "1\n"),
        ("1 ... 3\n", "1 2 3\n"),
        ("a\n...\nc\n", "a\nb\nb\nc\n"),
        ("1\n", "1  \n\n"),
    ],
)
def test_an_output_that_is_shown_as_it_is_passes(page: Page, shown: str, printed: str) -> None:
    page.run([_block("python", f"print({printed!r}, end='')\n"), _block("text", shown)])


@pytest.mark.parametrize("shown", ["2\n", "1 2\n", "\n", "... 1\n"])
def test_an_output_that_differs_is_noticed(page: Page, shown: str) -> None:
    with pytest.raises(AssertionError, match="printed"):
        page.run([_block("python", "print(1)\n"), _block("text", shown)])


def test_an_output_that_is_not_shown_is_noticed(page: Page) -> None:
    with pytest.raises(AssertionError, match="not shown"):
        page.run([_block("python", "print(1)\n")])


def test_a_text_after_a_block_that_prints_nothing_is_noticed(page: Page) -> None:
    with pytest.raises(AssertionError, match="nothing was printed"):
        page.run([_block("python", "a = 1\n"), _block("text", "1\n")])


def test_a_block_that_raises_is_noticed(page: Page) -> None:
    with pytest.raises(ZeroDivisionError):
        page.run([_block("python", "1 / 0\n")])


def test_blocks_of_one_page_share_their_names(page: Page) -> None:
    page.run([_block("python", "a = 1\n"), _block("python", "b = a + 1\n")])

    assert page.names["b"] == 2


def test_a_command_that_fails_is_noticed(page: Page) -> None:
    with pytest.raises(AssertionError, match="no-such-command"):
        page.run([_block("console", "$ threadmill-sa no-such-command\n")])


def test_a_command_that_nobody_can_run_is_noticed(page: Page) -> None:
    with pytest.raises(AssertionError, match="cannot be run"):
        page.run([_block("console", "$ rm -r .\n")])


@pytest.mark.parametrize("text", ["```python\n1\n", "* a\n  ```python\n  1\n  ```\n"])
def test_a_fence_that_would_be_passed_over_is_noticed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(AssertionError):
        blocks_of(path)


def test_the_marker_above_a_block_is_read_across_a_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("<!-- postgresql -->\n\n```python\n1\n```\n", encoding="utf-8")

    assert [(b.marker, b.text, b.line) for b in blocks_of(path)] == [("postgresql", "1\n", 4)]
