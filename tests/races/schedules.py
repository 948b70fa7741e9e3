"""Schedules: which actor takes the next step, as tuples of actor numbers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

Schedule = tuple[int, ...]

FULL_MAX = 10_000  # pairs with at most so many schedules are enumerated in full
SWITCHES_MAX = 4  # of larger pairs: all schedules with at most so many changes of the actor
SAMPLE = 100  # one in so many belongs to the default run


def count_all(n: int, m: int) -> int:
    """The number of interleavings of `n` and `m` steps."""
    return comb(n + m, n)


def interleavings(n: int, m: int) -> Iterator[Schedule]:
    """Every order of `n` steps of actor 0 and `m` steps of actor 1, C(n + m, n) of them."""
    for places in combinations(range(n + m), n):
        schedule = [1] * (n + m)
        for place in places:
            schedule[place] = 0
        yield tuple(schedule)


def count_few(n: int, m: int, switches: int = SWITCHES_MAX) -> int:
    """The number of interleavings with at most `switches` changes of the actor."""
    return sum(
        _cuts(steps[0], (changes + 2) // 2) * _cuts(steps[1], (changes + 1) // 2)
        for changes in range(switches + 1)
        for steps in ((n, m), (m, n))
    )


def _cuts(steps: int, parts: int) -> int:
    """In how many ways `steps` are cut into `parts`, none of them empty."""
    if parts == 0:
        return int(steps == 0)
    return comb(steps - 1, parts - 1) if steps else 0


def few_switches(n: int, m: int, switches: int = SWITCHES_MAX) -> Iterator[Schedule]:
    """Every interleaving with at most `switches` changes of the actor."""
    for changes in range(switches + 1):
        for first, steps in ((0, (n, m)), (1, (m, n))):
            for own in _compositions(steps[0], (changes + 2) // 2):
                for others in _compositions(steps[1], (changes + 1) // 2):
                    yield _woven(first, own, others)


def _compositions(steps: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 0 or steps == 0:
        if parts == 0 and steps == 0:
            yield ()
        return
    for cuts in combinations(range(1, steps), parts - 1):
        ends = (*cuts, steps)
        yield tuple(end - start for start, end in zip((0, *cuts), ends, strict=True))


def _woven(first: int, own: Sequence[int], others: Sequence[int]) -> Schedule:
    schedule: list[int] = []
    for turn in range(len(own) + len(others)):
        length = own[turn // 2] if turn % 2 == 0 else others[turn // 2]
        schedule += [first if turn % 2 == 0 else 1 - first] * length
    return tuple(schedule)


def wanted(n: int, m: int) -> Iterator[Schedule]:
    """All schedules of a pair that has at most FULL_MAX, else those with few switches."""
    return interleavings(n, m) if count_all(n, m) <= FULL_MAX else few_switches(n, m)


def sampled(schedules: Iterable[Schedule], seed: str, one_in: int = SAMPLE) -> list[Schedule]:
    """A part of the schedules, the same one for the same `seed`; at least one."""
    known = list(schedules)
    return random.Random(seed).sample(known, max(1, round(len(known) / one_in)))


def shuffled(steps: Sequence[int], seed: str) -> Iterator[Schedule]:
    """Endless random orders of `steps[i]` steps of actor i, the same ones for the same `seed`."""
    source = random.Random(seed)
    pack = [actor for actor, count in enumerate(steps) for _ in range(count)]
    while True:
        source.shuffle(pack)
        yield tuple(pack)


@dataclass(frozen=True, slots=True)
class Choice:
    """One step that was let go: whose, and whose could have been let go instead."""

    actor: int
    runnable: frozenset[int]


def following(choices: Sequence[Choice], switches: int | None = None) -> Schedule | None:
    """Return the beginning of the next run, when `choices` were those of the last one.

    From the empty beginning on this visits every run that the actors can make, each once, when a
    run goes on as the driver does: with the same actor as long as it can, then with the first
    that can. Unlike a schedule of fixed length it also meets the steps that an actor takes only
    because of the other.

    Args:
        switches: most changes to another actor while the one before could have gone on.
    """
    for place in range(len(choices) - 1, -1, -1):
        actor = choices[place].actor
        order = _order(choices, place)
        others = order[order.index(actor) + 1 :]
        free = place == 0 or choices[place - 1].actor not in choices[place].runnable
        spent = 0 if switches is None else _switches(choices, place) + (not free)
        if others and (switches is None or spent <= switches):
            return (*[choice.actor for choice in choices[:place]], others[0])
    return None


def _order(choices: Sequence[Choice], place: int) -> list[int]:
    runnable = sorted(choices[place].runnable)
    last = choices[place - 1].actor if place else runnable[0]
    return [last, *(n for n in runnable if n != last)] if last in runnable else runnable


def _switches(choices: Sequence[Choice], place: int) -> int:
    """The changes of the actor before `place` that nothing made necessary."""
    return sum(
        choices[n].actor != choices[n - 1].actor and choices[n - 1].actor in choices[n].runnable
        for n in range(1, place)
    )
