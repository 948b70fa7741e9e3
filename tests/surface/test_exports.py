"""What users import: complete, documented, and nothing besides."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import threadmill_sa
from tests.docs.blocks import ROOT
from threadmill_sa import errors, migrations, testing

_OPTIONAL = ("greenlet", "psycopg", "asyncpg", "aiosqlite", "click", "rich", "pytest")


def _public(module: ModuleType) -> set[str]:
    """Names without an underscore that are no module."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }


def _documented(value: Any) -> bool:
    text = value.__doc__ or ""
    # A dataclass without a docstring gets its signature for one.
    return bool(text.strip()) and not text.startswith(f"{getattr(value, '__name__', '')}(")


@pytest.mark.parametrize("module", [threadmill_sa, migrations, testing], ids=lambda m: m.__name__)
def test_all_is_sorted_without_doubles_and_every_name_is_there(module: ModuleType) -> None:
    names = list(module.__all__)

    assert names == sorted(set(names))
    assert set(names) <= set(dir(module))


def test_the_package_exports_its_public_names_and_nothing_else() -> None:
    assert _public(threadmill_sa) == set(threadmill_sa.__all__)


def test_the_errors_module_holds_errors_only() -> None:
    own = {name for name in _public(errors) if getattr(errors, name).__module__ == errors.__name__}

    assert all(issubclass(getattr(errors, name), errors.ThreadmillError) for name in own)


@pytest.mark.parametrize("name", threadmill_sa.__all__)
def test_each_public_name_is_documented(name: str) -> None:
    value: Any = getattr(threadmill_sa, name)
    if name == "JobId":  # a NewType has no docstring of its own
        assert value.__supertype__.__name__ == "UUID"
    else:
        assert _documented(value)


@pytest.mark.parametrize(
    "name", [name for name in vars(threadmill_sa.Threadmill) if not name.startswith("_")]
)
def test_each_method_of_threadmill_is_documented(name: str) -> None:
    assert _documented(inspect.getattr_static(threadmill_sa.Threadmill, name))


@pytest.mark.parametrize("name", ["errors", "migrations", "sqlite", "testing", "testing.suite"])
def test_each_public_module_is_there_and_documented(name: str) -> None:
    module = importlib.import_module(f"threadmill_sa.{name}")

    assert _documented(module)


def test_each_error_can_be_imported_from_the_errors_module() -> None:
    shared = [name for name in threadmill_sa.__all__ if name.endswith("Error")]

    assert shared
    for name in shared:
        assert getattr(errors, name) is getattr(threadmill_sa, name)


def test_importing_needs_no_extra() -> None:
    program = (
        "import sys\n"
        f"for name in {_OPTIONAL!r}: sys.modules[name] = None\n"
        "from threadmill_sa import Cron, Every, JobContext, Threadmill\n"
        "import threadmill_sa.migrations, threadmill_sa.sqlite, threadmill_sa.testing\n"
        "tm = Threadmill.in_memory()\n"
        "tm.job('work')(lambda: None)\n"
        "tm.enqueue('work')\n"
        "print(tm.run_until_idle())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_importing_touches_no_database_and_starts_no_thread() -> None:
    program = (
        "import threading\n"
        "from sqlalchemy import create_engine, event\n"
        "from threadmill_sa import Every, Threadmill\n"
        "engine = create_engine('sqlite:///never-made.db')\n"
        "connected = []\n"
        "event.listen(engine, 'do_connect', lambda *_: connected.append(1))\n"
        "tm = Threadmill(engine)\n"
        "tm.job('work')(lambda: None)\n"
        "tm.recurring('task', 'work', Every(hours=1))\n"
        "print(connected, threading.active_count())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "[] 1\n"), done.stderr
    assert not (ROOT / "never-made.db").exists()
