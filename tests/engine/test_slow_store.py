"""A store whose every call takes long, beside beats that must arrive in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.bench import AT_ONCE, Bench, arrives, eventually
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.memory.store import MemoryStore
from threadmill_sa.testing.stores import ForwardingStore

CALL_SECONDS = 0.2
BEAT_SECONDS, TIMEOUT_SECONDS = 0.5, 1.5  # the shortest timeout that such beats may have
LOOKS = 5  # a turn of the housekeeping takes a second at such calls


class SlowStore(ForwardingStore):
    """Each call waits before its effect."""

    def __init__(self, inner: JobStore) -> None:
        super().__init__(inner)
        self.seconds = CALL_SECONDS
        self._never = threading.Event()

    def run_call(self, operation: str, call: Callable[[], Any]) -> Any:
        if operation.startswith(("jobs.", "nodes.", "recurring.")):
            self._never.wait(self.seconds)
        return call()


@pytest.fixture
def slow() -> SlowStore:
    return SlowStore(MemoryStore())


@pytest.fixture
def benches(slow: SlowStore) -> Iterator[list[Bench]]:
    """Two nodes' worth, on one store."""
    benches = [Bench(slow) for _ in range(2)]
    yield benches
    for bench in benches:
        bench.close()


def test_no_job_is_taken_from_a_node_whose_store_answers_slowly(
    slow: SlowStore, benches: list[Bench]
) -> None:
    runs: list[int] = []
    go_on = threading.Event()

    def long() -> None:
        runs.append(1)
        assert arrives(go_on)

    for bench in benches:
        bench.declare(long, backoff=AT_ONCE)
        bench.node(workers=4, heartbeat=BEAT_SECONDS, heartbeat_timeout=TIMEOUT_SECONDS).start()
    first = benches[0]
    job_ids = [first.enqueue() for _ in range(4)]
    eventually(lambda: len(runs) == 4, "all attempts")

    # Each of both looks for orphans for three times as long as a silent node would keep its jobs.
    eventually(
        lambda: all(bench.store.calls("jobs.reclaim") >= LOOKS for bench in benches), "the looks"
    )
    go_on.set()

    jobs = [first.wait_state(job_id, JobState.SUCCEEDED) for job_id in job_ids]
    assert [job.attempt for job in jobs] == [1] * 4
    assert len(runs) == 4
