"""A switch for tests: whether a session's commit on a borrowed connection counts as final."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class _Switch:
    """Counts the open blocks. For the whole process: code under test may run in other threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._depth = 0

    @property
    def on(self) -> bool:
        return self._depth > 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self._lock:
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1


commit_is_final = _Switch()
