"""From actors and schedules to verdicts, and how many there were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from tests.races.actors import Kind
from tests.races.checks import problems
from tests.races.driver import Run
from tests.races.schedules import FULL_MAX, SWITCHES_MAX, Schedule, count_all, following
from tests.races.stages import Stage

FAULTS_MAX = 3  # told of one group of actors; the rest would only repeat them
RUNS_MAX = 3 * FULL_MAX  # of one group: steps that only a race brings make more than the formula


@dataclass
class Tally:
    """What was performed: printed at the end of the test run."""

    groups: int = 0
    nominal: int = 0  # schedules by the formula, from the steps of each actor alone
    runs: int = 0
    blocked: int = 0  # runs in which an actor waited for another
    steps: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0.0
        return (
            f"{self.groups} groups, {self.nominal} schedules by the formula, {self.runs} runs"
            f" ({self.blocked} with a blocked step), {self.steps} steps,"
            f" {self.seconds:.0f} s, {rate:.0f} runs/s"
        )


TALLIES: dict[str, Tally] = {}


class Faults(AssertionError):  # noqa: N818 - several of them, read by people
    """What went wrong along which schedules."""


class Performance:
    """One group of actors on one stage: collects what goes wrong."""

    def __init__(self, stage: Stage, kinds: Sequence[Kind], label: str) -> None:
        self._stage = stage
        self._kinds = kinds
        self._tally = TALLIES.setdefault(label, Tally())
        self._faults: list[str] = []

    def along(self, schedules: Iterable[Schedule], *, nominal: int = 0) -> None:
        """Perform each schedule. Raises: Faults."""
        self._begin(nominal)
        self._end(self._once(schedule) for schedule in schedules)

    def everything(self, *, nominal: int = 0, switches: int | None = None) -> int:
        """Perform every run with at most `switches`; returns how many. Raises: Faults."""
        self._begin(nominal)
        before = self._tally.runs
        self._end(self._tree(switches))
        return self._tally.runs - before

    def _tree(self, switches: int | None) -> Iterator[Run]:
        beginning: Schedule = ()
        for _ in range(RUNS_MAX):
            run = self._once(beginning)
            yield run
            assert run.chosen[: len(beginning)] == beginning, f"another run than before:\n{run}"
            upcoming = following(run.choices, switches)
            if upcoming is None:
                return
            beginning = upcoming
        raise AssertionError(f"more than {RUNS_MAX} runs")

    def _once(self, schedule: Schedule) -> Run:
        run, found = once(self._stage, self._kinds, schedule)
        self._tally.runs += 1
        self._tally.steps += len(run.history)
        self._tally.blocked += any(step.blocked_by for step in run.history)
        if found:
            names = " x ".join(map(str, self._kinds))
            told = [f"{names} along {run.chosen}:", *found, "history:", str(run)]
            self._faults.append("\n".join(told))
        return run

    def _begin(self, nominal: int) -> None:
        self._tally.groups += 1
        self._tally.nominal += nominal

    def _end(self, runs: Iterator[Run]) -> None:
        began = monotonic()
        for _ in runs:
            if len(self._faults) >= FAULTS_MAX:
                break
        self._tally.seconds += monotonic() - began
        if self._faults:
            raise Faults("\n\n".join(self._faults))


def once(stage: Stage, kinds: Sequence[Kind], schedule: Schedule) -> tuple[Run, list[str]]:
    """Perform one schedule and let the system come to rest; returns what went wrong."""
    stage.reset()
    actions = [
        partial(kind.act, seat, stage) for kind, seat in zip(kinds, stage.seats, strict=False)
    ]
    run = stage.driver.run(actions, schedule)
    if not stage.drain():
        return run, ["the system does not come to rest"]
    return run, problems(run, kinds, stage, stage.ending())


def needs_of(kinds: Sequence[Kind]) -> frozenset[str]:
    return frozenset().union(*(kind.needs for kind in kinds))


def prepare(stage: Stage, needs: frozenset[str]) -> None:
    """Build the scene, unless it stands already."""
    if stage.needs != needs:
        stage.build(needs)


def lengths(stage: Stage, kinds: Sequence[Kind]) -> list[int]:
    """The number of steps that each of `kinds` takes when it is alone in the present scene."""
    known = stage.lengths.setdefault(stage.needs, {})
    for kind in kinds:
        if kind.name not in known:
            run, found = once(stage, [kind], ())
            assert not found, f"{kind} alone: {found}\n{run}"
            known[kind.name] = len(run.history)
    return [known[kind.name] for kind in kinds]


def switches_of(n: int, m: int) -> int | None:
    """How many switches a pair of so many steps is explored with; None is all."""
    return None if count_all(n, m) <= FULL_MAX else SWITCHES_MAX
