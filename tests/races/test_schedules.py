"""The enumerations are whole, and as many as the formulas say."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from tests.races.schedules import (
    Choice,
    Schedule,
    count_all,
    count_few,
    few_switches,
    following,
    interleavings,
    sampled,
    shuffled,
)

SIZES = [(0, 3), (1, 1), (2, 3), (5, 2), (4, 4)]


def _switches(schedule: Schedule) -> int:
    return sum(left != right for left, right in pairwise(schedule))


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_interleavings_are_all_different_and_as_many_as_the_formula_says(n: int, m: int) -> None:
    found = list(interleavings(n, m))

    assert len(found) == len(set(found)) == count_all(n, m)
    assert all((each.count(0), each.count(1)) == (n, m) for each in found)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("most", [0, 1, 3, 4])
def test_few_switches_are_those_interleavings_with_at_most_so_many(
    n: int, m: int, most: int
) -> None:
    found = list(few_switches(n, m, most))

    assert sorted(found) == sorted(s for s in interleavings(n, m) if _switches(s) <= most)
    assert len(found) == count_few(n, m, most)


def test_a_sample_is_the_same_each_time_and_never_empty() -> None:
    everything = list(interleavings(5, 5))

    assert sampled(everything, "a") == sampled(everything, "a")
    assert sampled(everything, "a") != sampled(everything, "b")
    assert len(sampled(everything, "a", 100)) == 3
    assert len(sampled(interleavings(1, 1), "a", 100)) == 1


def test_random_schedules_give_each_actor_its_steps() -> None:
    first = list(islice(shuffled([3, 2, 1], "seed"), 5))

    assert first == list(islice(shuffled([3, 2, 1], "seed"), 5))
    assert {tuple(sorted(each)) for each in first} == {(0, 0, 0, 1, 1, 2)}
    assert len(set(first)) > 1


def _walk(steps: list[int], switches: int | None) -> list[Schedule]:
    """Every run of actors that never wait, as the driver would perform it."""
    found: list[Schedule] = []
    beginning: Schedule | None = ()
    while beginning is not None:
        left, choices = list(steps), list[Choice]()
        for place in range(sum(steps)):
            runnable = frozenset(n for n, count in enumerate(left) if count)
            last = choices[-1].actor if choices else 0
            goes_on = last if last in runnable else min(runnable)
            actor = beginning[place] if place < len(beginning) else goes_on
            left[actor] -= 1
            choices.append(Choice(actor, runnable))
        found.append(tuple(choice.actor for choice in choices))
        beginning = following(choices, switches)
    return found


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 4)])
def test_the_tree_of_choices_holds_every_interleaving_once(n: int, m: int) -> None:
    assert sorted(_walk([n, m], None)) == sorted(interleavings(n, m))


def test_the_tree_of_three_actors_holds_every_order() -> None:
    found = _walk([2, 1, 2], None)

    assert len(found) == len(set(found)) == 30


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_tree_keeps_to_few_switches(most: int) -> None:
    # Going on with the other actor where one has ended is no switch.
    expected = {s for s in interleavings(3, 3) if _voluntary(s) <= most}

    assert set(_walk([3, 3], most)) == expected


def _voluntary(schedule: Schedule) -> int:
    return sum(
        schedule[n] != schedule[n - 1] and schedule[n - 1] in schedule[n:]
        for n in range(1, len(schedule))
    )
