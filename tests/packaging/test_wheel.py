"""The distribution as a user gets it: built, installed alone, migrating a database."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_MIGRATE = """
import sys
from sqlalchemy import create_engine
import threadmill_sa
from threadmill_sa import Threadmill
assert sys.prefix in threadmill_sa.__file__, threadmill_sa.__file__
tm = Threadmill(create_engine(sys.argv[1]))
tm.schema.migrate()
tm.schema.validate()
print(tm.schema.current())
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a fresh sdist and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


def wheel_of(distributions: Path) -> Path:
    (wheel,) = distributions.glob("*.whl")
    return wheel


def test_the_wheel_holds_the_package_its_marker_and_every_revision(distributions: Path) -> None:
    names = set(zipfile.ZipFile(wheel_of(distributions)).namelist())

    revisions = {path.name for path in (ROOT / "alembic" / "versions").glob("*.py")}
    assert {f"threadmill_sa/_alembic/versions/{name}" for name in revisions} <= names
    assert {"threadmill_sa/py.typed", "threadmill_sa/_alembic/env.py"} <= names
    scripts = (ROOT / "threadmill_sa/stores/redis/lua").rglob("*.lua")
    assert {str(path.relative_to(ROOT)) for path in scripts} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_the_sdist_holds_sources_only(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [name.split("/", 1)[1] for name in opened.getnames() if "/" in name]

    assert {"pyproject.toml", "README.md", "alembic/env.py", "LICENSE"} <= set(names)
    assert not [name for name in names if name.startswith((".venv", ".git/", "dist/"))]


@pytest.mark.timeout(300)
def test_a_wheel_in_an_empty_environment_migrates_a_database(
    distributions: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"

    run(python, "-m", "pip", "install", "--quiet", wheel_of(distributions), cwd=tmp_path)
    printed = run(python, "-c", _MIGRATE, f"sqlite:///{tmp_path}/jobs.db", cwd=tmp_path)
    console = subprocess.run(
        [str(tmp_path / "env" / "bin" / "threadmill-sa"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    head = max(path.stem.split("_")[0] for path in (ROOT / "alembic" / "versions").glob("*.py"))
    assert head in printed
    assert console.returncode == 2
    assert 'pip install "threadmill-sa[cli]"' in console.stderr
