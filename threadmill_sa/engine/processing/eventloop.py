"""The one thread with the event loop that runs async handlers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]


class LoopThread:
    """An event loop in a daemon thread, started by the first coroutine.

    No loop is captured before that, so objects made at import never bind to it by accident.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def submit(
        self,
        work: Work,
        *,
        done: Callable[[BaseException | None], None],
        context: contextvars.Context,
    ) -> None:
        """Run the coroutine that `work` makes; then call `done` on the loop's thread.

        Raises: RuntimeError when the thread cannot be started or is closing.
        """
        with self._lock:
            if self._closing:
                raise RuntimeError(f"event loop {self._name!r} is closing")
            loop = self._ready()
            loop.call_soon_threadsafe(self._begin, loop, work, done, context)

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` on the loop's thread soon; nothing when the loop has ended."""
        with self._lock:
            loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # closed in between: what ran on it has ended

    def stop(self, timeout: float) -> None:
        """Cancel what runs and end the loop; a coroutine that refuses keeps its daemon thread."""
        with self._lock:
            self._closing = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self.call(self._cancel_all)
        if thread is not threading.current_thread():
            thread.join(timeout)

    def _ready(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=self._main, args=(loop,), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._loop, self._thread = loop, thread
        return self._loop

    def _begin(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Work,
        done: Callable[[BaseException | None], None],
        context: contextvars.Context,
    ) -> None:
        task = loop.create_task(work(), context=context)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step never ran a line of its coroutine.
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            done(error)
            self._end_when_idle()

        task.add_done_callback(ended)

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self._closing and not self._tasks and self._loop is not None:
            self._loop.stop()

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            self._run(loop)
            loop.run_until_complete(_cancel_strays())
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException:  # noqa: BLE001  A bug; it must not end unseen.
            _log.exception("event loop %r ended by an error", self._name)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until this thread's end, whatever a handler does to it.

        SystemExit in a task that a handler started leaves the loop, and `loop.stop()` ends it;
        the other handlers go on.
        """
        while True:
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001  Every other attempt still needs it.
                _log.warning("event loop %r goes on after %s", self._name, type(error).__name__)
            if self._closing and not self._tasks:
                return


async def _cancel_strays() -> None:
    """End the tasks that handlers started and left."""
    strays = asyncio.all_tasks() - {asyncio.current_task()}
    for task in strays:
        task.cancel()
    if strays:
        await asyncio.wait(strays, timeout=1.0)
