"""Running the command line: inside this process, and as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from threadmill_sa.cli.program import program
from threadmill_sa.clock import SystemClock

WAIT_SECONDS = 60.0  # for anything another process must do first on a busy machine

SHOP = """
import os
import threading
from pathlib import Path

from sqlalchemy import create_engine

from threadmill_sa import Cron, Every, JobContext, Threadmill, sqlite

here = Path(os.environ["SHOP_DIRECTORY"])
engine = create_engine(os.environ["SHOP_URL"])
if engine.dialect.name == "sqlite":
    sqlite.configure(engine)
tm = Threadmill(engine)
number = 7


@tm.job("patient")
def patient(ctx: JobContext) -> None:
    (here / "patient.started").touch()
    ctx.wait_cancelled(120)
    ctx.check_in()


@tm.job("stubborn")
def stubborn() -> None:
    (here / "stubborn.started").touch()
    threading.Event().wait(120)


@tm.job("brief")
def brief(ctx: JobContext) -> str:
    (here / "brief.started").touch()
    while not (here / "brief.may-end").exists():
        ctx.wait_cancelled(0.02)
    return "done"


@tm.job("pump")
def pump() -> None:
    pass


tm.recurring("outbox-pump", pump, Every(minutes=10))
tm.recurring("nightly", pump, Cron("30 2 * * *", zone="Europe/Berlin"), enabled=False)


def make() -> Threadmill:
    return tm


def fails() -> Threadmill:
    raise RuntimeError("no configuration")
"""


def invoke(*arguments: str, typed: str | None = None) -> Result:
    """Run a command in this process, without a target in the environment."""
    environment = {"THREADMILL_APP": None, "THREADMILL_URL": None}
    return CliRunner(env=environment).invoke(program, arguments, input=typed)


def answer(*arguments: str) -> Any:
    """The one JSON value of a command that succeeds."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def until(reached: Callable[[], object], what: str, *, seconds: float = WAIT_SECONDS) -> None:
    """Wait until `reached()` is true; fails by the name of what did not happen."""
    clock, pause = SystemClock(), threading.Event()
    end = clock.monotonic() + seconds
    while not reached():
        assert clock.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        pause.wait(0.02)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "threadmill_sa", *arguments]


# A run in the background of a shell ignores SIGINT, and children inherit that.
_HEAR_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Worker:
    """A real `threadmill-sa worker` and what it has said so far."""

    def __init__(self, directory: Path, url: str, *arguments: str) -> None:
        self.directory = directory
        self._out, self._err = directory / "worker.out", directory / "worker.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _HEAR_INTERRUPTS, *command("worker", *arguments)],
                cwd=directory,
                stdout=out,
                stderr=err,
                env={**os.environ, "SHOP_URL": url, "SHOP_DIRECTORY": str(directory)},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for_banner(self) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, self.err
            return self.out.endswith("\n")

        until(seen, "banner of the worker")

    def wait_for_file(self, name: str) -> None:
        until((self.directory / name).exists, name)

    def wait_for_words(self, words: str) -> None:
        until(lambda: words in self.err, f"{words!r} on stderr")

    def exit_code(self) -> int:
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def running_worker(directory: Path, url: str, *arguments: str) -> Iterator[Worker]:
    """A worker in `directory`, where the module `shop` lies; killed at the end."""
    worker = Worker(directory, url, *arguments)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait()
