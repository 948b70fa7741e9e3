"""Trigger values, their stored text, and arithmetic on intervals and long outages."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from threadmill_sa.errors import NaiveDatetimeError, ScheduleError
from threadmill_sa.model.trigger import (
    Cron,
    Every,
    Trigger,
    TriggerKind,
    fires_between,
    latest_fire,
    next_fire,
    parse_trigger,
    timing_fingerprint,
    trigger_text,
)

ANCHOR = datetime(2027, 1, 1, tzinfo=UTC)
NAIVE = datetime.fromisoformat("2027-01-01T00:00")
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


class TestValues:
    def test_cron_takes_its_zone_by_name_and_defaults_to_utc(self):
        trigger = Cron("30 2 * * *", zone="Europe/Berlin")

        assert (trigger.expression, trigger.zone) == ("30 2 * * *", "Europe/Berlin")
        assert Cron("30 2 * * *").zone == "UTC"

    def test_an_interval_is_the_sum_of_its_parts_or_one_timedelta(self):
        parts = Every(seconds=1.5, minutes=2, hours=3, days=4, weeks=1)

        assert timedelta(days=11, hours=3, minutes=2, seconds=1.5) == parts.interval
        assert Every(parts.interval) == parts
        assert parts.anchor is None

    def test_an_anchor_is_kept_as_an_instant(self):
        berlin = datetime(2027, 7, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))

        anchor = Every(hours=1, anchor=berlin).anchor

        assert datetime(2027, 7, 1, 7, tzinfo=UTC) == anchor
        assert anchor is not None
        assert anchor.tzinfo is UTC

    def test_a_naive_anchor_is_refused(self):
        with pytest.raises(NaiveDatetimeError, match="names no instant"):
            Every(hours=1, anchor=NAIVE)

    @pytest.mark.parametrize("trigger", [Cron("@daily", zone="Asia/Tokyo"), Every(hours=1)])
    def test_triggers_are_frozen_hashable_and_survive_copies(self, trigger):
        assert pickle.loads(pickle.dumps(trigger)) == trigger
        assert copy.deepcopy(trigger) == trigger
        assert len({trigger, copy.copy(trigger)}) == 1
        for field in dataclasses.fields(trigger):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(trigger, field.name, None)

    @pytest.mark.parametrize(
        "parts",
        [
            {},
            {"seconds": 0},
            {"seconds": -1},
            {"hours": 1, "minutes": -60},
            {"seconds": 0.000_9},
            {"days": 36_501},
            {"seconds": float("nan")},
            {"seconds": float("inf")},
            {"days": 10**12},
            {"seconds": "5"},
        ],
    )
    def test_an_interval_out_of_bounds_is_refused(self, parts):
        with pytest.raises(ScheduleError, match="interval of"):
            Every(**parts)

    def test_the_bounds_of_an_interval_are_accepted(self):
        assert timedelta(milliseconds=1) == Every(seconds=0.001).interval
        assert timedelta(days=36_500) == Every(days=36_500).interval

    @pytest.mark.parametrize("value", [30, "PT5M", True])
    def test_an_interval_that_is_no_timedelta_is_refused(self, value):
        with pytest.raises(ScheduleError, match=r"is no timedelta: write Every\(seconds"):
            Every(value)

    def test_a_timedelta_together_with_parts_is_refused(self):
        with pytest.raises(ScheduleError, match="give a timedelta or parts"):
            Every(timedelta(hours=1), minutes=5)


class TestStoredText:
    @pytest.mark.parametrize(
        ("trigger", "stored"),
        [
            (Every(minutes=10), (TriggerKind.INTERVAL, "600", "UTC")),
            (Every(seconds=0.5), (TriggerKind.INTERVAL, "0.5", "UTC")),
            (Every(seconds=100), (TriggerKind.INTERVAL, "100", "UTC")),
            (Every(seconds=1.000_001), (TriggerKind.INTERVAL, "1.000001", "UTC")),
            (Every(days=36_500), (TriggerKind.INTERVAL, "3153600000", "UTC")),
            (Cron("@daily", "Asia/Tokyo"), (TriggerKind.CRON, "@daily", "Asia/Tokyo")),
        ],
    )
    def test_a_trigger_returns_from_its_text(self, trigger, stored):
        assert stored == trigger_text(trigger)
        assert trigger == parse_trigger(*stored)
        assert trigger == parse_trigger(str(stored[0]), *stored[1:])

    def test_the_anchor_is_not_in_the_text(self):
        assert parse_trigger(*trigger_text(Every(hours=1, anchor=ANCHOR))) == Every(hours=1)

    @pytest.mark.parametrize(
        ("kind", "value", "zone"),
        [
            ("cron", "0 0 30 2 *", "UTC"),
            ("cron", "0 0 * * *", "Mars/Olympus"),
            ("cron", "0 0 * * *", None),
            ("cron", None, "UTC"),
            ("interval", "", "UTC"),
            ("interval", "0", "UTC"),
            ("interval", "-5", "UTC"),
            ("interval", "1e3", "UTC"),
            ("interval", "NaN", "UTC"),
            ("interval", "5 ", "UTC"),
            ("interval", "\u0665", "UTC"),
            ("interval", "0.0000001", "UTC"),
            ("interval", "9" * 400, "UTC"),
            ("interval", "999999999999", "UTC"),
            ("interval", None, "UTC"),
            ("hourly", "1", "UTC"),
            (None, "1", "UTC"),
        ],
    )
    def test_a_stored_trigger_that_cannot_be_evaluated_is_a_schedule_error(
        self, kind, value, zone
    ):
        with pytest.raises(ScheduleError):
            parse_trigger(kind, value, zone)


class TestFingerprint:
    def test_the_spelling_of_a_cron_expression_does_not_matter(self):
        same = {
            timing_fingerprint(Cron(text, "Asia/Tokyo"))
            for text in ("0 9 * JAN MON", " 00 9\t* jan mon ", "0 9 * 1 1")
        }

        assert {"cron:0 9 * 1 1@Asia/Tokyo"} == same

    @pytest.mark.parametrize(
        "other",
        [
            Cron("0 9 * * *", "Asia/Seoul"),
            Cron("0 9 */1 * *", "Asia/Tokyo"),
            Cron("0 9-9 * * 0-6", "Asia/Tokyo"),
            Every(days=1),
        ],
    )
    def test_another_timing_has_another_fingerprint(self, other):
        assert timing_fingerprint(Cron("0 9 * * *", "Asia/Tokyo")) != timing_fingerprint(other)

    def test_an_interval_has_its_seconds_and_an_explicit_anchor(self):
        east = timezone(timedelta(hours=2))

        assert timing_fingerprint(Every(minutes=10)) == "interval:600"
        assert timing_fingerprint(Every(seconds=600)) == "interval:600"
        anchored = timing_fingerprint(Every(minutes=10, anchor=ANCHOR))
        assert anchored == "interval:600@2027-01-01T00:00:00+00:00"
        moved = Every(minutes=10, anchor=ANCHOR + MINUTE)
        assert timing_fingerprint(moved) != anchored
        assert timing_fingerprint(Every(minutes=10, anchor=ANCHOR.astimezone(east))) == anchored


class TestIntervals:
    def test_the_first_fire_is_one_interval_after_the_anchor(self):
        trigger = Every(hours=1)

        for after in (ANCHOR - 1000 * DAY, ANCHOR, ANCHOR + 59 * MINUTE):
            assert next_fire(trigger, after, anchor=ANCHOR) == ANCHOR + 60 * MINUTE

    def test_next_is_strictly_later(self):
        fire = ANCHOR + timedelta(hours=7)

        assert fire + 60 * MINUTE == next_fire(Every(hours=1), fire, anchor=ANCHOR)

    def test_an_interval_is_elapsed_time_across_a_change_of_the_clock(self):
        anchor = datetime(2027, 3, 27, 16, tzinfo=ZoneInfo("Europe/Berlin"))
        trigger = Every(hours=12)

        first = next_fire(trigger, anchor, anchor=anchor)
        second = next_fire(trigger, first, anchor=anchor)

        assert datetime(2027, 3, 28, 3, tzinfo=UTC) == first
        assert datetime(2027, 3, 28, 15, tzinfo=UTC) == second

    def test_microseconds_do_not_drift(self):
        trigger = Every(seconds=0.1)
        after = ANCHOR + timedelta(days=3650, microseconds=1)

        assert ANCHOR + timedelta(days=3650, seconds=0.1) == next_fire(
            trigger, after, anchor=ANCHOR
        )

    def test_the_latest_fire_keeps_the_phase_after_a_long_outage(self):
        trigger = Every(seconds=0.001)
        known = ANCHOR + timedelta(seconds=1)
        until = ANCHOR + timedelta(days=20_000, microseconds=1_500)
        started = time.perf_counter()

        latest = latest_fire(trigger, until, not_before=known, anchor=ANCHOR)

        assert ANCHOR + timedelta(days=20_000, microseconds=1_000) == latest
        assert time.perf_counter() - started < 0.01

    @pytest.mark.parametrize("offset", [-DAY, timedelta(0), 59 * MINUTE])
    def test_the_known_fire_is_the_latest_when_no_later_one_was_reached(self, offset):
        known = ANCHOR + timedelta(hours=5)

        latest = latest_fire(Every(hours=1), known + offset, not_before=known, anchor=ANCHOR)

        assert known == latest

    def test_an_overdue_fire_of_an_older_timing_is_not_passed_backwards(self):
        off_grid = ANCHOR + 90 * MINUTE

        latest = latest_fire(
            Every(hours=1), off_grid + 10 * MINUTE, not_before=off_grid, anchor=ANCHOR
        )

        assert off_grid == latest


class TestOutages:
    @pytest.mark.parametrize(
        ("trigger", "latest"),
        [
            (Cron("* * * * *"), "2036-12-31T23:59:00"),
            (Cron("*/7 3 * * *"), "2036-12-31T03:56:00"),
            (Cron("0 9 13 * 5"), "2036-12-26T09:00:00"),
            (Cron("0 0 29 2 *"), "2036-02-29T00:00:00"),
            (Cron("30 2 * * *", "Europe/Berlin"), "2036-12-31T01:30:00"),
            (Cron("0 12 1 1 *"), "2036-01-01T12:00:00"),
        ],
    )
    def test_the_latest_cron_fire_is_found_after_years(self, trigger, latest):
        known = next_fire(trigger, ANCHOR, anchor=ANCHOR)
        until = datetime(2036, 12, 31, 23, 59, 59, tzinfo=UTC)
        started = time.perf_counter()

        found = latest_fire(trigger, until, not_before=known, anchor=ANCHOR)

        assert datetime.fromisoformat(latest).replace(tzinfo=UTC) == found
        assert time.perf_counter() - started < 0.25

    def test_a_fire_at_the_given_instant_counts(self):
        known, until = ANCHOR, ANCHOR + 10 * DAY

        assert until == latest_fire(Cron("@daily"), until, not_before=known, anchor=ANCHOR)
        assert until - DAY == latest_fire(
            Cron("@daily"), until - timedelta(microseconds=1), not_before=known, anchor=ANCHOR
        )

    def test_the_known_cron_fire_is_the_latest_when_no_later_one_was_reached(self):
        for until in (ANCHOR - DAY, ANCHOR, ANCHOR + 23 * 60 * MINUTE):
            assert latest_fire(Cron("@daily"), until, not_before=ANCHOR, anchor=ANCHOR) == ANCHOR


class TestFiresBetween:
    @pytest.mark.parametrize("trigger", [Cron("@daily"), Every(days=1)])
    def test_both_ends_are_included(self, trigger):
        found = fires_between(trigger, ANCHOR, ANCHOR + 3 * DAY, limit=100, anchor=ANCHOR)

        assert [ANCHOR + n * DAY for n in range(4)] == found

    @pytest.mark.parametrize("trigger", [Cron("@daily"), Every(days=1)])
    def test_no_more_than_the_limit(self, trigger):
        until = ANCHOR + 100 * DAY

        assert len(fires_between(trigger, ANCHOR, until, limit=2, anchor=ANCHOR)) == 2
        assert fires_between(trigger, ANCHOR, until, limit=0, anchor=ANCHOR) == []

    def test_a_first_fire_still_to_come_gives_nothing(self):
        assert fires_between(Cron("@daily"), ANCHOR, ANCHOR - DAY, limit=9, anchor=ANCHOR) == []


class TestEdges:
    LAST = datetime(9999, 12, 31, 23, 59, 30, tzinfo=UTC)

    @pytest.mark.parametrize(
        "trigger",
        [
            Every(hours=1),
            Cron("* * * * *"),
            Cron("30 2 * * *"),
            Cron("0 0 29 2 *"),
            Cron("* * * * *", "Asia/Tokyo"),
            Cron("30 2 * * *", "America/New_York"),
        ],
    )
    def test_the_end_of_the_calendar_is_a_schedule_error(self, trigger):
        with pytest.raises(ScheduleError, match="before the year 10000"):
            next_fire(trigger, self.LAST, anchor=ANCHOR)

    def test_fires_up_to_the_end_of_the_calendar_are_listed(self):
        first = datetime(9999, 12, 30, tzinfo=UTC)

        found = fires_between(Cron("@daily"), first, self.LAST, limit=9, anchor=ANCHOR)

        assert [first, first + DAY] == found
        assert first + DAY == latest_fire(
            Cron("@daily"), self.LAST, not_before=first, anchor=ANCHOR
        )

    def test_an_anchor_at_the_end_of_the_calendar_is_refused_with_its_instant(self):
        end = datetime.max.replace(tzinfo=UTC)

        with pytest.raises(ScheduleError, match=r"9999.*no room for a first fire 1:00:00 later"):
            Every(hours=1, anchor=end)
        assert Every(hours=1, anchor=end - 60 * MINUTE).anchor == end - 60 * MINUTE

    def test_an_instant_beyond_the_calendar_in_utc_is_a_schedule_error(self):
        west = timezone(timedelta(hours=-5))

        with pytest.raises(ScheduleError, match="outside the years"):
            next_fire(Every(hours=1), datetime.max.replace(tzinfo=west), anchor=ANCHOR)

    @pytest.mark.parametrize("trigger", [Cron("@daily"), Every(days=1)])
    def test_naive_instants_are_refused(self, trigger: Trigger):
        with pytest.raises(NaiveDatetimeError, match="after"):
            next_fire(trigger, NAIVE, anchor=ANCHOR)
        with pytest.raises(NaiveDatetimeError, match="anchor"):
            next_fire(trigger, ANCHOR, anchor=NAIVE)
        with pytest.raises(NaiveDatetimeError, match="not_before"):
            latest_fire(trigger, ANCHOR, not_before=NAIVE, anchor=ANCHOR)
        with pytest.raises(NaiveDatetimeError, match="until"):
            fires_between(trigger, ANCHOR, NAIVE, limit=1, anchor=ANCHOR)

    def test_results_are_in_utc_whatever_zone_came_in(self):
        tokyo = ANCHOR.astimezone(ZoneInfo("Asia/Tokyo"))

        for trigger in (Cron("@daily", "Europe/Berlin"), Every(days=1)):
            for fire in (
                next_fire(trigger, tokyo, anchor=tokyo),
                latest_fire(trigger, tokyo + 9 * DAY, not_before=tokyo, anchor=tokyo),
                *fires_between(trigger, tokyo, tokyo + 2 * DAY, limit=9, anchor=tokyo),
            ):
                assert fire.tzinfo is UTC
