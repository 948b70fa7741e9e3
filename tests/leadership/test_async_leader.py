"""`AsyncLeader`, with its heartbeat on a thread and as a task of the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.leadership.conftest import FAST
from threadmill_sa import AsyncLeader, Grant, LossReason, Threadmill
from threadmill_sa.errors import InvalidValueError
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


def test_a_heartbeat_of_another_kind_is_refused(tm: Threadmill) -> None:
    with pytest.raises(InvalidValueError, match="'thread', 'task'"):
        tm.aleader("settle", heartbeat="process")
