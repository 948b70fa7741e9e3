"""How long the machines search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SHORT = settings(
    settings.get_profile("default"),
    max_examples=40,
    stateful_step_count=50,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    # Explaining a failure runs it hundreds of times more; the steps of it say enough.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
# The `long` profile's number of examples would take half an hour on a database.
LONG = settings(SHORT, derandomize=False, stateful_step_count=60)


def search(make: Callable[[], RuleBasedStateMachine], chosen: settings) -> None:
    """Run a new machine for each example; the first failure is shrunk and raised."""
    factory: Any = make  # a function serves as well as the class that is asked for
    run_state_machine_as_test(factory, settings=chosen)
