"""`AsyncLeader`, with its heartbeat on a thread and as a task of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.leadership.conftest import FAST
from threadmill_sa import AsyncLeader, Grant, LossReason, Threadmill
from threadmill_sa.engine.leadership.leader import StopReport
from threadmill_sa.engine.leadership.waiting import wait_for_change
from threadmill_sa.errors import DeclarationError, InvalidValueError
from threadmill_sa.testing.stores import FaultingStore

WAIT_SECONDS = 20.0
TTL = FAST.seconds("ttl")

both = pytest.mark.parametrize("heartbeat", ["thread", "task"])


async def lead(leader: AsyncLeader) -> Grant:
    await leader.start()
    grant = await leader.wait_leader(WAIT_SECONDS)
    assert grant is not None
    return grant


def block_the_loop(seconds: float) -> None:
    threading.Event().wait(seconds)


@both
def test_it_leads_renews_and_hands_over(tm: Threadmill, heartbeat: str) -> None:
    async def main() -> None:
        leader = tm.aleader("settle", timings=FAST, heartbeat=heartbeat)
        grant = await lead(leader)
        await asyncio.wait({asyncio.create_task(grant.wait_lost())}, timeout=1.3 * TTL)
        assert leader.is_leader
        assert leader.grant is grant
        other = await tm.aleader("settle", timings=FAST, heartbeat=heartbeat).start()
        assert await other.wait_leader(0.1) is None
        report = await leader.stop()
        assert report.released
        assert await other.wait_leader(WAIT_SECONDS)
        await other.stop()

    asyncio.run(main())


@both
def test_callbacks_run_on_the_loop_and_may_be_coroutines(tm: Threadmill, heartbeat: str) -> None:
    told: list[tuple[str, object, bool]] = []

    async def main() -> None:
        here = threading.current_thread()

        async def acquired(grant: Grant) -> None:
            await asyncio.to_thread(lambda: None)
            told.append(("acquired", grant.term, threading.current_thread() is here))

        def released(_: Grant, reason: LossReason) -> None:
            told.append(("released", reason, threading.current_thread() is here))

        async with tm.aleader(
            "settle",
            timings=FAST,
            on_acquired=acquired,
            on_released=released,
            heartbeat=heartbeat,
        ) as leader:
            await leader.wait_leader(WAIT_SECONDS)

    asyncio.run(main())

    assert told[-1] == ("released", LossReason.RELEASED, True) or told == []
    assert told[:1] in ([("acquired", 1, True)], [])


def test_a_blocked_loop_costs_no_lease_when_the_heartbeat_is_a_thread(tm: Threadmill) -> None:
    async def main() -> None:
        leader = tm.aleader("settle", timings=FAST)
        grant = await lead(leader)
        block_the_loop(2 * TTL)
        assert grant
        assert leader.is_leader
        await leader.stop()

    asyncio.run(main())


def test_a_blocked_loop_loses_the_lease_when_the_heartbeat_is_a_task(tm: Threadmill) -> None:
    async def main() -> None:
        leader = tm.aleader("settle", timings=FAST, heartbeat="task")
        grant = await lead(leader)
        other = tm.leader("settle", timings=FAST).start()
        block_the_loop(2 * TTL)
        # Before anything else could run on the thawed loop: judged by time alone.
        assert not grant
        assert not leader.is_leader
        assert other.is_leader
        assert await grant.wait_lost() is LossReason.EXPIRED
        await leader.stop()
        other.stop()

    asyncio.run(main())


@both
def test_terms_are_iterated_and_resigned(tm: Threadmill, heartbeat: str) -> None:
    async def main() -> list[int]:
        seen = []
        leader = await tm.aleader("settle", timings=FAST, heartbeat=heartbeat).start()
        async for grant in leader.terms():
            seen.append(grant.term)
            if grant.term == 2:
                await leader.stop()
            else:
                assert await leader.resign(cooldown=0)
        return seen

    assert asyncio.run(main()) == [1, 2]


def test_a_loop_that_ends_lets_the_lease_run_out(tm: Threadmill, faulty: FaultingStore) -> None:
    async def main() -> Grant:
        return await lead(tm.aleader("settle", timings=FAST, heartbeat="task"))

    grant = asyncio.run(main())

    assert not grant
    assert faulty.calls("leases.release") == 0
    with tm.lock("settle", timeout=WAIT_SECONDS, timings=FAST) as after:
        assert after.term == grant.term + 1


def test_a_loop_that_ends_lets_the_lease_of_a_thread_run_out(
    tm: Threadmill, faulty: FaultingStore
) -> None:
    """It failed: the heartbeat renewed for a closed loop, as long as the process lived."""
    told: list[str] = []
    leaders: list[AsyncLeader] = []

    async def main() -> Grant:
        leader = tm.aleader(
            "settle",
            timings=FAST,
            on_acquired=lambda _: told.append("acquired"),
            on_released=lambda *_: told.append("released"),
        )
        leaders.append(leader)
        return await lead(leader)

    grant = asyncio.run(main())

    assert grant.lost.wait(WAIT_SECONDS)
    assert faulty.calls("leases.release") == 0
    with tm.lock("settle", timeout=WAIT_SECONDS, timings=FAST) as after:
        assert after.term == grant.term + 1
    assert "released" not in told
    [leader] = leaders
    assert not leader.running

    async def again() -> None:
        async with leader:
            assert await leader.wait_leader(WAIT_SECONDS)

    asyncio.run(again())


@both
def test_a_leader_whose_loop_was_closed_starts_in_another_and_stops_without_a_wait(
    tm: Threadmill, heartbeat: str
) -> None:
    """It failed with a task: a loop that is closed without an end of its tasks cancels none."""
    leader = tm.aleader("settle", timings=FAST, heartbeat=heartbeat)

    def lead_and_close() -> Grant:
        loop = asyncio.new_event_loop()
        grant = loop.run_until_complete(lead(leader))
        loop.close()
        return grant

    first = lead_and_close()
    second = lead_and_close()
    assert second.term == first.term + 1
    assert first.lost.is_set()

    async def stop() -> StopReport:
        return await asyncio.wait_for(leader.stop(), WAIT_SECONDS)

    asyncio.run(stop())

    assert not leader.running


def test_a_callback_that_its_loop_leaves_alone_holds_up_nothing(tm: Threadmill) -> None:
    loop = asyncio.new_event_loop()
    leader = tm.aleader("settle", timings=FAST, on_acquired=lambda _: None)
    loop.run_until_complete(leader.start())
    # The loop turns no more: on_acquired is asked for and never comes.
    leader._leader.wait_for(lambda: leader.is_leader, WAIT_SECONDS)
    loop.close()

    leader._leader.wait_for(lambda: not leader.running, WAIT_SECONDS)

    assert not leader.running
    callbacks = leader._leader._seat.callbacks
    thread = callbacks._thread
    assert thread is not None
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


@both
def test_a_callback_may_stop_its_leader(tm: Threadmill, heartbeat: str) -> None:
    """It failed: the stop waited for the callback that waited for it."""

    async def main() -> None:
        reports: asyncio.Queue[tuple[StopReport, bool]] = asyncio.Queue()

        async def acquired(_: Grant) -> None:
            report = await leader.stop()
            reports.put_nowait((report, leader.is_leader))

        leader = tm.aleader("settle", timings=FAST, on_acquired=acquired, heartbeat=heartbeat)
        await leader.start()
        report, leads = await asyncio.wait_for(reports.get(), WAIT_SECONDS)
        await wait_for_change(leader._leader, lambda: not leader.running, WAIT_SECONDS)

        assert report == StopReport(released=False, stragglers=("on_acquired",))
        assert not leads
        assert not leader.running

    asyncio.run(main())
    [view] = tm.leases()
    assert view.holder is None


@both
def test_a_resignation_is_seen_at_once(tm: Threadmill, heartbeat: str) -> None:
    async def main() -> None:
        async with tm.aleader("settle", timings=FAST, heartbeat=heartbeat) as leader:
            await leader.wait_leader(WAIT_SECONDS)
            assert await leader.resign(cooldown=60)
            assert not leader.is_leader
            assert not await leader.resign()

    asyncio.run(main())


@pytest.mark.parametrize("option", ["on_acquired", "on_released"])
def test_a_callback_that_would_never_run_is_refused(tm: Threadmill, option: str) -> None:
    async def generator(*_: object) -> AsyncIterator[None]:
        yield

    for callback in (5, generator):
        options: dict[str, Any] = {option: callback}
        with pytest.raises(DeclarationError, match=option):
            tm.aleader("settle", **options)


def test_a_heartbeat_of_another_kind_is_refused(tm: Threadmill) -> None:
    with pytest.raises(InvalidValueError, match="'thread', 'task'"):
        tm.aleader("settle", heartbeat="process")
