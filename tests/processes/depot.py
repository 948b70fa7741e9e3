"""The application of these tests: what real workers import, and what the test's producers use."""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from threadmill_sa import Backoff, Every, JobContext, Threadmill, sqlite

PUMP = "parcel-pump"
MANY_ATTEMPTS = 100  # each killed attempt counts
POISON_ATTEMPTS = 2
SOON = Backoff(initial=0.05, factor=1, maximum=0.05, jitter=0)
HAUL_SECONDS = 0.1  # waiting, not work: what is measured is not the speed of the machine
_LOOK_SECONDS = 0.02
STARTS = "starts"

CREATE_PARCELS = "CREATE TABLE parcels (id integer PRIMARY KEY, carried integer NOT NULL)"
ADD_PARCEL = "INSERT INTO parcels (id, carried) VALUES (:id, 0)"
_CARRY = "UPDATE parcels SET carried = carried + 1 WHERE carried = 0"


def make() -> Threadmill:
    """The worker's Threadmill, as the environment says."""
    options = json.loads(os.environ.get("DEPOT_ENGINE", "{}"))
    engine = open_engine(os.environ["DEPOT_URL"], **options)
    return declare(Threadmill(engine), engine, Path(os.environ["DEPOT_DIRECTORY"]))


def slow() -> Threadmill:
    """The same, but its import never ends by itself."""
    (Path(os.environ["DEPOT_DIRECTORY"]) / "importing").touch()
    threading.Event().wait(120)
    return make()


def open_engine(url: str, **options: object) -> Engine:
    engine = create_engine(url, **options)
    if engine.dialect.name == "sqlite":
        sqlite.configure(engine)
    return engine


def declare(tm: Threadmill, engine: Engine, here: Path) -> Threadmill:
    """Let `tm` know every handler; those that run note their start in `here`."""

    @tm.job("haul", max_attempts=MANY_ATTEMPTS, backoff=SOON)
    def haul(number: int, ctx: JobContext) -> int:
        note_start(here, ctx)
        ctx.wait_cancelled(HAUL_SECONDS)
        return number

    @tm.job("hold", max_attempts=MANY_ATTEMPTS, backoff=SOON)
    def hold(ctx: JobContext) -> int:
        """Deaf to every cancellation; the first attempt waits for its file, the others do not."""
        note_start(here, ctx)
        (here / f"held.{os.getpid()}").touch()
        while ctx.attempt == 1 and not (here / "may-end").exists():
            threading.Event().wait(_LOOK_SECONDS)
        (here / f"let-go.{os.getpid()}").touch()
        return os.getpid()

    @tm.job("hog", max_attempts=MANY_ATTEMPTS, backoff=SOON)
    def hog(seconds: float, ctx: JobContext) -> int:
        """The first attempt keeps the interpreter lock: no other thread of its process runs."""
        note_start(here, ctx)
        if ctx.attempt == 1:
            while not nobody_is_in_a_transaction(engine):
                ctx.wait_cancelled(_LOOK_SECONDS)
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        return os.getpid()

    @tm.job("poison", max_attempts=POISON_ATTEMPTS, backoff=SOON)
    def poison(ctx: JobContext) -> None:
        """Takes its whole process down, as a fault in a C library does."""
        note_start(here, ctx)
        os.abort()

    @tm.job("pump", max_attempts=MANY_ATTEMPTS, backoff=SOON)
    def pump(ctx: JobContext) -> None:
        note_start(here, ctx)
        with engine.begin() as connection:
            connection.execute(text(_CARRY))

    tm.recurring(PUMP, pump, Every(hours=1))
    return tm


def note_start(here: Path, ctx: JobContext) -> None:
    """Add one line to the file of starts, whole or not at all."""
    line = f"{ctx.id} {ctx.attempt} {os.getpid()}\n"
    descriptor = os.open(here / STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def nobody_is_in_a_transaction(engine: Engine) -> bool:
    """Whether a process that stands still from now on would keep no lock."""
    if engine.dialect.name == "sqlite":
        assert engine.url.database is not None
        with closing(sqlite3.connect(engine.url.database, timeout=0.05)) as file:
            try:
                file.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # somebody writes
                return False
        return True
    with engine.connect() as connection:
        busy = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state <> 'idle'"
        )
        return not connection.scalar(busy)
