"""How long is nobody the leader, what do those cost who wait, and how late is a heartbeat?

Goals: hand-over after a graceful stop p99 < 100 ms with hints, less than a ttl without; takeover
after kill -9 within ttl + jitter; no write by anybody who does not hold the lease.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.common import database, percentile, report
from threadmill_sa import Threadmill, Timings

NAME = "settle"
TTL = 5.0
TIMINGS = Timings(ttl=TTL)
HANDOVERS = {"on": 100, "off": 5}
HINTED_GAP, UNHINTED_GAP = 0.2, 1.3 * TTL  # seconds between two hand-overs
KILLS = 6
CROWDS = (1, 10, 100)
CROWD_SECONDS = 15.0
BEATS = 8
WAIT_SECONDS = 30.0


def build(url: str, *, hints: bool = True) -> Threadmill:
    tm = Threadmill(create_engine(url))
    if not hints:
        leases: Any = tm.store.leases
        leases.watch = lambda _name, _on_hint: lambda: None
    return tm


def contend(url: str, news: Connection, orders: Connection, hints: bool) -> None:  # noqa: FBT001
    """A process that tells of each term and gives it up when told to."""
    leader = build(url, hints=hints).leader(NAME, timings=TIMINGS).start()
    news.send(("ready", 0, time.monotonic()))
    for grant in leader.terms():
        news.send(("began", grant.term, time.monotonic()))
        while grant:
            if orders.poll(0.005) and orders.recv() == grant.term:
                news.send(("resigns", grant.term, time.monotonic()))
                # So long that it is not the next one itself, and over when its turn comes.
                leader.resign(cooldown=(HINTED_GAP if hints else UNHINTED_GAP) - 0.05)
                grant.lost.wait(WAIT_SECONDS)


class Rival:
    def __init__(self, url: str, *, hints: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.news, news = context.Pipe(duplex=False)
        orders, self.orders = context.Pipe(duplex=False)
        self.process = context.Process(
            target=contend, args=(url, news, orders, hints), daemon=True
        )
        self.process.start()


def hear(rivals: list[Rival], word: str, after: int = -1) -> tuple[Rival, int, float]:
    """Wait for the next news of that kind and of a later term, from anybody."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        for rival in rivals:
            if rival.news.poll(0.001):
                found, term, at = rival.news.recv()
                if found == word and term > after:
                    return rival, term, at
    sys.exit(f"nobody said {word}")


def handovers(url: str, *, hints: bool) -> list[float]:
    gaps: list[float] = []
    first = Rival(url, hints=hints)
    leading, term, _ = hear([first], "began")
    second = Rival(url, hints=hints)
    hear([second], "ready")
    rivals = [first, second]
    while len(gaps) < HANDOVERS["on" if hints else "off"]:
        time.sleep(HINTED_GAP if hints else UNHINTED_GAP)  # the other waits again
        leading.orders.send(term)
        _, term, resigned = hear(rivals, "resigns", term - 1)
        leading, term, began = hear(rivals, "began", term)
        gaps.append((began - resigned) * 1000)
    for each in rivals:
        each.process.kill()
        each.process.join()
    return gaps


def takeovers(url: str) -> list[float]:
    gaps = []
    tm = build(url)
    for _ in range(KILLS):
        rival = Rival(url, hints=True)
        hear([rival], "began")
        leader = tm.leader(NAME, timings=TIMINGS).start()
        time.sleep(TTL / 2)
        rival.process.kill()
        killed = time.monotonic()
        if leader.wait_leader(WAIT_SECONDS) is None:
            sys.exit("nobody took over")
        gaps.append((time.monotonic() - killed) * 1000)
        rival.process.join()
        leader.stop()
    tm.close()
    return gaps


