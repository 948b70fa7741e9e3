"""MODULE:APP and URLs: what is read, and what each mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.tools import answer, invoke
from threadmill_sa.cli.program import program

_LIST = ("recurring", "list")


@pytest.mark.parametrize("app", ["shop:tm", "shop:make"])
def test_an_app_is_a_threadmill_or_a_factory_in_the_current_directory(
    shop: Path, app: str
) -> None:
    assert answer("db", "validate", "--app", app)["valid"] is True


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("shop", "is not of the form MODULE:APP"),
        (":tm", "is not of the form MODULE:APP"),
        ("shop:", "is not of the form MODULE:APP"),
        ("stop:tm", "module 'stop' cannot be found"),
        ("shop:missing", "module 'shop' has no 'missing'"),
        ("shop:number", "is of type 'int', expected a Threadmill"),
        ("shop:pump", "is of type 'NoneType', expected a Threadmill"),
    ],
)
def test_an_app_that_cannot_be_found_is_a_usage_error(shop: Path, app: str, words: str) -> None:
    result = invoke(*_LIST, "--app", app)

    assert result.exit_code == 2
    assert words in result.stderr


def test_a_factory_that_raises_fails_with_its_reason(shop: Path) -> None:
    result = invoke(*_LIST, "--app", "shop:fails")

    assert result.exit_code == 1
    assert "calling 'shop:fails' failed: RuntimeError: no configuration" in result.stderr


def test_a_module_that_raises_fails_with_its_reason(shop: Path) -> None:
    (shop / "broken_shop.py").write_text("import not_there_at_all\n")

    result = invoke(*_LIST, "--app", "broken_shop:tm")

    assert result.exit_code == 1
    assert "importing 'broken_shop' failed: ModuleNotFoundError" in result.stderr
    assert "broken_shop.py" in result.stderr


def test_no_target_is_a_usage_error() -> None:
    result = invoke(*_LIST)

    assert result.exit_code == 2
    assert "--app MODULE:APP or --url URL" in result.stderr


def test_app_and_url_exclude_each_other(url: str) -> None:
    assert invoke(*_LIST, "--app", "shop:tm", "--url", url).exit_code == 2


def test_schema_belongs_to_a_url(shop: Path) -> None:
    assert invoke("db", "current", "--app", "shop:tm", "--schema", "x").exit_code == 2


@pytest.mark.parametrize("variables", [{"THREADMILL_APP": "shop:tm"}, {"THREADMILL_URL": "given"}])
def test_the_environment_names_a_target(shop: Path, url: str, variables: dict[str, str]) -> None:
    environment = {name: value.replace("given", url) for name, value in variables.items()}

    result = CliRunner(env=environment).invoke(program, ["db", "validate"])

    assert result.exit_code == 0, result.stderr


def test_a_typed_url_goes_before_an_app_of_the_environment(url: str) -> None:
    runner = CliRunner(env={"THREADMILL_APP": "not_there:tm"})

    assert runner.invoke(program, [*_LIST, "--url", url]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "database URL has no '://'"),
        ("mysql://root:secret@localhost/x", "database 'mysql' is not supported"),
        ("postgresql+nothing://root:secret@localhost/x", "dialect or driver is unknown"),
        ("postgresql://root:secret@localhost:port/x", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_read_is_a_usage_error_without_secrets(text: str, words: str) -> None:
    result = invoke(*_LIST, "--url", text)

    assert result.exit_code == 2
    assert words in result.stderr
    assert "secret" not in result.output


def test_a_plain_postgresql_url_is_read_as_psycopg(pg_url: str) -> None:
    plain = pg_url.replace("postgresql+psycopg://", "postgresql://")

    assert "postgresql+psycopg" in answer("db", "current", "--url", plain)["store"]


def test_a_mistyped_sqlite_file_is_not_created(tmp_path: Path) -> None:
    result = invoke(*_LIST, "--url", f"sqlite:///{tmp_path / 'typo.db'}")

    assert result.exit_code == 1
    assert "does not exist" in result.stderr
    assert not (tmp_path / "typo.db").exists()


def test_a_sqlite_database_in_memory_is_refused_with_its_code() -> None:
    result = invoke("db", "upgrade", "--url", "sqlite://")

    assert result.exit_code == 1
    assert "[TM-D01]" in result.stderr


def test_an_unreachable_server_fails_in_one_line() -> None:
    result = invoke("db", "current", "--url", "postgresql://nobody@127.0.0.1:1/none")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr


def test_traceback_shows_where_an_error_came_from() -> None:
    result = invoke(
        "db", "current", "--traceback", "--url", "postgresql://nobody@127.0.0.1:1/none"
    )

    assert result.exit_code == 1
    assert "Traceback" in result.stderr
