"""Progress while a demo runs: a live panel on a terminal, a line a second elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from threadmill_sa.cli.demo.run import Progress
from threadmill_sa.cli.output import note

_LINE_SECONDS = 1.0
_FRAME_SECONDS = 0.1


class Screen:
    """Shows progress on stderr, so that stdout holds the result alone."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._shown = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        every = _LINE_SECONDS if self._live is None else _FRAME_SECONDS
        if progress.now - self._shown < every:
            return
        self._shown = progress.now
        facts = _facts(progress)
        if self._live is None:
            note("  ".join(f"{name} {value}" for name, value in facts.items()))
            return
        table = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            table.add_row(name, value)
        self._live.update(table, refresh=True)


def _facts(progress: Progress) -> dict[str, str]:
    facts = {
        "elapsed": f"{progress.now - progress.started:.0f}s",
        "committed": str(len(progress.commits.rows)),
        "relayed": str(len(progress.deliveries.first)),
        "nudges": str(progress.commits.nudges),
        "runs": str(progress.runs.attempts),
        "rolled-back": str(progress.commits.rolled_back),
    }
    if progress.kills:
        facts["kills"] = str(progress.kills)
    return facts
