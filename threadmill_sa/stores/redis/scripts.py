"""The scripts: files with a header that says which keys and arguments they take, in order."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_FOLDER: Final = files("threadmill_sa.stores.redis") / "lua"
_INCLUDE: Final = re.compile(r"^--@include (\w+)$", re.MULTILINE)
_DECLARED: Final = re.compile(r"^-- (KEYS|ARGV)\[(\d+)\] (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One atomic operation, ready to be sent."""

    name: str
    source: str  # with its fragments in place
    sha: str
    keys: tuple[str, ...]  # names of `keys.KEYS`
    arguments: tuple[str, ...]


@cache
def script(name: str) -> Script:
    """Return the script of `lua/<name>.lua`; its header is what callers pass keys by."""
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    source = _INCLUDE.sub(lambda found: _fragment(found[1]), text)
    declared: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    for table, _, word in _DECLARED.findall(text):
        declared[table].append(word)
    # The digest is the server's name for the text, no secret.
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha, tuple(declared["KEYS"]), tuple(declared["ARGV"]))


def script_names() -> list[str]:
    """Return the name of every operation, sorted."""
    return sorted(
        entry.name.removesuffix(".lua")
        for entry in _FOLDER.iterdir()
        if entry.name.endswith(".lua")
    )


def _fragment(name: str) -> str:
    return (_FOLDER / "lib" / f"{name}.lua").read_text(encoding="utf-8").rstrip("\n")
