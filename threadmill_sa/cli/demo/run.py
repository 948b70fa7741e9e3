"""One demo from the first process to the verdict."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema, DropSchema

from threadmill_sa.app import Threadmill
from threadmill_sa.cli.demo.desk import Base, Order, OutboxRow
from threadmill_sa.cli.demo.journal import Tail
from threadmill_sa.cli.demo.judgement import Commits, Deliveries, RowKey, Runs
from threadmill_sa.cli.demo.relay import PUMP, declare
from threadmill_sa.cli.demo.settings import DemoSettings, wall_seconds
from threadmill_sa.cli.demo.supervisor import Killer, Supervisor
from threadmill_sa.cli.redis_url import delete_all
from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.state import UNFINISHED

_LOOK_SECONDS = 0.01
_SAMPLE_SECONDS = 0.25
START_SECONDS = 60.0  # for the worker's banner
_INSTANCES_MAX = 1_000_000  # of the pump, in one demo
_NEWEST = 20  # instances looked at in a sample: those that are unfinished are among them
STALL_SECONDS = 30.0  # without any delivery, what is missing counts as lost


@dataclass(slots=True)
class Progress:
    """What a demo has seen so far; the verdict is made of the same."""

    deliveries: Deliveries
    commits: Commits
    runs: Runs
    started: float
    most_unfinished: int = 0  # instances at once, in samples of the store
    now: float = 0.0
    kills: int = 0
    worker_starts: int = 0

    @property
    def missing(self) -> int:
        return len(self.commits.rows.keys() - self.deliveries.first.keys())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything the report is made of."""

    progress: Progress
    committed_rows: set[RowKey]  # what the database holds at the end
    origins: dict[str, int]  # instances of the pump by origin
    recoveries: list[float]
    producer_codes: list[int]
    worker_code: int | None
    unexpected_exits: list[int]
    store: str
    seconds: float


Show = Callable[[Progress], None]


class Demo:
    """Runs producers and a worker on a database of its own, and watches."""

    def __init__(self, settings: DemoSettings, *, kills: int, worker_options: list[str]) -> None:
        self._settings = settings
        self._supervisor = Supervisor(settings, worker_options)
        self._killer = Killer(self._supervisor, kills, settings.seed)
        self._producers: list[subprocess.Popen[bytes]] = []
        self._sink, self._runs = Tail(settings.sink), Tail(settings.runs)
        self._commits = [Tail(settings.commits(n)) for n in range(settings.producers)]
        self._pause = threading.Event()  # never set
        self._last_delivery = self._last_sample = 0.0

    def run(self, show: Show) -> Outcome:
        """Run it; `show` is called often, from this thread."""
        with _prepared(self._settings) as (engine, threadmill):
            progress = Progress(Deliveries(), Commits(), Runs(), wall_seconds())
            try:
                self._start(progress, show)
                self._watch(threadmill, progress, show)
            finally:
                worker_code = self._end()
            self._read(progress)
            rows, origins = _truth(engine, threadmill)
            return Outcome(
                progress=progress,
                committed_rows=rows,
                origins=origins,
                recoveries=self._killer.recoveries,
                producer_codes=[process.returncode for process in self._producers],
                worker_code=worker_code,
                unexpected_exits=self._supervisor.unexpected,
                store=threadmill.store.describe(),
                seconds=wall_seconds() - progress.started,
            )

    def _start(self, progress: Progress, show: Show) -> None:
        """Start every process; the producers begin once the worker runs."""
        self._supervisor.start()
        self._start_producers()
        while not self._supervisor.ready:
            progress.now = wall_seconds()
            if progress.now - progress.started > START_SECONDS or self._supervisor.unexpected:
                raise StoreUnavailableError(
                    f"the demo's worker did not start; its log is {str(self._supervisor.log)!r}"
                )
            show(progress)
            self._pause.wait(_LOOK_SECONDS)
            self._supervisor.watch()
        for process in self._producers:
            if process.stdin is not None:
                with suppress(BrokenPipeError), process.stdin as stdin:
                    stdin.write(b"go\n")

    def _start_producers(self) -> None:
        environment = self._settings.environment()
        log = Path(self._settings.directory) / "producers.log"
        for number in range(self._settings.producers):
            with log.open("ab") as errors:
                self._producers.append(
                    subprocess.Popen(  # noqa: S603 - this package, by this interpreter
                        [sys.executable, "-m", "threadmill_sa.cli.demo.producer", str(number)],
                        stdin=subprocess.PIPE,
                        stdout=errors,
                        stderr=errors,
                        env=environment,
                        start_new_session=True,
                    )
                )

    def _watch(self, threadmill: Threadmill, progress: Progress, show: Show) -> None:
        self._last_delivery = wall_seconds()
        while True:
            producing = any(process.poll() is None for process in self._producers)
            delivered = self._read(progress)
            progress.now = now = wall_seconds()
            self._supervisor.watch()
            self._killer.look(now, delivered, producing=producing or bool(progress.missing))
            progress.kills, progress.worker_starts = self._killer.kills, self._supervisor.starts
            if now - self._last_sample >= _SAMPLE_SECONDS:
                self._last_sample = now
                progress.most_unfinished = max(progress.most_unfinished, _unfinished(threadmill))
            show(progress)
            if delivered or producing:
                self._last_delivery = now
            stalled = now - self._last_delivery > STALL_SECONDS
            if not producing and (stalled or (not progress.missing and self._killer.done)):
                return
            self._pause.wait(_LOOK_SECONDS)

    def _read(self, progress: Progress) -> list[dict[str, Any]]:
        """Take in what the processes wrote since the last look; returns the deliveries."""
        for tail in self._commits:
            for line in tail.read():
                progress.commits.add(line)
        for line in self._runs.read():
            progress.runs.add(line)
        delivered = self._sink.read()
        for line in delivered:
            progress.deliveries.add(line)
        return delivered

    def _end(self) -> int | None:
        for process in self._producers:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        return self._supervisor.stop()


@contextmanager
def _prepared(settings: DemoSettings) -> Iterator[tuple[Engine, Threadmill]]:
    """Tables of ours and of the desk, and the registered pump; dropped again on a server."""
    engine = settings.engine()
    try:
        if settings.schema is not None:
            with engine.begin() as connection:
                connection.execute(CreateSchema(settings.schema))
        threadmill = declare(engine, settings)
        if settings.redis is None:
            threadmill.schema.migrate()
        Base.metadata.create_all(engine)
        threadmill.register()
        try:
            yield engine, threadmill
        finally:
            threadmill.close()
    finally:
        if settings.redis is not None:
            delete_all(settings.redis)
        if settings.schema is not None:
            with engine.begin() as connection:
                connection.execute(DropSchema(settings.schema, cascade=True, if_exists=True))
        engine.dispose()


def _truth(engine: Engine, threadmill: Threadmill) -> tuple[set[RowKey], dict[str, int]]:
    with Session(engine) as session:
        rows = session.execute(
            select(Order.number, OutboxRow.sequence, OutboxRow.event).join(OutboxRow.order)
        )
        committed = {(number, sequence, event) for number, sequence, event in rows}
    instances = threadmill.store.jobs.list(task=PUMP, limit=_INSTANCES_MAX)
    return committed, dict(Counter(str(job.cron_origin) for job in instances))


def _unfinished(threadmill: Threadmill) -> int:
    # In one reading: a job that moves on between two would be counted twice.
    newest = threadmill.store.jobs.list(task=PUMP, limit=_NEWEST)
    return sum(job.state in UNFINISHED for job in newest)
