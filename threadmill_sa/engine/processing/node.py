"""A node: the process's part in running jobs, embedded in an application or alone."""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Self
from uuid import UUID

from threadmill_sa.clock import Clock
from threadmill_sa.engine.processing.crew import Crew
from threadmill_sa.engine.processing.handlers import HandlerRegistry
from threadmill_sa.engine.processing.options import NodeOptions, check_grace
from threadmill_sa.model.job import NodeId
from threadmill_sa.model.retention import DEFAULT_RETENTION, Retention
from threadmill_sa.spi.store import JobStore

__all__ = ["NodeOptions", "ProcessingNode"]

_log = logging.getLogger(__name__)


class ProcessingNode:
    """Claims and runs jobs, ticks recurring tasks and tidies up, from start to stop.

    Start: again while it runs is nothing; after a stop it runs anew under another id; a start
    that raises leaves nothing behind. Stop: before a start and twice is nothing; during a stop
    it shortens the grace. A forked child sees a stopped node. Installs no signal handlers. When
    the program ends without a stop, one happens at exit.
    """

    _crew: Crew | None
    _stopper: threading.Thread | None  # the thread that is stopping the crew
    _id: NodeId | None

    def __init__(
        self,
        store: JobStore,
        handlers: HandlerRegistry,
        options: NodeOptions,
        *,
        clock: Clock,
        ids: Callable[[datetime], UUID],
        retention: Retention = DEFAULT_RETENTION,
        before_start: Callable[[], None] | None = None,
        on_forgotten: Callable[[], None] = lambda: None,
        noise: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._options = options
        self._clock = clock
        self._ids = ids
        self._retention = retention
        self._before_start = before_start
        self._on_forgotten = on_forgotten
        self._noise = noise
        self._forget()

    @property
    def options(self) -> NodeOptions:
        return self._options

    @property
    def id(self) -> NodeId | None:
        """Random for each start; None before the first."""
        return self._id

    @property
    def running(self) -> bool:
        """True from a start until a stop begins, in the process that started it."""
        return self._crew is not None and self._stopper is None and self._pid == os.getpid()

    def start(self) -> None:
        """Begin to run jobs.

        Raises: what `before_start` raises, and StoreError when the first heartbeat fails.
        """
        if self._pid != os.getpid():
            # The threads stayed in the parent, and its locks may be held here for ever.
            self._forget()
        with self._lock:
            if self._crew is not None:
                return
            if self._before_start is not None:
                self._before_start()
            crew = Crew(
                self._store,
                self._handlers,
                self._options,
                self._retention,
                clock=self._clock,
                ids=self._ids,
                noise=self._noise,
                on_forgotten=self._on_forgotten,
            )
            # Known before it runs: a signal may interrupt any line from here on, and who stops the
            # node then must find it. Guarded by tests/processes/test_interrupted_start.py.
            self._crew = crew
            try:
                crew.start()
                self._id = crew.node_id
            except BaseException:
                if not crew.stopped:
                    crew.stop(0.0)
                self._crew = None
                raise
            # Daemon threads are frozen when the interpreter exits, so the drain must come before.
            atexit.register(self._at_exit)

    def stop(self, grace: float | None = None) -> None:
        """Claim no more, let running jobs end for `grace` seconds and give the others back.

        Bounds: the grace, then limits.COMPLETE_STOP_SECONDS when the store is out, then about
            limits.UNWIND_SECONDS for each part that does not end. A job that is given back
            keeps its attempt; its handler is told to stop and its late result is discarded.
        """
        seconds = self._options.grace if grace is None else check_grace(grace)
        if self._pid != os.getpid():
            return
        with self._lock:
            crew, stopper = self._crew, self._stopper
            if crew is None:
                return
            if stopper is None:
                self._stopper = threading.current_thread()
        if stopper is not None:
            crew.hurry(seconds)
            if stopper is not threading.current_thread():  # else a signal interrupted our stop
                crew.wait_stopped()
            return
        try:
            crew.stop(seconds)
        finally:
            atexit.unregister(self._at_exit)
            with self._lock:
                self._crew = self._stopper = None

    def wake(self) -> None:
        """Look for work now. Cheap, callable from any thread, nothing when stopped."""
        crew = self._crew
        if crew is not None and self._pid == os.getpid():
            crew.wake()

    def banner(self) -> dict[str, str]:
        """What to print at the start: store, identity, queues, sizes and cadences."""
        options = self._options
        return {
            "store": self._store.describe(),
            "node": "not started" if self._id is None else str(self._id),
            "queues": "all" if options.queues is None else ", ".join(options.queues),
            "handlers": ", ".join(sorted(self._handlers.names())) or "none",
            "workers": str(options.workers),
            "tick": f"{options.tick:g} s",
            "poll": f"{options.poll:g} s",
            "heartbeat": f"{options.heartbeat:g} s, timeout {options.heartbeat_timeout:g} s",
            "grace": f"{options.grace:g} s",
            "wakes": "on" if options.wakes and self._store.wakes is not None else "off",
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._crew = self._stopper = self._id = None

    def _at_exit(self) -> None:
        try:
            self.stop()
        except Exception:  # noqa: BLE001  Nobody is left to handle it.
            _log.exception("node could not be stopped at exit")
