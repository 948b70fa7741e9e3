"""Fires around changes of the clock, one named case for each way that others broke."""

from __future__ import annotations

import itertools
import struct
import time
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib import resources

import pytest

from threadmill_sa.errors import ScheduleError
from threadmill_sa.model import walltime
from threadmill_sa.model.trigger import Cron, Trigger, fires_between, latest_fire, next_fire

ANCHOR = datetime(2027, 1, 1, tzinfo=UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, zone: str, after: str, until: str) -> list[str]:
    """Fires in (after, until], both UTC, as UTC text to the minute."""
    trigger, cursor, found = Cron(expression, zone=zone), utc(after), []
    while (cursor := next_fire(trigger, cursor, anchor=ANCHOR)) <= utc(until):
        found.append(f"{cursor:%d %H:%M}")
    return found


class TestGaps:
    def test_a_gap_at_midnight_loses_no_slot_of_the_day(self):
        found = fires("0 */2 * * *", "Africa/Cairo", "2027-04-29T19:59", "2027-04-30T06:00")

        # Local 22:00; 00:00 is missing; 02:00, 04:00 ... in summer time.
        assert found == ["29 20:00", "29 23:00", "30 01:00", "30 03:00", "30 05:00"]

    @pytest.mark.parametrize("expression", ["0 0 * * *", "0 6 * * *"])
    def test_a_gap_at_midnight_answers_in_bounded_time_and_moves_on(self, expression):
        after = utc("2027-09-05T03:00")  # 23:00 in Santiago; 00:00 is skipped at 04:00Z
        started = time.perf_counter()

        fire = next_fire(Cron(expression, zone="America/Santiago"), after, anchor=ANCHOR)

        assert time.perf_counter() - started < 0.05
        hour = {"0 0 * * *": 4, "0 6 * * *": 9}[expression]
        assert datetime(2027, 9, 5, hour, tzinfo=UTC) == fire

    @pytest.mark.parametrize(
        ("expression", "times"),
        [
            ("0 2 * * *", ["27 01:00", "28 01:00", "29 00:00"]),
            ("30 2 * * *", ["27 01:30", "28 01:00", "29 00:30"]),
            ("0 12 * * *", ["27 11:00", "28 10:00", "29 10:00"]),
        ],
    )
    def test_a_daily_time_inside_the_gap_fires_once_when_the_gap_ends(self, expression, times):
        found = fires(expression, "Europe/Berlin", "2027-03-27T00:30", "2027-03-29T12:00")

        assert times == found[-3:]

    def test_two_fixed_times_that_meet_at_the_end_of_the_gap_fire_once(self):
        found = fires("0 2,3 * * *", "Europe/Berlin", "2027-03-28T00:00", "2027-03-29T02:00")

        assert found == ["28 01:00", "29 00:00", "29 01:00"]

    def test_an_elapsed_expression_skips_readings_that_do_not_exist(self):
        found = fires("*/30 2 * * *", "Europe/Berlin", "2027-03-27T01:00", "2027-03-29T01:00")

        assert found == ["27 01:30", "29 00:00", "29 00:30"]

    def test_a_half_hour_gap_ends_at_half_past(self):
        found = fires("15 2 * * *", "Australia/Lord_Howe", "2027-10-02T00:00", "2027-10-04T00:00")

        assert found == ["02 15:30", "03 15:15"]

    def test_midnight_of_each_date_fires_although_a_day_has_23_hours(self):
        found = fires("0 0 * * *", "US/Pacific", "2027-03-13T12:00", "2027-03-16T12:00")

        assert found == ["14 08:00", "15 07:00", "16 07:00"]

    def test_a_weekly_slot_after_a_short_day_is_kept(self):
        found = fires("0 12 * * 0", "Europe/Berlin", "2027-03-25T00:00", "2027-04-05T00:00")

        assert found == ["28 10:00", "04 10:00"]


