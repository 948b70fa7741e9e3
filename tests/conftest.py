"""Fixture plugins, Hypothesis profiles and the report header; nothing else."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.fixtures.servers import header_lines
from tests.fixtures.valkey import header_words

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.sqlite",
    "tests.fixtures.sql",
    "tests.fixtures.redis",
    "tests.fixtures.summaries",
]

# The default run is the same every time; a search that finds something prints how to repeat it.
settings.register_profile(
    "default",
    derandomize=True,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "long",
    settings.get_profile("default"),
    derandomize=False,
    max_examples=2000,
)
settings.load_profile(os.environ.get("THREADMILL_HYPOTHESIS_PROFILE", "default"))


def pytest_report_header() -> list[str]:
    [databases] = header_lines()
    return [", ".join([databases, *header_words()])]
