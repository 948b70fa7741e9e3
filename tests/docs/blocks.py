"""The fenced blocks of the documentation, and the marker that may stand above each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^`]*)$")
_MARKER = re.compile(r"^<!-- (?P<text>.+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is that of its first line of content."""

    path: Path
    line: int
    language: str
    marker: str | None
    text: str

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that a python block is, when its first line is a comment with a name."""
        match = re.match(r"# (\w+\.py)\n", self.text)
        return match[1] if match else None


def pages() -> list[Path]:
    """README.md and every page of docs/, the index included."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(path: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found: list[Block] = []
    opened: tuple[int, str, str | None] | None = None
    before: str | None = None  # the last line that is not blank
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if opened is None and fence is not None:
            assert not fence["indent"], f"{path.name}:{number}: a fence must not be indented"
            marker = None if before is None else _MARKER.match(before)
            opened = number + 1, fence["language"], marker and marker["text"]
        elif opened is not None and line == "```":
            first, language, marker_text = opened
            text = "".join(f"{each}\n" for each in lines[first - 1 : number - 1])
            found.append(Block(path, first, language, marker_text, text))
            opened = None
        if line.strip():
            before = line
    assert opened is None, f"{path.name}: the block at line {opened} is never closed"
    return found
