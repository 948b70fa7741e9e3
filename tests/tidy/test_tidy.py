"""What no linter of ours says: sizes, banned calls, orphans, leftovers and the odd folder."""

from __future__ import annotations

import ast
import codecs
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "threadmill_sa"
SUITE = PACKAGE / "testing" / "suite"

LINE_MAX = 99
MODULE_MAX = 500
FUNCTION_MAX = 70
MODULE_MAX_OF = {  # collectors by nature: one class per error, one table after another, the root
    "threadmill_sa/errors.py": 700,
    "threadmill_sa/stores/sql/schema.py": 700,
    "threadmill_sa/app.py": 600,
}
# Read by users, started by a command or found by name; nobody imports them here.
ENTRANCES = {"threadmill_sa", "threadmill_sa.__main__", "threadmill_sa.migrations"}
ENTRANCES |= {"threadmill_sa.sqlite", "threadmill_sa.testing"}
ENTRANCES |= {"threadmill_sa.testing.stores", "threadmill_sa.testing.suite"}

TIME_CALLS = {"datetime.now", "datetime.utcnow", "datetime.today", "datetime.date.today"}
TIME_CALLS |= {f"time.{name}" for name in ("time", "time_ns", "monotonic", "perf_counter")}
SLEEPS = {"time.sleep"}
# Where SQL is text: the statements, and work on schemas, servers and catalogs.
TEXT_HOMES = {
    "history",
    "identity",
    "intact",
    "migrate",
    "revisions",
    "schema",
    "servers",
    "upgrader",
}

PRAGMA = re.compile(r"  # (noqa|type: ignore)\b.*$")
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bbreakpoint\(|\bpdb\.set_trace\(")
# The project speaks of itself alone. Written so that this file does not hold the words.
FOREIGN = [
    codecs.decode(word, "rot13")
    for word in (
        "pynhqr",
        "naguebcvp",
        "bcranv",
        "pungtcg",
        "pbcvybg",
        "yyz",
        "nffvfgnag",
        "trarengrq ol",
        "pb-nhguberq-ol",
        "qrfvta.zq",
        "fglyr.zq",
        "/jbex/",
    )
]


def _files(*suffixes: str) -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in ("threadmill_sa", "alembic", "tests", "benchmarks", "docs", ".ci"):
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(
        path
        for path in found
        if path.suffix in suffixes and "__pycache__" not in path.parts and path.stat().st_size
    )


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = _files(".py")
PACKAGE_SOURCES = [path for path in SOURCES if PACKAGE in path.parents]
TEXTS = _files(".py", ".md", ".toml", ".ini", ".mako", ".sql", ".lua", ".csv", "")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _calls(path: Path) -> Iterator[tuple[int, str]]:
    """Each call by its dotted name, imports from a module resolved."""
    origin = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "sqlalchemy", "datetime"}
        for alias in node.names
    }
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            head, dot, rest = ast.unparse(node.func).partition(".")
            name = f"{origin.get(head, head)}{dot}{rest}"
            # Whether the module or the class was imported, it is the same call.
            yield node.lineno, name.replace("datetime.datetime.", "datetime.")


def _offenders(paths: list[Path], check: Callable[[Path], object]) -> dict[str, object]:
    return {_name(path): found for path in paths if (found := check(path))}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _calls_of(names: set[str]) -> Callable[[Path], list[int]]:
    return lambda path: [line for line, name in _calls(path) if name in names]


def test_no_line_is_too_long() -> None:
    def check(path: Path) -> list[int]:
        # As for the linter, a pragma at the end does not count.
        lines = (PRAGMA.sub("", line) for line in _lines(path))
        return [number for number, line in enumerate(lines, 1) if len(line) > LINE_MAX]

    assert _offenders(SOURCES, check) == {}


def test_no_module_is_a_collector() -> None:
    def check(path: Path) -> int:
        length = len(_lines(path))
        return length if length > MODULE_MAX_OF.get(_name(path), MODULE_MAX) else 0

    assert _offenders(PACKAGE_SOURCES, check) == {}


def test_no_function_is_too_long() -> None:
    def check(path: Path) -> list[str]:
        return [
            node.name
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_MAX
        ]

    assert _offenders(PACKAGE_SOURCES, check) == {}


def test_time_is_read_in_one_place() -> None:
    engine = [path for path in PACKAGE_SOURCES if path != PACKAGE / "clock.py"]
    suite = [path for path in engine if SUITE in path.parents]  # bounds its own waits
    others = [path for path in engine if SUITE not in path.parents]

    assert _offenders(others, _calls_of(TIME_CALLS | SLEEPS)) == {}
    assert _offenders(suite, _calls_of(TIME_CALLS - {"time.monotonic"} | SLEEPS)) == {}


def test_only_the_command_line_prints() -> None:
    silent = [path for path in PACKAGE_SOURCES if PACKAGE / "cli" not in path.parents]

    assert _offenders(silent, _calls_of({"print"})) == {}


def test_sql_is_text_only_where_statements_or_schemas_are_made() -> None:
    sql = PACKAGE / "stores" / "sql"

    def is_home(path: Path) -> bool:
        made = path.parent == sql / "statements"
        schema_work = path.parent == sql and path.stem in TEXT_HOMES
        return made or schema_work or PACKAGE / "cli" / "demo" in path.parents  # an application

    others = [path for path in PACKAGE_SOURCES if not is_home(path)]

    assert _offenders(others, _calls_of({"sqlalchemy.text"})) == {}


def test_no_test_sleeps() -> None:
    tests = [path for path in SOURCES if ROOT / "tests" in path.parents]

    assert _offenders(tests, _calls_of(SLEEPS)) == {}


def test_every_module_is_imported_by_somebody() -> None:
    imported: set[str] = set()
    for path in [*PACKAGE_SOURCES, *(ROOT / "alembic").rglob("*.py")]:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module)
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE_SOURCES
    }
    packages = {name for name in modules if any(o.startswith(f"{name}.") for o in modules)}

    assert sorted(modules - imported - packages - ENTRANCES) == []


def test_nothing_is_left_over() -> None:
    def check(path: Path) -> list[int]:
        return [number for number, line in enumerate(_lines(path), 1) if LEFTOVERS.search(line)]

    assert _offenders([path for path in TEXTS if path != Path(__file__)], check) == {}


def test_the_project_speaks_of_itself_alone() -> None:
    def check(path: Path) -> list[str]:
        text = path.read_text(encoding="utf-8").lower()
        return [word for word in FOREIGN if re.search(rf"(?<!\w){re.escape(word)}", text)]

    assert _offenders(TEXTS, check) == {}


def test_each_file_ends_with_one_line_end() -> None:
    def check(path: Path) -> bool:
        text = path.read_text(encoding="utf-8")
        return not text.endswith("\n") or text.endswith("\n\n")

    assert _offenders(TEXTS, check) == {}


def test_the_folder_of_revisions_is_no_package_and_hides_no_library() -> None:
    program = "import alembic; print(alembic.__file__)"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert not (ROOT / "alembic" / "__init__.py").exists()
    assert ROOT / "alembic" not in Path(done.stdout.strip()).parents


def test_every_layer_contract_names_modules_that_exist() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    named = {
        module
        for contract in contracts
        for key in ("source_modules", "forbidden_modules", "modules", "containers")
        for module in contract.get(key, [])
        if module.startswith("threadmill_sa")
    }

    assert named
    for module in named:
        path = ROOT.joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module
