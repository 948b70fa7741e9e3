"""Real workers of the depot, its producers, and what must be true when the dust has settled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine, Table, func, select, text

from tests.cli.tools import WAIT_SECONDS, command, until
from tests.processes import depot
from threadmill_sa import JobId, Threadmill
from threadmill_sa.clock import SystemClock
from threadmill_sa.model.job import Job
from threadmill_sa.model.state import JobState
from threadmill_sa.stores.sql.store import SqlStore

ROOT = Path(__file__).resolve().parents[2]
HEARTBEAT, TIMEOUT = 0.5, 3.0  # seconds; short, so that a lost node is missed soon
WORKERS = 4
CADENCES = (
    *("--workers", str(WORKERS), "--tick", "0.2", "--poll", "0.1", "--grace", "10"),
    *("--heartbeat", str(HEARTBEAT), "--heartbeat-timeout", str(TIMEOUT)),
)
MAKE, SLOW = "tests.processes.depot:make", "tests.processes.depot:slow"
_AFTER_AN_OUTAGE = 120.0  # seconds, on a busy machine


class Worker:
    """One `threadmill-sa worker` of the depot and what it has said so far."""

    def __init__(self, label: str, here: Path, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._out, self._err = here / f"{label}.out", here / f"{label}.err"

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def node_id(self) -> str:
        node_id: str = json.loads(self.out)["node"]
        return node_id

    def wait_for_banner(self) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, self.err
            return '"node"' in self.out and self.out.endswith("\n")

        until(seen, "banner of the worker")

    def wait_for_words(self, words: str, *, seconds: float = WAIT_SECONDS) -> None:
        until(lambda: words in self.err, f"{words!r} on stderr", seconds=seconds)

    def kill(self) -> None:
        """End it as `kill -9` does, at whatever it is doing."""
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def exit_code(self) -> int:
        return self.process.wait(WAIT_SECONDS)


class Depot:
    """A database, the directory of its workers, and a Threadmill that only produces.

    Args:
        url: beside every proxy; `worker_url` is what the workers use.
        engine_options: keyword arguments of the workers' `create_engine`.
    """

    def __init__(
        self,
        url: str,
        here: Path,
        *,
        worker_url: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url, self.here = url, here
        self.engine: Engine = depot.open_engine(url, pool_pre_ping=True)  # outlives restarts
        self.tm = depot.declare(Threadmill(self.engine), self.engine, here)
        self.environment = {
            "DEPOT_URL": worker_url or url,
            "DEPOT_DIRECTORY": str(here),
            "DEPOT_ENGINE": json.dumps(dict(engine_options or {})),
        }
        self.workers: list[Worker] = []
        with self.engine.begin() as connection:
            connection.execute(text(depot.CREATE_PARCELS))
        self.tm.register()

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()  # also one that is stopped
            worker.process.wait(WAIT_SECONDS)
        self.tm.close()
        self.engine.dispose()

    # Workers -----------------------------------------------------------------------------------

    def launch(self, *arguments: str, app: str = MAKE, prefix: tuple[str, ...] = ()) -> Worker:
        """Start a worker and return at once; later arguments win over CADENCES."""
        label = f"worker-{len(self.workers)}"
        line = [*prefix, *command("worker", app, "--json", *CADENCES, *arguments)]
        environment = {**os.environ, **self.environment}
        places = [self.here / f"{label}.{stream}" for stream in ("out", "err")]
        with places[0].open("wb") as out, places[1].open("wb") as err:
            process = subprocess.Popen(line, cwd=ROOT, stdout=out, stderr=err, env=environment)
        worker = Worker(label, self.here, process)
        self.workers.append(worker)
        return worker

    def worker(self, *arguments: str) -> Worker:
        """A worker that runs."""
        worker = self.launch(*arguments)
        worker.wait_for_banner()
        return worker

    # Work --------------------------------------------------------------------------------------

    def haul(self, count: int) -> list[JobId]:
        """Enqueue `count` jobs of HAUL_SECONDS each."""
        return self.tm.enqueue_many([("haul", number) for number in range(count)])

    def job(self, job_id: JobId) -> Job:
        job = self.tm.get_job(job_id)
        assert job is not None
        return job

    def wait_for(self, name: str) -> None:
        until((self.here / name).exists, name)

    def succeeded(self) -> int:
        return self.tm.store.jobs.counts()[JobState.SUCCEEDED]

    def wait_succeeded(self, count: int, what: str) -> None:
        """Wait until so many jobs have succeeded."""
        until(lambda: self.succeeded() >= count, what)

    def wait_done(self, *, seconds: float = _AFTER_AN_OUTAGE) -> None:
        """Wait until every job has succeeded and no nudge is pending."""

        def done() -> bool:
            counts = self.tm.store.jobs.counts()
            succeeded = counts[JobState.SUCCEEDED]
            pending = self.tm.get_recurring(depot.PUMP).nudge_requested_at
            return pending is None and sum(counts.values()) == succeeded

        until(done, "the end of all jobs", seconds=seconds)

    def states(self) -> dict[str, int]:
        """Counted from the rows, not from the counters."""
        with self.engine.connect() as connection:
            rows = connection.execute(
                text("SELECT state, count(*) FROM threadmill_jobs GROUP BY state")
            )
            return {row[0]: row[1] for row in rows}

    def held_by(self, node_id: str | None = None) -> list[JobId]:
        """The jobs that run now, at one node or at all."""
        running = self.tm.list_jobs(state=JobState.PROCESSING, limit=500)
        return [job.id for job in running if node_id in (None, str(job.owner_node_id))]

    # Verdicts ----------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds after every fault, once all is done."""
        counts = {
            state.value: count for state, count in self.tm.store.jobs.counts().items() if count
        }
        assert counts == self.states()  # the counters are exact
        assert self._parcels("carried = 0") == 0  # each committed nudge had its run
        assert self._attempts_without_an_end() == []
        assert self.doubled_starts() == []

    def _parcels(self, condition: str) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(text(f"SELECT count(*) FROM parcels WHERE {condition}")) or 0

    def _attempts_without_an_end(self) -> list[Any]:
        """Jobs whose spent attempts do not each have one recorded end."""
        query = """
            SELECT j.id, j.attempt, count(h.job_id), count(DISTINCT h.attempt)
            FROM threadmill_jobs j LEFT JOIN threadmill_job_history h
              ON h.job_id = j.id AND h.state = 'FAILED' AND h.reason <> 'engine.shutdown'
            GROUP BY j.id, j.attempt
            HAVING count(h.job_id) <> j.attempt - 1 OR count(DISTINCT h.attempt) <> j.attempt - 1
        """
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)))

    def doubled_starts(self) -> list[Any]:
        """Attempts that were started more often than they were claimed."""
        query = """
            SELECT job_id, attempt, count(*) FROM threadmill_job_history
            WHERE state = 'FAILED' AND reason = 'engine.shutdown' GROUP BY job_id, attempt
        """
        with self.engine.connect() as connection:
            given_back = {
                (str(row[0]).replace("-", ""), row[1]): row[2]
                for row in connection.execute(text(query))
            }
        return [
            (key, count)
            for key, count in self.starts().items()
            if count > 1 + given_back.get(key, 0)
        ]

    def starts(self) -> Counter[tuple[str, int]]:
        """How often each attempt of each job was started, by all workers."""
        found: Counter[tuple[str, int]] = Counter()
        path = self.here / depot.STARTS
        for line in path.read_text().splitlines() if path.exists() else ():
            job_id, attempt, _ = line.split()
            found[job_id.replace("-", ""), int(attempt)] += 1
        return found

    def finished_between(self, start: datetime, end: datetime, *, handler: str = "haul") -> int:
        """How many jobs succeeded in [start, end), by the store's clock, which is this host's."""
        jobs = self.jobs
        query = (
            select(func.count())
            .where(jobs.c.state == "SUCCEEDED")
            .where(jobs.c.handler == handler)
            .where(jobs.c.state_at >= start)
            .where(jobs.c.state_at < end)
        )
        with self.engine.connect() as connection:
            return connection.scalar(query) or 0

    def first_finished_after(self, start: datetime) -> datetime | None:
        """When the first job ended after that instant."""
        query = select(func.min(self.jobs.c.state_at)).where(self.jobs.c.state_at > start)
        with self.engine.connect() as connection:
            found: datetime | None = connection.scalar(query)
            return found

    @property
    def jobs(self) -> Table:
        """The table of jobs, whose instants each database stores in its own way."""
        store = self.tm.store
        assert isinstance(store, SqlStore)
        return store._schema.jobs


