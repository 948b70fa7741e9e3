"""A node that runs until a signal: the only place that installs signal handlers."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from threadmill_sa.engine.processing.node import ProcessingNode

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HURRIED_SIGNALS = 2  # the second gives jobs back at once; one more ends the process as it is
_SIGNAL_EXIT = 128
_EXIT_SECONDS = 5.0  # after a drain: time for the host's own threads and exit hooks


class StartInterruptedError(BaseException):
    """A signal arrived before the node ran. Not an Exception: start-up code must let it pass."""


class Signals:
    """SIGTERM and SIGINT as a queue, while in the `with` block. Main thread only.

    A handler may interrupt any bytecode of the main thread, so it takes no lock: it puts into a
    queue whose `put` may interrupt its own `get`.
    """

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._count = 0
        self._starting = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # A shell starts background commands with SIGINT ignored; that stays.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def starting(self) -> None:
        """From now on the first signal raises StartInterruptedError, one that came before too."""
        self._starting = True
        if self._count:
            self._starting = False
            raise StartInterruptedError

    def started(self) -> None:
        """From now on signals are only queued."""
        self._starting = False

    def drained(self) -> None:
        """Let `wait` return None."""
        self._received.put(None)

    def wait(self) -> int | None:
        """The next signal, or None once `drained` was called."""
        return self._received.get()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count > _HURRIED_SIGNALS:
            os._exit(_SIGNAL_EXIT + number)
        self._received.put(number)
        if self._starting:
            self._starting = False
            raise StartInterruptedError


def run_until_signal(
    build: Callable[[], ProcessingNode],
    *,
    announce: Callable[[ProcessingNode], None],
    tell: Callable[[str], None],
) -> int:
    """Build and start a node, run it until SIGTERM or SIGINT, drain it; returns the exit code.

    0 after a drain, also one that had to give jobs back at the end of the grace; 0 when the
    signal came during start-up. A second signal gives running jobs back at once: 128 plus its
    number. Attempts that are given back are not spent.
    """
    with Signals() as signals:
        node = None
        try:
            signals.starting()
            node = build()
            node.start()
            announce(node)
            signals.started()
        except StartInterruptedError:
            tell("stopped before the start")
            if node is not None:
                node.stop(0.0)
            return 0
        signals.wait()
        tell(
            f"draining: running jobs have {node.options.grace:g} s to end;"
            " a second signal gives them back at once"
        )
        return _drain(node, signals, tell)


def _drain(node: ProcessingNode, signals: Signals, tell: Callable[[str], None]) -> int:
    errors: list[BaseException] = []

    # In another thread, so that the main thread can hear a second signal.
    def stop() -> None:
        try:
            node.stop()
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            errors.append(error)
        finally:
            signals.drained()

    threading.Thread(target=stop, name="threadmill-drain", daemon=True).start()
    second = signals.wait()
    if second is not None:
        tell("giving running jobs back")
        node.stop(0.0)
        _exit_soon(_SIGNAL_EXIT + second)
        return _SIGNAL_EXIT + second
    if errors:
        raise errors[0]
    tell("drained")
    _exit_soon(0)
    return 0


def _exit_soon(code: int) -> None:
    """End the process even when a thread of the application never does."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(_EXIT_SECONDS, end)
    timer.daemon = True
    timer.start()
