"""A place where one page can run as its reader would run it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.docs.running import Page
from tests.fixtures.servers import EMBEDDED, Server
from tests.fixtures.valkey import valkey_process


@pytest.fixture
def page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_servers: Callable[[str], Server],
) -> Iterator[Page]:
    """An empty directory to be in, a database on demand, and no module left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    with ExitStack() as stack:

        @cache
        def postgres_url() -> str:
            server = postgres_servers(EMBEDDED)
            return stack.enter_context(server.fresh_database(template="template0"))

        @cache
        def redis_url() -> str:
            return stack.enter_context(valkey_process()).url

        page = Page(tmp_path, postgres_url, redis_url)
        try:
            yield page
        finally:
            page.close()
            for name in set(sys.modules) - known:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                    del sys.modules[name]
