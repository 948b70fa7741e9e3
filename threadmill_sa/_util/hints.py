"""Who wants to hear of which name, within one process."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from threadmill_sa._util.forks import renew_in_child

OnHint = Callable[[], None]


class HintBoard:
    """Callbacks by name. Hints may be spurious; none is delivered under the board's lock."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin with nobody: those who waited stayed in the parent."""
        self._lock = Lock()
        self._watching: dict[str, dict[object, OnHint]] = {}

    def watch(self, name: str, on_hint: OnHint) -> Callable[[], None]:
        """Add a callback; returns what takes it away again, any number of times."""
        key = object()
        with self._lock:
            self._watching.setdefault(name, {})[key] = on_hint

        def unwatch() -> None:
            with self._lock:
                found = self._watching.get(name, {})
                found.pop(key, None)
                if not found:
                    self._watching.pop(name, None)

        return unwatch

    @property
    def names(self) -> list[str]:
        """The watched names, sorted."""
        with self._lock:
            return sorted(self._watching)

    def hint(self, name: str) -> None:
        """Call everyone who watches `name`."""
        with self._lock:
            found = list(self._watching.get(name, {}).values())
        for on_hint in found:
            on_hint()

    def hint_all(self) -> None:
        """Call everyone, for when it is unknown what was missed."""
        for name in self.names:
            self.hint(name)
