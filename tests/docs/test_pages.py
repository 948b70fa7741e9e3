"""Every block of the README and of the docs runs, and prints what the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of, pages
from tests.docs.running import Page


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


_PAGES = pages()
_LANGUAGES = {"python", "console", "text", "sql"}
_MARKERS = {
    "postgresql": "python",
    "redis": "python",
    "background": "console",
    "from the background": "text",
}


@pytest.mark.parametrize("path", _PAGES, ids=_name)
def test_every_block_of_the_page_runs_and_prints_what_is_shown(path: Path, page: Page) -> None:
    blocks = blocks_of(path)
    if blocks:
        page.run(blocks)


@pytest.mark.parametrize("path", _PAGES, ids=_name)
def test_each_block_is_of_a_kind_that_is_run_or_compared(path: Path) -> None:
    for block in blocks_of(path):
        assert block.language in _LANGUAGES, f"{block.where}: {block.language!r}"
        if block.marker is None:
            continue
        if block.marker.startswith("not run: "):
            assert _only_installs(block), f"{block.where}: only pip and make may stay unrun"
        else:
            assert _MARKERS.get(block.marker) == block.language, f"{block.where}: {block.marker}"


@pytest.mark.parametrize("path", _PAGES, ids=_name)
def test_each_relative_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in _anchors(linked), f"{path.name}: {target}#{anchor}"


def test_the_first_page_works_on_postgresql_with_the_two_lines_it_names(page: Page) -> None:
    blocks = blocks_of(ROOT / "README.md")
    app = next(block for block in blocks if block.file_name == "app.py")
    shown = next(block for block in blocks if block.marker == "postgresql")
    sqlite = [line for line in app.text.splitlines() if "sqlite" in line]
    (engine,) = (line for line in shown.text.splitlines() if line.startswith("engine ="))
    url = page.postgres_url()

    def rewrite(text: str) -> str:
        for line in sqlite:
            replaced = "" if "sqlite:///" not in line else engine
            text = text.replace(f"{line}\n", f"{replaced}\n" if replaced else "")
        return text.replace("postgresql+psycopg://app:secret@localhost/shop", url)

    page.rewrite = rewrite
    page.run([block for block in blocks if block.marker != "postgresql"])

    assert "postgresql" in (page.directory / "app.py").read_text()
    assert "sqlite" not in (page.directory / "app.py").read_text()


def test_the_make_targets_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"make ([a-z-]+)", text))
    make = shutil.which("make")
    assert targets
    assert make is not None
    for target in targets:
        subprocess.run([make, "-n", target], cwd=ROOT, check=True, capture_output=True)


def _only_installs(block: Block) -> bool:
    lines = [line for line in block.text.splitlines() if line.strip()]
    return block.language == "console" and all(
        re.match(r"\$ (pip install|make) ", line) for line in lines
    )


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
