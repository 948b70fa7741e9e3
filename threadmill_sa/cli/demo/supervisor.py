"""The worker process of the demo: started, killed now and then, and started again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from threadmill_sa.cli.demo.journal import Tail
from threadmill_sa.cli.demo.settings import DemoSettings

STOP_SECONDS = 20.0
_LIFE_MAX_SECONDS = 4.0  # of a worker that will be killed, from its banner


class Supervisor:
    """Keeps one `threadmill-sa worker` alive."""

    def __init__(self, settings: DemoSettings, options: Sequence[str]) -> None:
        self._environment = settings.environment()
        self._options = options
        self._out = Path(settings.directory) / "worker.out"
        self._log = Path(settings.directory) / "worker.log"
        self._banners = Tail(self._out)
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.ready = False  # its banner was read
        self.unexpected: list[int] = []  # exit codes nobody asked for

    @property
    def log(self) -> Path:
        return self._log

    def start(self) -> None:
        """Start the worker. Its stdin is a pipe that closes when this process ends."""
        command = [sys.executable, "-m", "threadmill_sa", "worker"]
        command += ["threadmill_sa.cli.demo.relay:app", "--json", *self._options]
        with self._out.open("ab") as out, self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this package, by this interpreter
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the demo alone
            )
        self.starts += 1
        self.ready = False

    def watch(self) -> None:
        """Notice a banner, and start the worker again when it has ended."""
        if self._process is None:
            return
        self.ready = bool(self._banners.read()) or self.ready
        code = self._process.poll()
        if code is not None:
            if code != -signal.SIGKILL:
                self.unexpected.append(code)
            self._release()
            self.start()

    def kill(self) -> None:
        """End it by SIGKILL; the next `watch` starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int | None:
        """SIGTERM, and kill -9 when that does not end it; returns the exit code.

        One that is ended before its banner may not listen to signals yet: that is a 0.
        """
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        finally:
            self._release()
        return 0 if code == -signal.SIGTERM and not self.ready else code

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


class Killer:
    """Decides when the worker dies: at a random age, half the time amid a delivery."""

    def __init__(self, supervisor: Supervisor, kills: int, seed: int) -> None:
        self._supervisor = supervisor
        self._left = kills
        self._random = random.Random(f"{seed}-kills")  # noqa: S311 - no secret
        self._due: float | None = None
        self._amid = False
        self._killed_at: float | None = None
        self.kills = 0
        self.recoveries: list[float] = []  # seconds from a kill to the next delivery

    @property
    def done(self) -> bool:
        return self._left == 0 and self._killed_at is None

    def look(self, now: float, delivered: Sequence[dict[str, Any]], *, producing: bool) -> None:
        """Kill when it is time.

        Args:
            now: seconds since 1970.
            delivered: the lines that came to the sink since the last look.
            producing: more deliveries will come; without them none is waited for.
        """
        if self._killed_at is not None and delivered:
            self.recoveries.append(delivered[0]["at"] - self._killed_at)
            self._killed_at = None
        if not producing and self._killed_at is not None:
            self._killed_at = None  # nothing was left to deliver
        if self._left == 0 or not self._supervisor.ready:
            self._due = None
            return
        if self._due is None:
            self._due = now + self._random.uniform(0, _LIFE_MAX_SECONDS)
            self._amid = self._random.random() < 0.5  # noqa: PLR2004 - a coin
        if now >= self._due and (delivered or not self._amid or not producing):
            self._supervisor.kill()
            self._supervisor.ready = False
            self._killed_at = self._killed_at or now
            self._left -= 1
            self.kills += 1
            self._due = None
