"""How the command starts: as a module, as a script, without its extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.tools import command, invoke

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from threadmill_sa.cli import main
sys.argv = ["threadmill-sa", "--help"]
main()
"""


@pytest.mark.parametrize("name", ["click", "rich"])
def test_without_the_extra_one_line_says_what_to_install(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == 'the command line needs: pip install "threadmill-sa[cli]"\n'


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run(command("--version"), capture_output=True, text=True, check=True)

    assert done.stdout.startswith("threadmill-sa, version ")


def test_the_help_documents_commands_and_exit_codes() -> None:
    result = invoke("--help")

    assert result.exit_code == 0
    for word in ("demo", "db", "worker", "recurring", "Exit codes", "THREADMILL_URL"):
        assert word in result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert invoke("launch").exit_code == 2


def test_a_name_that_the_terminal_cannot_show_ends_no_command(url: str) -> None:
    done = subprocess.run(
        command("recurring", "show", "\N{PARTY POPPER}", "--url", url),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )

    assert done.returncode == 1
    assert "TM-R01" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_prints_no_trace(url: str, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    line = f"{sys.executable} -m threadmill_sa db sql --clean --url {url}"

    subprocess.run(["bash", "-c", f"{line} 2>{errors} | true"], check=True)

    assert "Traceback" not in errors.read_text()
