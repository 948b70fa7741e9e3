"""A copy of the project in which mutants run, with one PostgreSQL for all of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.servers import EMBEDDED, ENV_URL, ENVIRONMENT, running_server
from tests.mutants.mutant import Mutant, OutOfDateError

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("threadmill_sa", "alembic", "alembic.ini", "pyproject.toml", "tests", "docs")
TEST_SECONDS = 60  # a test that hangs on a mutant has noticed it
RUN_SECONDS = 300.0  # of one mutant
BASELINE_SECONDS = 1800.0  # of everything that is selected, on the right program
PASSED, FAILED = 0, 1  # exit codes of pytest; all others say that the selection is wrong

_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests said: the names of those that failed, and how long it took."""

    killers: tuple[str, ...]
    seconds: float


class Scratch:
    """Runs tests on the copy under `root`."""

    def __init__(self, root: Path, postgres_url: str) -> None:
        self._root = root
        self._writes = 0
        # PYTHONPATH, for the processes that tests start: their directory is another one.
        self._environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            ENV_URL: postgres_url,
            "PYTHONPATH": str(root),
        }

    def check_imports(self) -> None:
        """Raise when the copy's tests would run the package of somewhere else."""
        program = "import threadmill_sa, tests; print(threadmill_sa.__file__, tests.__file__)"
        for found in self._python("-c", program).stdout.split():
            if self._root not in Path(found).parents:
                raise OutOfDateError(f"{found} would be tested, which is not in {self._root}")

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Within the block the copy is the mutant."""
        path = self._root / mutant.file
        original, wrong = path.read_text(encoding="utf-8"), mutant.applied(self._root)
        self._write(path, wrong)
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # A compiled file is valid by size and second of the source, so no two may share theirs.
        self._writes += 1
        moment = time.time() + 10 * self._writes
        os.utime(path, (moment, moment))

    def run(
        self,
        tests: Sequence[str],
        *,
        store: str | None = None,
        all_: bool = False,
        seconds: float = RUN_SECONDS,
    ) -> Result:
        """Run `tests` up to the first that fails, or all of them.

        Raises: OutOfDateError when the selection is empty, cannot be run, or takes too long.
        """
        started = time.monotonic()
        wanted = f"not {EMBEDDED}"  # its place is taken by the server of the environment
        if store is not None:
            wanted += f" and {ENVIRONMENT if store == 'pg' else store}"
        options = ["-q", "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS), "-k", wanted]
        options += [] if all_ else ["-x"]
        try:
            done = self._python("-m", "pytest", *options, *tests, seconds=seconds)
        except subprocess.TimeoutExpired as error:
            raise OutOfDateError(f"not over in {seconds:.0f} s: {' '.join(tests)}") from error
        if done.returncode not in {PASSED, FAILED}:
            raise OutOfDateError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}")
        killers = tuple(dict.fromkeys(_FAILURE.findall(done.stdout)))
        return Result(killers, time.monotonic() - started)

    def _python(
        self, *arguments: str, seconds: float = RUN_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )


@contextmanager
def scratch() -> Iterator[Scratch]:
    """A fresh copy of the project and a server, both gone at the end."""
    root = Path(tempfile.mkdtemp(prefix="threadmill-mutants-"))
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.db")
    try:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=ignored)
            else:
                shutil.copy2(source, root / name)
        with running_server(EMBEDDED) as server:
            made = Scratch(root, server.admin_url)
            made.check_imports()
            yield made
    finally:
        shutil.rmtree(root, ignore_errors=True)
