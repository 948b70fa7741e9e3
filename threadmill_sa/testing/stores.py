"""Stores around another store: one that only forwards, one that fails and holds on demand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.spi.jobs import Jobs
from threadmill_sa.spi.leases import Leases
from threadmill_sa.spi.nodes import Nodes
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.recurring import Recurring
from threadmill_sa.spi.store import CannotJoin, JobStore, JoinedWrites, StoreCapabilities
from threadmill_sa.spi.wakes import WakeChannel

HOLD_MAX_SECONDS = 30.0  # a held call goes on by itself after this, so no test hangs for ever


class Gate:
    """Holds the calls of one operation, before their effect, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        """Let every held call and all later ones pass."""
        self._opened.set()

    def pass_through(self) -> None:
        self.reached.set()
        self._opened.wait(HOLD_MAX_SECONDS)


@dataclass(slots=True)
class _Fault:
    error: Exception
    skip: int  # calls that still pass
    times: int | None  # failures that are left; None: until mended
    after: bool  # fail after the effect, as a lost answer does

    def strikes(self) -> bool:
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


class ForwardingStore:
    """Forwards everything to `inner`; a subclass overrides `run_call` to see every call of a role.

    Operations are named by role and method, such as `"jobs.claim"`. What joins a caller's
    transaction and the wake channel are handed out as `inner` gives them.
    """

    def __init__(self, inner: JobStore) -> None:
        self.inner = inner
        self._jobs = cast("Jobs", _Role(self, "jobs", inner.jobs))
        self._recurring = cast("Recurring", _Role(self, "recurring", inner.recurring))
        self._nodes = cast("Nodes", _Role(self, "nodes", inner.nodes))
        leases = inner.leases
        self._leases = None if leases is None else cast("Leases", _Role(self, "leases", leases))
        records = inner.records
        self._records = (
            None if records is None else cast("NudgeRecords", _Role(self, "records", records))
        )

    @property
    def capabilities(self) -> StoreCapabilities:
        return self.inner.capabilities

    @property
    def jobs(self) -> Jobs:
        return self._jobs

    @property
    def recurring(self) -> Recurring:
        return self._recurring

    @property
    def nodes(self) -> Nodes:
        return self._nodes

    @property
    def leases(self) -> Leases | None:
        return self._leases

    @property
    def records(self) -> NudgeRecords | None:
        return self._records

    @property
    def wakes(self) -> WakeChannel | None:
        return self.inner.wakes

    def joined(self, handle: object) -> JoinedWrites | CannotJoin:
        return self.inner.joined(handle)

    def describe(self) -> str:
        return self.inner.describe()

    def check_ready(self) -> None:
        self.inner.check_ready()

    def close(self) -> None:
        self.inner.close()

    def run_call(self, operation: str, call: Callable[[], Any]) -> Any:
        """Make `call`, which is `operation` of the inner store, and return its result."""
        del operation
        return call()


class FaultingStore(ForwardingStore):
    """Fails, counts and holds the calls to `inner` on demand.

    With no fault and no gate it behaves as `inner`, so it can stand in for any store in tests.
    """

    def __init__(self, inner: JobStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault] = {}
        self._gates: dict[str, Gate] = {}
        self._calls: Counter[str] = Counter()

    def fail(
        self,
        operation: str,
        error: Exception | None = None,
        *,
        times: int | None = None,
        skip: int = 0,
        after: bool = False,
    ) -> None:
        """Let calls of `operation` raise, by default StoreUnavailableError until `mend`.

        The first `skip` calls pass, the next `times` fail; with `after` the effect happens and
        only the answer is lost.
        """
        fault = error or StoreUnavailableError(f"store is out: {operation} was told to fail")
        with self._lock:
            self._faults[operation] = _Fault(fault, skip, times, after)

    def mend(self, *operations: str) -> None:
        """Let `operations` work again, or all of them."""
        with self._lock:
            for operation in operations or tuple(self._faults):
                self._faults.pop(operation, None)

    def hold(self, operation: str) -> Gate:
        """Hold calls of `operation` at the returned gate, from now on."""
        gate = Gate()
        with self._lock:
            self._gates[operation] = gate
        return gate

    def calls(self, operation: str) -> int:
        """How often `operation` was called, failures included."""
        with self._lock:
            return self._calls[operation]

    def run_call(self, operation: str, call: Callable[[], Any]) -> Any:
        """Make `call` under what was arranged for `operation`."""
        with self._lock:
            self._calls[operation] += 1
            gate = self._gates.get(operation)
            fault = self._faults.get(operation)
            struck = fault if fault is not None and fault.strikes() else None
        if gate is not None:
            gate.pass_through()
        if struck is not None and not struck.after:
            raise struck.error
        result = call()
        if struck is not None:
            raise struck.error
        return result


class _Role:
    """Every method of one role, by way of the store's `run_call`."""

    def __init__(self, store: ForwardingStore, name: str, inner: object) -> None:
        self._store = store
        self._name = name
        self._inner = inner

    def __getattr__(self, method: str) -> Callable[..., Any]:
        target: Callable[..., Any] = getattr(self._inner, method)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._store.run_call(f"{self._name}.{method}", lambda: target(*args, **kwargs))

        return forward
