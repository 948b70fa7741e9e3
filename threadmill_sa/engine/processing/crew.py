"""The parts of one running node, from one start to its stop."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from threadmill_sa.clock import Clock, SystemClock, suspend_proof_seconds
from threadmill_sa.engine.processing import wakes
from threadmill_sa.engine.processing.attempts import AttemptBook
from threadmill_sa.engine.processing.completer import Completer
from threadmill_sa.engine.processing.dispatcher import Dispatcher
from threadmill_sa.engine.processing.execution import Execution
from threadmill_sa.engine.processing.failures import FailurePath
from threadmill_sa.engine.processing.handlers import HandlerRegistry
from threadmill_sa.engine.processing.heartbeats import Heartbeats
from threadmill_sa.engine.processing.maintenance import MaintenanceCycle
from threadmill_sa.engine.processing.maintenance_lease import MaintenanceLease
from threadmill_sa.engine.processing.options import NodeOptions
from threadmill_sa.engine.processing.recording import run_recorder
from threadmill_sa.engine.processing.retention import RetentionSweep
from threadmill_sa.engine.processing.runner import Runner
from threadmill_sa.engine.recurring.materializer import Materializer
from threadmill_sa.model import limits
from threadmill_sa.model.job import AttemptOutcome, ClaimedJob, NewJob, NodeId
from threadmill_sa.model.node import NodeInfo
from threadmill_sa.model.retention import Retention
from threadmill_sa.spi.store import JobStore

_log = logging.getLogger(__name__)


class Crew:
    """Everything that runs under one node id. Started once and stopped once.

    Waits of threads follow the process's monotonic clock even when a clock is injected: that one
    decides instants in the store, and may stand still.
    """

    def __init__(
        self,
        store: JobStore,
        handlers: HandlerRegistry,
        options: NodeOptions,
        retention: Retention,
        *,
        clock: Clock,
        ids: Callable[[datetime], UUID],
        noise: Callable[[], float],
        on_forgotten: Callable[[], None],
    ) -> None:
        self.node_id = NodeId(ids(clock.now()))
        self._store = store
        self._handlers = handlers
        self._options = options
        self._retention = retention
        self._on_forgotten = on_forgotten
        self._queues = None if options.queues is None else tuple(options.queues)
        self._clock = clock
        self._monotonic = SystemClock().monotonic
        self._deadline = float("inf")
        self._subscribed = False
        self._done = threading.Event()
        self._build(ids, noise)

    def _build(self, ids: Callable[[datetime], UUID], noise: Callable[[], float]) -> None:
        options, name = self._options, f"threadmill-{str(self.node_id)[-6:]}"
        failures = FailurePath(noise)
        self._book = AttemptBook(options.workers)
        self._completer = Completer(
            f"{name}-completer",
            self._store.jobs,
            self.node_id,
            self._book,
            instant=self._instant,
            monotonic=self._monotonic,
            on_recorded=self._recorded,
        )
        self._execution = Execution(
            self._handlers,
            Runner(failures, on_start=run_recorder(self._store, self._instant)),
            self._completer,
            self._book,
            workers=options.workers,
            clock=self._clock,
            monotonic=self._monotonic,
            name=name,
        )
        self._heartbeats = Heartbeats(
            f"{name}-heartbeats",
            self._store.nodes,
            self._info(),
            self._book,
            every_seconds=options.heartbeat,
            timeout_seconds=options.heartbeat_timeout,
            elapsed=suspend_proof_seconds,
            on_lost=self._execution.lose,
            on_forgotten=self._on_forgotten,
        )
        self._dispatcher = Dispatcher(
            f"{name}-dispatcher",
            jobs=self._store.jobs,
            node_id=self.node_id,
            handlers=self._handlers,
            book=self._book,
            execution=self._execution,
            queues=self._queues,
            poll_seconds=options.poll,
            instant=self._instant,
            may_claim=self._may_claim,
        )
        self._lease = self._lease_that_saves_work(noise)
        self._maintenance = self._maintenance_cycle(f"{name}-maintenance", failures, ids, noise)

    def _maintenance_cycle(
        self,
        name: str,
        failures: FailurePath,
        ids: Callable[[datetime], UUID],
        noise: Callable[[], float],
    ) -> MaintenanceCycle:
        return MaintenanceCycle(
            name,
            self._store,
            Materializer(self._store.recurring, ids),
            failures,
            self._handlers,
            retention=RetentionSweep(
                self._store.jobs,
                self._retention,
                instant=self._instant,
                monotonic=self._monotonic,
                noise=noise,
            ),
            tick_seconds=self._options.tick,
            heartbeat_timeout_seconds=self._options.heartbeat_timeout,
            instant=self._instant,
            monotonic=self._monotonic,
            noise=noise,
            relieved=lambda: self._lease is not None and self._lease.relieved,
            serves=self._serves,
            silent_since=self._heartbeats.silent_since,
            on_ready=self._dispatcher.wake,
            on_ready_elsewhere=self._notify_others,
        )

    def _lease_that_saves_work(self, noise: Callable[[], float]) -> MaintenanceLease | None:
        """The engine's lease, or None where every node keeps house at each tick.

        In memory there is one process, and on SQLite a renewal is a write in everybody's way. A
        node that hears no wakes has only its ticks.
        """
        options, leases = self._options, self._store.leases
        saves = options.wakes and options.tick < limits.RELIEVED_TICK_SECONDS
        if leases is None or not (saves and self._store.capabilities.own_clock):
            return None
        return MaintenanceLease(
            leases, noise=noise, on_alone=lambda: self._maintenance.wake(delayed=True)
        )

    def start(self) -> None:
        """Begin; a failure stops what had started and is raised."""
        try:
            self._heartbeats.start()
            self._completer.start()
            self._execution.start()
            self._maintenance.start()
            if self._lease is not None:
                self._lease.start()
            self._dispatcher.start()
            channel = self._store.wakes
            if self._options.wakes and channel is not None:
                self._subscribed = True
                wakes.subscribe(channel, self.wake)
        except BaseException:
            self.stop(0.0)
            raise

    def wake(self) -> None:
        """Look for work now: jobs, fires and nudges."""
        self._maintenance.wake(inserted=True)

    def hurry(self, grace: float) -> None:
        """Shorten the drain that is under way; never lengthens it."""
        self._deadline = min(self._deadline, self._monotonic() + grace)
        self._book.notify()

    @property
    def stopped(self) -> bool:
        """True once a stop has ended."""
        return self._done.is_set()

    def wait_stopped(self) -> None:
        """Wait until a `stop` that another thread began has ended."""
        self._done.wait(self._deadline_left() + limits.WAIT_MAX_SECONDS)

    def stop(self, grace: float) -> None:
        """Drain for `grace` seconds, give back what still runs, and end every part.

        1. No claims, no ticks, and another node keeps house. 2. Running handlers may end. 3. The
        rest is released: settled and told to stop. 4. The last outcomes are written. 5. Only then
        heartbeats end, or others would take the jobs over while they drain; a crash before costs
        one heartbeat timeout.
        """
        self.hurry(grace)
        try:
            self._dispatcher.ask_to_stop()
            self._maintenance.ask_to_stop()
            if self._lease is not None:
                self._lease.ask_to_stop()
            self._dispatcher.stop(self._deadline_left())
            self._book.wait_settled(self._deadline_left)
            # A claim that is still in flight releases what it brings by itself.
            self._dispatcher.stop(limits.COMPLETE_STOP_SECONDS)
            for attempt in self._book.unsettled():
                self._execution.release(attempt)
            self._completer.drain(self._deadline_left() + limits.COMPLETE_STOP_SECONDS)
            self._execution.stop()
            self._maintenance.stop(limits.UNWIND_SECONDS)
            if self._lease is not None:
                self._lease.stop(limits.UNWIND_SECONDS)
            self._unsubscribe()
            self._heartbeats.stop(limits.UNWIND_SECONDS)
            self._remove_node()
        finally:
            self._done.set()

    def _deadline_left(self) -> float:
        return max(0.0, self._deadline - self._monotonic())

    def _instant(self) -> datetime | None:
        return self._clock.now() if self._clock.injected else None

    def _may_claim(self) -> bool:
        return self._heartbeats.healthy() and not self._completer.stuck

    def _serves(self, job: NewJob) -> bool:
        served = self._queues is None or job.queue in self._queues
        return served and self._handlers.find(job.handler) is not None

    def _recorded(self, job: ClaimedJob, outcome: AttemptOutcome) -> None:
        if outcome.retry_seconds == 0:
            self._maintenance.wake(delayed=True)
        elif job.cron_task_name is not None:
            # The instance may have held back a nudge or a fire: follow up now, not next tick.
            self._maintenance.wake()

    def _notify_others(self) -> None:
        channel = self._store.wakes
        if channel is not None:
            channel.notify()

    def _unsubscribe(self) -> None:
        channel = self._store.wakes
        if self._subscribed and channel is not None:
            self._subscribed = False
            wakes.unsubscribe(channel, self.wake)

    def _remove_node(self) -> None:
        try:
            self._store.nodes.remove(self.node_id)
        except Exception as error:  # noqa: BLE001  A stop ends, whatever the store says.
            _log.warning("node %s could not be removed, it will expire: %s", self.node_id, error)

    def _info(self) -> NodeInfo:
        return NodeInfo(
            id=self.node_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues,
            workers=self._options.workers,
        )
