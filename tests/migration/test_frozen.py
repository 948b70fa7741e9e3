"""Released revisions never change, and the shipped list says what they are."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from threadmill_sa.stores.sql.frozen import FROZEN, checksum_of, frozen_form
from threadmill_sa.stores.sql.revisions import scripts, scripts_path

ROOT = Path(__file__).parents[2]
FILES = sorted(scripts_path().glob("versions/*.py"))
HEAD_LINES = ("phase: ", "breaking: ", "lock: ", "time for 1M rows: ", "why: ")


def test_the_shipped_list_matches_the_files() -> None:
    assert list(FROZEN) == [frozen_form(path) for path in FILES]


def test_the_revisions_form_one_line_in_the_order_of_the_list() -> None:
    walked = [script.revision for script in scripts().walk_revisions("base", "heads")]
    assert walked[::-1] == [entry.revision for entry in FROZEN]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_revision_states_its_phase_lock_and_cost(path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    for head_line in HEAD_LINES:
        assert f"\n{head_line}" in docstring, head_line
    assert docstring.split("phase: ")[1].split()[0] in {"expand", "contract"}
    assert docstring.split("breaking: ")[1].split()[0] in {"yes", "no"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_revision_depends_on_what_may_move(path) -> None:
    imported = [
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("threadmill_sa")
    ]
    assert set(imported) == {"threadmill_sa.migrations"}


def test_line_ends_and_trailing_blanks_do_not_change_a_checksum() -> None:
    assert checksum_of("a\nb\n") == checksum_of("a \r\nb\r\n\r\n")
    assert checksum_of("a\nb\n") != checksum_of("a\n b\n")


def test_the_folder_of_revisions_is_no_package() -> None:
    import alembic

    assert not (scripts_path() / "__init__.py").exists()
    assert alembic.__file__ is not None
    assert "site-packages" in alembic.__file__


WHERE = "from threadmill_sa.stores.sql.revisions import scripts_path; print(scripts_path())"


def where_from(*path: Path) -> Path:
    answer = subprocess.run(
        [sys.executable, "-c", WHERE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        cwd=path[0],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return Path(answer.stdout.strip())


def test_an_installed_package_uses_the_revisions_inside_it(tmp_path: Path) -> None:
    package = tmp_path / "threadmill_sa"
    shutil.copytree(ROOT / "threadmill_sa", package)
    shutil.copytree(ROOT / "alembic", package / "_alembic")
    assert where_from(tmp_path) == package / "_alembic"


def test_a_stale_copy_in_site_packages_does_not_win(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "alembic", tmp_path / "threadmill_sa" / "_alembic")
    assert where_from(tmp_path, ROOT) == ROOT / "alembic"
