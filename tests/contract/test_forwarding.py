"""The shipped contract suite on a store of somebody else, which wraps the one in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.state import JobState
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.nodes import Nodes
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.spi.store import JobStore
from threadmill_sa.stores.memory import MemoryStore
from threadmill_sa.testing.stores import FaultingStore, ForwardingStore
from threadmill_sa.testing.suite import SUITES
from threadmill_sa.testing.suite.tools import T0, insert, new_job

ROLES: dict[str, type] = {
    "jobs": Jobs,
    "recurring": Recurring,
    "nodes": Nodes,
    "leases": Leases,
    "records": NudgeRecords,
}
WAIT_SECONDS = 10.0


@pytest.fixture
def store() -> JobStore:
    return ForwardingStore(MemoryStore(record_nudges=True))


for _suite in SUITES:
    _name = f"Test{_suite.__name__.removesuffix('Suite')}"
    globals()[_name] = type(_name, (_suite,), {"__module__": __name__})


class _Told(ForwardingStore):
    """Remembers the operations and makes none."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(record_nudges=True))
        self.told: list[str] = []

    def run_call(self, operation: str, call: Callable[[], Any]) -> Any:
        del call
        self.told.append(operation)


def _members(protocol: type) -> Iterator[str]:
    return (name for name, _ in inspect.getmembers(protocol) if not name.startswith("_"))


def test_every_member_of_a_store_is_forwarded() -> None:
    assert set(_members(JobStore)) <= set(_members(ForwardingStore))


def test_every_role_of_a_store_is_known_here() -> None:
    roles = {
        name
        for name, member in inspect.getmembers(JobStore)
        if isinstance(member, property)
        and member.fget is not None
        and name not in {"capabilities", "wakes"}
    }

    assert roles == set(ROLES)


@pytest.mark.parametrize(
    ("role", "method"), [(role, name) for role, kind in ROLES.items() for name in _members(kind)]
)
def test_each_operation_of_a_role_goes_by_its_name(role: str, method: str) -> None:
    store = _Told()

    getattr(getattr(store, role), method)()

    assert store.told == [f"{role}.{method}"]


def test_a_fault_before_the_effect_leaves_nothing_behind() -> None:
    store = FaultingStore(MemoryStore())
    store.fail("jobs.insert")

    with pytest.raises(StoreUnavailableError):
        insert(store)

    assert store.jobs.list() == []


def test_a_fault_after_the_effect_loses_the_answer_alone() -> None:
    store = FaultingStore(MemoryStore())
    store.fail("jobs.insert", after=True)

    with pytest.raises(StoreUnavailableError):
        insert(store)

    assert len(store.jobs.list()) == 1


def test_a_fault_strikes_at_the_call_it_was_arranged_for() -> None:
    store = FaultingStore(MemoryStore())
    store.fail("jobs.insert", ZeroDivisionError("told"), skip=2, times=1)

    failed = []
    for number in range(5):
        try:
            insert(store)
        except ZeroDivisionError:
            failed.append(number)

    assert failed == [2]
    assert store.calls("jobs.insert") == 5


def test_a_mended_operation_works_again() -> None:
    store = FaultingStore(MemoryStore())
    store.fail("jobs.insert")
    store.fail("jobs.list")

    store.mend("jobs.insert")

    insert(store)
    with pytest.raises(StoreUnavailableError):
        store.jobs.list()
    store.mend()
    assert len(store.jobs.list()) == 1


def test_a_held_call_has_no_effect_until_its_gate_opens() -> None:
    store = FaultingStore(MemoryStore())
    gate = store.hold("jobs.insert")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.jobs.insert, [new_job()], now=T0)
        assert gate.reached.wait(WAIT_SECONDS)
        before = store.jobs.counts()[JobState.ENQUEUED]
        gate.open()
        waiting.result(WAIT_SECONDS)

    assert (before, store.jobs.counts()[JobState.ENQUEUED]) == (0, 1)
