from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest

from threadmill_sa._util.uuid7 import Uuid7Source

T0 = datetime(2026, 3, 2, 8, 0, 0, 123456, tzinfo=UTC)
T0_MILLIS = int(T0.timestamp() * 1000)


def millis(made: UUID) -> int:
    return made.int >> 80


def test_an_id_is_a_version_7_uuid_of_its_instant() -> None:
    made = Uuid7Source()(T0)

    assert (made.version, made.variant) == (7, RFC_4122)
    assert millis(made) == T0_MILLIS


def test_ids_of_one_instant_grow() -> None:
    source = Uuid7Source()

    made = [source(T0) for _ in range(10_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {millis(each) for each in made} == {T0_MILLIS}


def test_ids_grow_with_time() -> None:
    source = Uuid7Source()

    made = [source(T0 + timedelta(milliseconds=step)) for step in range(100)]

    assert [millis(each) for each in made] == [T0_MILLIS + step for step in range(100)]
    assert made == sorted(made)


def test_a_clock_that_steps_back_makes_no_smaller_id() -> None:
    source = Uuid7Source()
    first = source(T0)

    second = source(T0 - timedelta(hours=1))
    third = source(T0)

    assert first < second < third


def test_two_sources_make_different_ids_at_one_instant() -> None:
    one, other = Uuid7Source(), Uuid7Source()

    made = {one(T0) for _ in range(100)} | {other(T0) for _ in range(100)}

    assert len(made) == 200


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_extreme_entropy_still_gives_growing_version_7_ids(byte: bytes) -> None:
    source = Uuid7Source(lambda size: byte * size)

    made = [source(T0) for _ in range(1000)]

    assert made == sorted(set(made))
    assert {each.version for each in made} == {7}


def test_threads_share_a_source_without_a_double() -> None:
    source = Uuid7Source()
    made: list[UUID] = []

    def draw() -> None:
        made.extend([source(T0) for _ in range(2000)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(set(made)) == len(made) == 8000


def test_a_forked_process_does_not_continue_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = iter([b"\x00" * 8, b"\x7f" * 8])
    source = Uuid7Source(lambda _: next(noise))
    parent = source(T0)
    child_pid = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child_pid)

    child = source(T0)

    assert child.int - parent.int > 1 << 64  # far from the parent's next
