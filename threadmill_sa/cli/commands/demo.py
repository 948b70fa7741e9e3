"""`threadmill-sa demo`: the main job, watched."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from threadmill_sa.cli.demo.embedded import embedded_postgres, embedded_valkey
from threadmill_sa.cli.demo.report import make_report, report_rows
from threadmill_sa.cli.demo.run import Demo
from threadmill_sa.cli.demo.screen import Screen
from threadmill_sa.cli.demo.settings import DemoSettings
from threadmill_sa.cli.options import output_options, wants_json
from threadmill_sa.cli.output import emit_json, emit_table, note
from threadmill_sa.cli.redis_url import is_redis_url, redis_client, with_prefix
from threadmill_sa.cli.target import read_url

_CALM = ["--heartbeat", "3", "--heartbeat-timeout", "15"]
_KILLED = ["--heartbeat", "1", "--heartbeat-timeout", "3"]  # orphans are taken back soon
_SECONDS_PER_ORDER = 8 / 300  # the default size takes about eight seconds
_SECONDS_PER_KILL = 5.0  # start, life and recovery of one worker: producers go on so long
_RECEIVER_SECONDS = 0.05  # a slow receiver, so that kills also hit between delivery and mark


@click.command()
@click.option("--producers", type=click.IntRange(1, 32), default=4, show_default=True)
@click.option("--orders", type=click.IntRange(1, 1_000_000), default=300, show_default=True)
@click.option("--workers", type=click.IntRange(1, 100), default=4, show_default=True)
@click.option(
    "--url", metavar="URL", help="A PostgreSQL database or a Redis; works in a part of its own."
)
@click.option("--postgres", is_flag=True, help="Start an embedded PostgreSQL 18 for it.")
@click.option("--redis", is_flag=True, help="Start an embedded Valkey; the desk is on SQLite.")
@click.option("--kills", type=click.IntRange(0, 1000), default=0, help="kill -9 the worker.")
@click.option("--seed", type=int, help="Repeat the orders and kills of that run.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep sink, journals and logs in a new directory in here.",
)
@output_options
@click.pass_context
def demo(
    ctx: click.Context,
    /,
    *,
    url: str | None,
    postgres: bool,
    redis: bool,
    directory: Path | None,
    **sizes: Any,
) -> None:
    """An order desk with a transactional outbox, relayed by a nudged recurring task.

    Producer processes write orders and outbox rows and nudge the pump, in one transaction each;
    some roll back. A worker process relays the rows to a file. At the end every row is counted:
    exit code 1 when one was lost or out of order.
    """
    if (url is not None) + postgres + redis > 1:
        raise click.UsageError("--url, --postgres and --redis exclude each other")
    _check_url(url)
    with _server(url, postgres=postgres, redis=redis) as address, _workplace(directory) as place:
        report = _run(address, place.path, **sizes)
        if wants_json(ctx):
            emit_json(report)
        else:
            emit_table(("demo", "result"), report_rows(report))
        place.keep = directory is not None or not report["ok"]
    if not report["ok"]:
        ctx.exit(1)


def _server(url: str | None, *, postgres: bool, redis: bool) -> AbstractContextManager[str | None]:
    if postgres:
        return embedded_postgres()
    return embedded_valkey() if redis else nullcontext(url)


@dataclass(slots=True)
class _Workplace:
    """The directory of one demo."""

    path: Path
    keep: bool


@contextmanager
def _workplace(parent: Path | None) -> Iterator[_Workplace]:
    """A new directory: removed unless someone asked to keep it or something went wrong."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="threadmill-demo-", dir=parent))
    place = _Workplace(path, keep=True)
    try:
        yield place
    except KeyboardInterrupt:
        place.keep = parent is not None
        raise
    finally:
        if place.keep and any(path.iterdir()):
            note(f"sink, journals and logs are kept in {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)


def _run(
    url: str | None,
    place: Path,
    *,
    orders: int,
    producers: int,
    workers: int,
    kills: int,
    seed: int | None,
) -> dict[str, Any]:
    own = f"threadmill_demo_{secrets.token_hex(4)}"
    on_redis = url is not None and is_redis_url(url)
    settings = DemoSettings(
        url=f"sqlite:///{place / 'desk.db'}" if url is None or on_redis else url,
        directory=str(place),
        schema=None if url is None or on_redis else own,
        redis=with_prefix(url, own) if url is not None and on_redis else None,
        orders=orders,
        producers=producers,
        seed=secrets.randbelow(2**32) if seed is None else seed,
        spread_seconds=max(orders * _SECONDS_PER_ORDER, kills * _SECONDS_PER_KILL),
        receiver_seconds=_RECEIVER_SECONDS if kills else 0.0,
    )
    options = ["--workers", str(workers), *(_KILLED if kills else _CALM)]
    with Screen() as screen:
        outcome = Demo(settings, kills=kills, worker_options=options).run(screen.show)
    return make_report(settings, outcome)


def _check_url(url: str | None) -> None:
    if url is None:
        return
    if is_redis_url(url):
        redis_client(url)
        return
    if read_url(url).get_backend_name() != "postgresql":
        raise click.UsageError(
            "--url is for PostgreSQL or Redis; without it the demo runs on a SQLite file"
        )
