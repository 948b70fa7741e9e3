"""The shipped contract suite, on every store."""

from __future__ import annotations

from threadmill_sa.testing.suite import SUITES

# Bound in a loop, so that a topic that is added to the suite cannot be forgotten here.
for _suite in SUITES:
    _name = f"Test{_suite.__name__.removesuffix('Suite')}"
    globals()[_name] = type(_name, (_suite,), {"__module__": __name__})