class TestRepeatedHours:
    def test_a_fixed_time_fires_the_first_time_only(self):
        found = fires("30 1 * * *", "America/New_York", "2026-10-31T12:00", "2026-11-02T12:00")

        assert found == ["01 05:30", "02 06:30"]

    def test_an_hourly_expression_fires_in_both_hours(self):
        found = fires("0 * * * *", "America/New_York", "2026-11-01T04:00", "2026-11-01T08:00")

        assert found == ["01 05:00", "01 06:00", "01 07:00", "01 08:00"]

    def test_a_range_of_all_hours_is_fixed_and_skips_the_repeated_hour(self):
        found = fires("0 0-23 * * *", "America/New_York", "2026-11-01T04:00", "2026-11-01T08:00")

        assert found == ["01 05:00", "01 07:00", "01 08:00"]

    def test_half_hours_fire_in_both_hours(self):
        found = fires("*/30 * * * *", "America/New_York", "2026-11-01T05:00", "2026-11-01T07:00")

        assert found == ["01 05:30", "01 06:00", "01 06:30", "01 07:00"]

    @pytest.mark.parametrize(
        ("expression", "zone", "after", "fire"),
        [
            ("0 20 * * *", "Europe/London", "2026-10-25T12:00", "2026-10-25T20:00"),
            ("10 3 * * 0", "America/New_York", "2026-11-01T00:00", "2026-11-01T08:10"),
            ("0 0 * * *", "America/New_York", "2026-11-01T12:00", "2026-11-02T05:00"),
        ],
    )
    def test_a_time_after_the_repeated_hour_is_not_shifted(self, expression, zone, after, fire):
        assert utc(fire) == next_fire(Cron(expression, zone=zone), utc(after), anchor=ANCHOR)

    @pytest.mark.parametrize("expression", ["30 * * * *", "30 3 * * *", "* * * * *"])
    def test_next_moves_on_from_the_second_reading_of_an_hour(self, expression):
        helsinki = zoneinfo.ZoneInfo("Europe/Helsinki")
        last = datetime(2027, 10, 31, 3, 30, tzinfo=helsinki, fold=1)

        fire = next_fire(Cron(expression, zone="Europe/Helsinki"), last, anchor=ANCHOR)

        expected = {
            "30 * * * *": utc("2027-10-31T02:30"),
            "30 3 * * *": utc("2027-11-01T01:30"),
            "* * * * *": utc("2027-10-31T01:31"),
        }
        assert expected[expression] == fire

    def test_a_fixed_time_between_two_readings_of_an_hour_waits_for_the_next_day(self):
        # Between the passes 01:30 is still ahead on the clock, but it has fired already.
        found = fires("30 1 * * *", "America/New_York", "2026-11-01T06:05", "2026-11-02T12:00")

        assert found == ["02 06:30"]

    def test_a_dense_fixed_expression_does_not_walk_through_the_repeated_hour(self):
        asked = []

        def every_minute(after: datetime) -> datetime:
            asked.append(after)
            return after.replace(second=0, microsecond=0) + timedelta(minutes=1)

        zone = zoneinfo.ZoneInfo("Europe/Berlin")
        fire = walltime.next_fixed(every_minute, zone, utc("2027-10-31T01:05"))

        assert utc("2027-10-31T02:00") == fire
        assert len(asked) == 1

    def test_the_reading_at_which_the_clock_is_put_back_fires_after_the_repeat(self):
        found = fires("0 3 * * *", "Europe/Berlin", "2027-10-31T01:30", "2027-11-01T00:00")

        assert found == ["31 02:00"]

    def test_an_elapsed_expression_returns_to_a_reading_already_passed(self):
        # 02:50 the first time; 02:00 comes again before any later match.
        found = fires("*/45 2 * * *", "Europe/Berlin", "2027-10-31T00:50", "2027-10-31T12:00")

        assert found == ["31 01:00", "31 01:45"]

    def test_equal_offsets_at_both_ends_do_not_hide_the_changes_between(self):
        # Yearly, elapsed: summer time begins and ends between two fires with equal offsets.
        found = fires("*/30 2 15 1 *", "Europe/Berlin", "2027-01-15T01:30", "2028-01-15T01:30")

        assert found == ["15 01:00", "15 01:30"]


class TestOddZones:
    def test_a_date_that_never_existed_has_at_most_one_fire(self):
        found = fires("0 9 * * *", "Pacific/Apia", "2011-12-28T12:00", "2011-12-31T12:00")

        # 28 and 29 December; the end of the skipped 30th; 31 December.
        assert found == ["28 19:00", "29 19:00", "30 10:00", "30 19:00"]

    def test_midnight_after_the_date_that_never_existed_fires_once(self):
        found = fires("0 0 * * *", "Pacific/Apia", "2011-12-28T12:00", "2012-01-01T00:00")

        assert found == ["29 10:00", "30 10:00", "31 10:00"]

    def test_an_elapsed_expression_skips_the_date_that_never_existed(self):
        found = fires("0 */12 * * *", "Pacific/Apia", "2011-12-29T12:00", "2011-12-31T12:00")

        assert found == ["29 22:00", "30 10:00", "30 22:00", "31 10:00"]

    @pytest.mark.parametrize(
        "zone", ["Asia/Kathmandu", "Pacific/Chatham", "America/St_Johns", "Pacific/Marquesas"]
    )
    def test_hourly_fires_are_one_hour_apart_for_a_year(self, zone):
        trigger = Cron("0 * * * *", zone=zone)
        first = next_fire(trigger, ANCHOR, anchor=ANCHOR)

        found = fires_between(
            trigger, first, first + timedelta(days=365), limit=10_000, anchor=ANCHOR
        )

        assert len(found) == 365 * 24 + 1
        steps = {later - earlier for earlier, later in itertools.pairwise(found)}
        assert {timedelta(hours=1)} == steps

    def test_offsets_never_change_twice_within_a_probing_step(self):
        closest = min(
            later - earlier
            for name in sorted(zoneinfo.available_timezones())
            for earlier, later in _change_pairs(name)
        )

        assert timedelta(days=6) < closest


