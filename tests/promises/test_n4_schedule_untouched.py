"""N4: a nudge never moves the schedule; a nudged instance has no fire time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.promises.shop import Shop
from threadmill_sa import Cron, Every, Threadmill
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.model.trigger import Trigger

SCHEDULES: dict[str, Trigger] = {
    "interval": Every(minutes=7),
    "cron": Cron("*/7 * * * *", zone="Europe/Berlin"),
}


def _declare(shop: Shop, schedule: str) -> str:
    name = f"by-{schedule}"
    process = Threadmill(shop.store)
    process.job("relay", queue="relay")(lambda: None)
    process.recurring(name, "relay", SCHEDULES[schedule])
    process.register()
    return name


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_n4_the_next_fire_stays_through_nudge_tick_run_and_follow_up(shop: Shop, schedule: str):
    name = _declare(shop, schedule)
    planned, preview = shop.view(name).next_run_at, shop.tm.preview(name)

    for _ in range(3):
        shop.nudge(name)
        assert shop.view(name).next_run_at == planned
        shop.tick()
        assert shop.view(name).next_run_at == planned
        shop.run_all()

    assert shop.view(name).next_run_at == planned
    assert shop.tm.preview(name) == preview
    assert [None] * 3 == [job.fire_time for job in shop.instances(name)]
    assert {CronOrigin.NUDGE} == {job.cron_origin for job in shop.instances(name)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_n4_the_fire_comes_at_its_instant_after_any_number_of_nudges(shop: Shop, schedule: str):
    name = _declare(shop, schedule)
    first, second = shop.tm.preview(name, 2)
    shop.nudge(name)
    shop.settle()

    [done] = [each for each in shop.tm.tick(now=first) if each.name == name]

    assert (done.origin, done.jobs[0].fire_time) == (CronOrigin.SCHEDULE, first)
    assert shop.view(name).next_run_at == second


def test_n4_a_joined_nudge_touches_neither_definition_nor_state(sql_shop: Shop):
    before = sql_shop.view()
    with sql_shop.transaction() as session:
        sql_shop.tm.nudge("pump", session)

    after = sql_shop.view()
    assert (after.next_run_at, after.updated_at, after.last_run_at, after.epoch) == (
        before.next_run_at,
        before.updated_at,
        before.last_run_at,
        before.epoch,
    )


def test_n4_a_nudged_run_in_flight_holds_a_fire_back_and_moves_no_later_one(shop: Shop):
    name = _declare(shop, "interval")
    [first] = shop.tm.preview(name, 1)
    shop.nudge(name)
    shop.tick()
    node, running = shop.claim()

    shop.tm.tick(now=first)
    assert shop.view(name).next_run_at == first
    shop.finish(node, running)
    late = first + timedelta(minutes=1)
    [done] = [each for each in shop.tm.tick(now=late) if each.name == name]

    assert done.jobs[0].fire_time == first
    assert shop.view(name).next_run_at == first + timedelta(minutes=7)
    assert datetime.now(UTC) < first
