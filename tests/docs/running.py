"""Executes the blocks of one page the way a reader would: in order, in an empty directory.

* `python`: executed, the names of a page are shared. One that begins with `# name.py` is that
  file: saved, and imported under that name.
* `text` or `sql` after it: what it prints. A block that prints must show it; `...` stands for
  anything.
* `console`: lines that begin with `$ ` are run, the lines below each are its output when given.

Markers: `postgresql` gives a python block a fresh database in place of the example's URL, `redis`
the server of its page,
`background` leaves a command running to the end of the page, `from the background` compares a
text with what it prints, `not run: reason` is for installing and make.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.docs.blocks import ROOT, Block
from tests.fixtures.servers import with_driver
from threadmill_sa import Threadmill

COMMAND_SECONDS = 60.0
OUTPUT_SECONDS = 30.0
STOP_SECONDS = 45.0
_EXAMPLE_URL = re.compile(r"postgresql\+(?P<driver>\w+)://app:secret@localhost/shop")
_EXAMPLE_REDIS = "redis://localhost:6379/0"
_EXPECTED = {"text", "sql"}


class Page:
    """The state of one page while it runs."""

    def __init__(
        self, directory: Path, postgres_url: Callable[[], str], redis_url: Callable[[], str]
    ) -> None:
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "page"}
        self.rewrite: Callable[[str], str] = lambda text: text
        self.postgres_url, self.redis_url = postgres_url, redis_url
        self._modules: list[types.ModuleType] = []
        self._printed: str | None = None  # by the last block, until it was compared
        self._background: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.language in _EXPECTED:
                self._compare(block)
                continue
            self._require_compared(block)
            if block.marker is not None and block.marker.startswith("not run: "):
                continue
            if block.language == "python":
                self._run_python(block)
            else:
                self._run_console(block)
        self._require_compared(blocks[-1])

    def close(self) -> None:
        """Stop what runs, close every Threadmill and engine that a block made."""
        for process, output in self._background:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            assert code == 0, f"{process.args!r} ended with {code}:\n{output.read_text()}"
        held = [*self.names.values(), *(v for m in self._modules for v in vars(m).values())]
        for value in held:
            if isinstance(value, Threadmill):
                value.close()
        for value in held:
            if isinstance(value, Engine | AsyncEngine):
                getattr(value, "sync_engine", value).dispose()

    # Python.

    def _run_python(self, block: Block) -> None:
        text = self.rewrite(block.text)
        if block.marker == "postgresql":
            assert _EXAMPLE_URL.search(text), f"{block.where}: no example URL to replace"
            url = self.postgres_url()
            text = _EXAMPLE_URL.sub(lambda match: with_driver(url, match["driver"]), text)
        elif block.marker == "redis":
            text = text.replace(_EXAMPLE_REDIS, self.redis_url())
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if block.file_name is not None:
                self._import(block.file_name, text)
            else:
                # The blank lines in front give a traceback the line of the page.
                source = "\n" * (block.line - 1) + text
                exec(compile(source, str(block.path), "exec", dont_inherit=True), self.names)
        self._printed = printed.getvalue() or None

    def _import(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        self._modules.append(importlib.import_module(name.removesuffix(".py")))

    # Commands.

    def _run_console(self, block: Block) -> None:
        for command, expected in _commands(block):
            argv = _argv(command, block)
            if block.marker == "background":
                self._start(argv)
                continue
            done = subprocess.run(
                argv,
                cwd=self.directory,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
            assert done.returncode == 0, f"{block.where}: {command}\n{done.stdout}"
            if expected:
                _require_equal(block, expected, done.stdout)

    def _start(self, argv: list[str]) -> None:
        output = self.directory / f"background-{len(self._background)}.txt"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                argv,
                cwd=self.directory,
                env=self._environment(),
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self._background.append((process, output))

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("THREADMILL_")}
        path = os.pathsep.join([str(self.directory), str(ROOT)])
        return kept | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}

    # Outputs.

    def _compare(self, block: Block) -> None:
        if block.marker == "from the background":
            self._await_background(block)
            return
        assert self._printed is not None, f"{block.where}: nothing was printed before"
        _require_equal(block, block.text, self._printed)
        self._printed = None

    def _require_compared(self, block: Block) -> None:
        assert self._printed is None, f"before {block.where}: not shown:\n{self._printed}"

    def _await_background(self, block: Block) -> None:
        process, output = self._background[-1]
        pattern = re.compile(_pattern(block.text))
        pause = Event()
        for _ in range(int(OUTPUT_SECONDS / 0.05)):
            if pattern.search(output.read_text()):
                return
            assert process.poll() is None, f"{block.where}: ended:\n{output.read_text()}"
            pause.wait(0.05)
        raise AssertionError(f"{block.where}: not printed in time, found:\n{output.read_text()}")


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block.where}: text before the first `$ `"
    for part in parts[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def _argv(command: str, block: Block) -> list[str]:
    words = shlex.split(command)
    if words[0] == "threadmill-sa":
        return [sys.executable, "-m", "threadmill_sa", *words[1:]]
    if words[0] == "alembic":
        return [sys.executable, "-m", "alembic", *words[1:]]
    assert words[0] == "python", f"{block.where}: {command!r} cannot be run by the tests"
    return [sys.executable, *words[1:]]


def _require_equal(block: Block, expected: str, found: str) -> None:
    if re.fullmatch(_pattern(expected), _trimmed(found)) is None:
        raise AssertionError(f"{block.where}\n--- shown:\n{expected}\n--- printed:\n{found}")


def _pattern(expected: str) -> str:
    return "(?s:.*?)".join(map(re.escape, _trimmed(expected).split("...")))


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