class TestZoneNames:
    @pytest.mark.parametrize(
        "zone",
        [
            "",
            ".",
            "..",
            "/",
            "Europe",
            "Europe/",
            "../../etc/passwd",
            "/etc/localtime",
            "Europe/../Europe/Berlin",
            "Europe//Berlin",
            "europe/berlin",
            "Europe/Berlin\x00",
            "Europe/Berlin ",
            "right/Europe/Berlin",
            "localtime",
            "Factory",
            "+02:00",
            "CEST",
            "\ud800",
            "x" * 100_000,
        ],
    )
    def test_a_name_that_is_no_zone_is_refused(self, zone):
        with pytest.raises(ScheduleError, match="expected an IANA name"):
            Cron("0 0 * * *", zone=zone)

    @pytest.mark.parametrize(
        ("zone", "meant"),
        [("Europe/Berlln", "Europe/Berlin"), ("europe/berlin", "Europe/Berlin"), ("utc", "UTC")],
    )
    def test_a_misspelled_zone_comes_with_suggestions(self, zone, meant):
        with pytest.raises(ScheduleError, match=f"did you mean .*'{meant}'") as caught:
            Cron("0 0 * * *", zone=zone)

        assert meant in caught.value.suggestions


class TestNewRules:
    def test_a_stored_fire_is_kept_and_the_fire_after_it_uses_new_rules(self, tmp_path):
        stored = utc("2027-07-01T07:00")  # 09:00 in Berlin, computed with the old rules
        trigger: Trigger = Cron("0 9 * * *", zone="Europe/Berlin")
        assert stored == next_fire(trigger, utc("2027-07-01T00:00"), anchor=ANCHOR)

        # The government stays on winter time from now on: Algiers has that offset all year.
        (tmp_path / "Europe").mkdir()
        rules = resources.files("tzdata.zoneinfo.Africa") / "Algiers"
        (tmp_path / "Europe" / "Berlin").write_bytes(rules.read_bytes())
        with _zone_files_from(str(tmp_path)):
            late = latest_fire(
                trigger, stored + timedelta(hours=1), not_before=stored, anchor=ANCHOR
            )
            following = next_fire(trigger, stored, anchor=ANCHOR)

        assert utc("2027-07-01T08:00") == late
        assert utc("2027-07-01T08:00") == following


class _zone_files_from:  # noqa: N801 - reads as the verb it is
    """Zone rules from another folder for the time of one block."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        zoneinfo.reset_tzpath(to=[self._folder, *zoneinfo.TZPATH])
        self._forget()

    def __exit__(self, *_: object) -> None:
        zoneinfo.reset_tzpath()
        self._forget()

    def _forget(self) -> None:
        zoneinfo.ZoneInfo.clear_cache()
        walltime.load_zone.cache_clear()


def _change_pairs(name: str) -> list[tuple[datetime, datetime]]:
    """Neighbouring changes of offset in the published data of one zone."""
    package, _, leaf = f"tzdata.zoneinfo.{name.replace('/', '.')}".rpartition(".")
    try:
        data = (resources.files(package) / leaf).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        return []  # a name of the host alone
    # The first block has 32-bit times; the one after it has all of them.
    isut, isstd, leaps, times, types, chars = struct.unpack(">6l", data[20:44])
    second = 44 + times * 5 + types * 6 + chars + leaps * 8 + isstd + isut
    times, types = struct.unpack(">2l", data[second + 32 : second + 40])
    body = second + 44
    instants = struct.unpack(f">{times}q", data[body : body + 8 * times])
    kinds = data[body + 8 * times : body + 9 * times]
    offsets = [
        struct.unpack(">l", data[start : start + 4])[0]
        for start in (body + 9 * times + 6 * kind for kind in kinds)
    ]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    changes = [
        epoch + timedelta(seconds=instants[n])
        for n in range(1, times)
        if offsets[n] != offsets[n - 1]
    ]
    return list(itertools.pairwise(changes))
