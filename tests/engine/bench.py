"""A store that can fail, a registry and nodes with tiny cadences, for the tests of the engine."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from typing import Any

from threadmill_sa._util.uuid7 import Uuid7Source
from threadmill_sa.clock import Clock, SystemClock
from threadmill_sa.codec import encode_payload
from threadmill_sa.engine.processing.handlers import HandlerRegistry, declare_handler
from threadmill_sa.engine.processing.inline import run_until_idle
from threadmill_sa.engine.processing.node import NodeOptions, ProcessingNode
from threadmill_sa.engine.recurring.materializer import Materializer
from threadmill_sa.model.job import Job, JobId, NewJob
from threadmill_sa.model.recurring import CronTask, MissedRunPolicy
from threadmill_sa.model.retention import DEFAULT_RETENTION
from threadmill_sa.model.retry import Backoff
from threadmill_sa.model.state import JobState
from threadmill_sa.model.trigger import Every, Trigger, timing_fingerprint, trigger_text
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.stores import FaultingStore

WAIT_SECONDS = 15.0  # nothing here takes this long unless it is broken
AT_ONCE = Backoff(initial=0)


class Bench:
    """Declares, enqueues, runs and looks."""

    def __init__(self, inner: JobStore, clock: Clock | None = None) -> None:
        self.store = FaultingStore(inner)
        self.clock = clock or SystemClock()
        self.ids = Uuid7Source()
        self.registry = HandlerRegistry()
        self.nodes: list[ProcessingNode] = []

    def declare(self, function: Callable[..., Any], name: str = "h", **options: Any) -> None:
        self.registry.add(declare_handler(function, name=name, **options))

    def enqueue(self, handler: str = "h", payload: object = None, **fields: Any) -> JobId:
        job_id = JobId(self.ids(self.clock.now()))
        text = None if payload is None else encode_payload(payload)
        self.store.inner.jobs.insert(
            [NewJob(id=job_id, handler=handler, payload=text, **fields)], now=self.instant()
        )
        return job_id

    def register(
        self,
        name: str,
        handler: str = "h",
        *,
        trigger: Trigger | None = None,
        missed: MissedRunPolicy = MissedRunPolicy.DROP,
    ) -> None:
        trigger = trigger or Every(hours=1)
        kind, value, zone = trigger_text(trigger)
        task = CronTask(
            name=name,
            trigger_kind=kind,
            trigger_value=value,
            zone=zone,
            handler=handler,
            timing_fingerprint=timing_fingerprint(trigger),
            missed_run_policy=missed,
        )
        self.store.inner.recurring.register(task, now=self.instant())

    def nudge(self, name: str) -> None:
        self.store.inner.recurring.request_cron_nudge(name, now=self.instant())

    def node(self, **options: Any) -> ProcessingNode:
        """A node that is stopped at the end of the test. Polls and ticks often by default."""
        before_start = options.pop("before_start", None)
        retention = options.pop("retention", DEFAULT_RETENTION)
        noise = options.pop("noise", random.random)
        chosen = {"tick": 0.05, "poll": 0.02, "grace": 10.0} | options
        node = ProcessingNode(
            self.store,
            self.registry,
            NodeOptions(**chosen),
            clock=self.clock,
            ids=self.ids,
            retention=retention,
            before_start=before_start,
            noise=noise,
        )
        self.nodes.append(node)
        return node

    def run_until_idle(self, **options: Any) -> int:
        return run_until_idle(
            self.store,
            self.registry,
            Materializer(self.store.recurring, self.ids),
            clock=self.clock,
            ids=self.ids,
            noise=lambda: 0.5,
            **options,
        )

    def instant(self) -> Any:
        return self.clock.now() if self.clock.injected else None

    def job(self, job_id: JobId) -> Job:
        job = self.store.inner.jobs.get(job_id)
        assert job is not None
        return job

    def state(self, job_id: JobId) -> JobState:
        return self.job(job_id).state

    def wait_state(self, job_id: JobId, state: JobState) -> Job:
        eventually(lambda: self.state(job_id) is state, f"job in {state}")
        return self.job(job_id)

    def reasons(self, job_id: JobId) -> list[str]:
        return [entry.reason for entry in self.job(job_id).history]

    def close(self) -> None:
        for node in self.nodes:
            node.stop(grace=0)


def eventually(condition: Callable[[], object], what: str) -> None:
    """Look again and again until `condition` holds; fails with `what` after WAIT_SECONDS."""
    never = threading.Event()
    monotonic = SystemClock().monotonic
    deadline = monotonic() + WAIT_SECONDS
    while not condition():
        assert monotonic() < deadline, f"waited {WAIT_SECONDS} s in vain for: {what}"
        never.wait(0.002)


def arrives(event: threading.Event) -> bool:
    return event.wait(WAIT_SECONDS)


def engine_threads() -> list[str]:
    """The names of the live threads of nodes."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if re.match(r"threadmill-[0-9a-f]{6}-", name)]