def crowd(url: str, size: int) -> dict[str, Any]:
    """Writes and reads of a second, with and without `size` contenders beside a leader."""
    tm = build(url)
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    leader = tm.leader(NAME, timings=TIMINGS).start()
    leader.wait_leader(WAIT_SECONDS)

    def window() -> tuple[float, float]:
        before = _table(engine)
        time.sleep(CROWD_SECONDS)
        after = _table(engine)
        return tuple((b - a) / CROWD_SECONDS for a, b in zip(before, after, strict=True))  # type: ignore[return-value]

    alone = window()
    waiters = [tm.leader(NAME, timings=TIMINGS).start() for _ in range(size)]
    for waiter in waiters:
        waiter.wait_for(lambda waiter=waiter: waiter.observed, WAIT_SECONDS)  # type: ignore[misc]
    time.sleep(1.0)
    together = window()
    for each in [*waiters, leader]:
        each.stop()
    tm.close()
    engine.dispose()
    return {
        "contenders": size,
        "writes_per_s_of_the_leader": alone[0],
        "writes_per_s_with_them": together[0],
        "reads_per_s_with_them": together[1],
    }


def _table(engine: Any) -> tuple[float, float]:
    time.sleep(1.2)  # sessions tell the statistics once a second
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        row = connection.execute(
            text(
                "SELECT n_tup_ins + n_tup_upd + n_tup_del, seq_scan + idx_scan"
                " FROM pg_stat_user_tables WHERE relname = 'threadmill_leases'"
            )
        ).one()
    return float(row[0]), float(row[1])


# Lateness of the heartbeat ---------------------------------------------------------------------


def beats(url: str, heartbeat: str, burden: Callable[[], Any]) -> list[float]:
    """How much later than due each renewal was sent, in ms."""
    tm = build(url)
    leases: Any = tm.store.leases
    sent: list[float] = []
    renew = leases.renew

    def noting(*args: Any, **kwargs: Any) -> Any:
        sent.append(time.monotonic())
        return renew(*args, **kwargs)

    leases.renew = noting

    async def main() -> None:
        leader = await tm.aleader(NAME, timings=TIMINGS, heartbeat=heartbeat).start()
        await leader.wait_leader(WAIT_SECONDS)
        with burden():
            end = time.monotonic() + 2 * BEATS * TIMINGS.seconds("renew_every")
            while len(sent) <= BEATS and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await leader.stop()

    asyncio.run(main())
    tm.close()
    due = TIMINGS.seconds("renew_every")
    return [max(0.0, b - a - due) * 1000 for a, b in pairwise(sent)]


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def saturated_loop() -> Iterator[None]:
    """Callbacks of 20 ms each, one after another, for ever."""
    loop = asyncio.get_running_loop()
    on = True

    def spin() -> None:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        if on:
            loop.call_soon(spin)

    loop.call_soon(spin)
    yield
    on = False


@contextmanager
def hogged_lock() -> Iterator[None]:
    """A thread that keeps the interpreter lock for a tenth of a second at a time."""
    on = True
    number = 3**400_000

    def hog() -> None:
        while on:
            str(number % 10**2000)
            _ = number * number  # one instruction: nobody else runs meanwhile

    thread = threading.Thread(target=hog, daemon=True)
    thread.start()
    yield
    on = False
    thread.join()


def summary(what: str, values: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        "tries": len(values),
        "p50_ms": percentile(values, 0.5),
        "p99_ms": percentile(values, 0.99),
        "max_ms": max(values),
    }


def main() -> None:
    lines = []
    with database() as url:
        for hints in (True, False):
            words = f"hand-over, hints {'on' if hints else 'off'}"
            lines.append(summary(words, handovers(url, hints=hints)))
        lines.append(summary("takeover after kill -9", takeovers(url)))
        for name, burden in (
            ("nothing", nothing),
            ("a saturated loop", saturated_loop),
            ("a hogged interpreter lock", hogged_lock),
        ):
            for heartbeat in ("thread", "task"):
                words = f"lateness, {heartbeat} under {name}"
                lines.append(summary(words, beats(url, heartbeat, burden)))
        report("leases", lines)
        report("lease_crowds", [crowd(url, size) for size in CROWDS])


if __name__ == "__main__":
    main()