def stop_when_quiet(worker: Worker, engine: Engine) -> None:
    """SIGSTOP the worker while it is in no transaction, whose locks would be stopped as well."""

    def stopped() -> bool:
        worker.process.send_signal(signal.SIGSTOP)
        if depot.nobody_is_in_a_transaction(engine):
            return True
        worker.process.send_signal(signal.SIGCONT)
        return False

    until(stopped, "a quiet moment of the worker")


class _Producing:
    """A thread with an engine of its own, from the start of the block to its end.

    Errors are the caller's own, as its row would raise them; a transaction that failed may have
    been committed all the same.
    """

    pause_seconds: float

    def __init__(
        self, depot_: Depot, *, url: str | None = None, first: int = 0, **options: Any
    ) -> None:
        self.engine = depot.open_engine(url or depot_.url, **options)
        self.tm = depot.declare(Threadmill(self.engine), self.engine, depot_.here)
        self.committed = 0
        self.errors: list[Exception] = []
        self._first = first
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self.tm.close()
        self.engine.dispose()

    def _run(self) -> None:
        number = self._first
        while not self._stopping.wait(self.pause_seconds):
            number += 1
            try:
                self.produce(number)
            except Exception as error:  # noqa: BLE001 - see above
                self.errors.append(error)
            else:
                self.committed += 1

    def produce(self, number: int) -> None:
        raise NotImplementedError


class Producer(_Producing):
    """Adds parcels with joined nudges, as fast as the store takes them."""

    pause_seconds = 0.01

    def produce(self, number: int) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(depot.ADD_PARCEL), {"id": number})
            self.tm.nudge(depot.PUMP, connection)


class Feeder(_Producing):
    """Keeps so many jobs ready that the workers are never idle."""

    pause_seconds = 0.1
    ready = 100  # several times what they haul in one pause

    def produce(self, number: int) -> None:
        if self.tm.store.jobs.queue_depths().get("default", 0) < self.ready:
            self.tm.enqueue_many([("haul", number)] * self.ready)


def wait_until(instant: datetime) -> None:
    """Let a measured span of time pass."""
    clock = SystemClock()
    left = (instant - clock.now()).total_seconds()
    until(lambda: clock.now() >= instant, "the end of the span", seconds=left + WAIT_SECONDS)


def pass_seconds(seconds: float) -> None:
    """Let a fault last."""
    wait_until(SystemClock().now() + timedelta(seconds=seconds))


@contextmanager
def open_depot(url: str, here: Path, **options: Any) -> Iterator[Depot]:
    """A depot on a migrated database; its workers are killed at the end."""
    found = Depot(url, here, **options)
    try:
        yield found
    finally:
        found.close()


PYTHON = sys.executable
