"""`make mutants`: takes each guard out in a copy of the project, and names the test that notices.

Exit code 1 when a mutant survives, 2 when the list does not fit the code.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from tests.mutants.mutant import Mutant, OutOfDateError
from tests.mutants.mutants import MUTANTS
from tests.mutants.scratch import BASELINE_SECONDS, ROOT, Result, Scratch, scratch

SURVIVED, OUT_OF_DATE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen mutants and print a line for each."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("-k", dest="word", default="", help="only names that contain this")
    parser.add_argument("--all", action="store_true", help="name every test that dies")
    parser.add_argument("--list", action="store_true", help="print the names and rules")
    parser.add_argument("--no-baseline", action="store_true", help="trust the right program")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if options.word in mutant.name]
    if options.list:
        for mutant in chosen:
            _say(f"{mutant.name}: {mutant.rule}")
        return 0
    # Told to end, it ends its server and takes its copy away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for mutant in chosen:
            mutant.applied(ROOT)
        with scratch() as place:
            if not options.no_baseline:
                _require_passing(place, chosen)
            return _run(place, chosen, all_=options.all)
    except OutOfDateError as error:
        _say(f"the list of mutants is out of date: {error}")
        return OUT_OF_DATE


def _require_passing(place: Scratch, mutants: Sequence[Mutant]) -> None:
    """A test that fails on the right program kills nothing."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    if not tests:
        raise OutOfDateError("no mutant has this name")
    result = place.run(tests, all_=True, seconds=BASELINE_SECONDS)
    if result.killers:
        raise OutOfDateError(f"fail without a mutant: {', '.join(result.killers)}")
    _say(f"{len(tests)} tests pass on the right program, {result.seconds:.0f} s\n")


def _run(place: Scratch, mutants: Sequence[Mutant], *, all_: bool) -> int:
    started = time.monotonic()
    survivors: list[str] = []
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        with place.mutated(mutant):
            result = place.run(mutant.tests, store=mutant.store, all_=all_)
        if not result.killers:
            survivors.append(mutant.name)
        _say(f"{mutant.name:<{width}}  {result.seconds:5.1f} s  {_told(result)}")
    seconds = time.monotonic() - started
    _say(f"\n{len(mutants)} mutants, {len(survivors)} survived, {seconds:.0f} s")
    for name in survivors:
        _say(f"survived: {name}")
    return SURVIVED if survivors else 0


def _told(result: Result) -> str:
    if not result.killers:
        return "SURVIVED"
    return ", ".join(killer.rsplit("/", 1)[-1] for killer in result.killers)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command of the developer's


if __name__ == "__main__":
    sys.exit(main())
