from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from threadmill_sa.model.recurring import CronTask, CronTaskScheduleState
from threadmill_sa.model.timing import edited_state, first_state, flipped_state
from threadmill_sa.model.trigger import (
    Cron,
    Every,
    Trigger,
    TriggerKind,
    timing_fingerprint,
    trigger_text,
)

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
LATER = T0 + timedelta(minutes=25)


def task(trigger: Trigger, **fields: Any) -> CronTask:
    kind, value, zone = trigger_text(trigger)
    return replace(
        CronTask("pump", kind, value, zone, "relay", timing_fingerprint(trigger), anchor_at=T0),
        **fields,
    )


TEN, FOUR = task(Every(minutes=10)), task(Every(minutes=4))
RAN = CronTaskScheduleState(
    "pump",
    next_run_at=T0 + timedelta(minutes=30),
    last_run_at=T0,
    timing_fingerprint=TEN.timing_fingerprint,
)


def test_a_new_task_waits_for_its_first_fire() -> None:
    state = first_state(TEN, now=T0)

    assert state == CronTaskScheduleState(
        "pump",
        next_run_at=T0 + timedelta(minutes=10),
        timing_fingerprint=TEN.timing_fingerprint,
    )


def test_a_new_task_in_pause_has_no_next_run() -> None:
    assert first_state(replace(TEN, enabled=False), now=T0).next_run_at is None


def test_a_new_cron_task_fires_on_the_wall_clock_of_its_zone() -> None:
    nightly = task(Cron("30 2 * * *", zone="Europe/Berlin"))

    assert first_state(nightly, now=T0).next_run_at == datetime(2026, 3, 3, 1, 30, tzinfo=UTC)


def test_the_same_timing_moves_nothing_even_when_it_is_overdue() -> None:
    edited = replace(TEN, payload="1", handler="other")

    assert edited_state(edited, RAN, now=T0 + timedelta(days=3)) is RAN


def test_another_spelling_of_the_same_timing_moves_nothing() -> None:
    first, second = task(Cron("0 0 * * 0")), task(Cron("0 0 * * SUN"))
    state = first_state(first, now=T0)

    assert edited_state(second, state, now=LATER + timedelta(days=30)) is state


def test_another_timing_moves_a_future_fire_along_the_old_anchor() -> None:
    state = edited_state(FOUR, RAN, now=LATER)

    assert state == replace(
        RAN,
        next_run_at=T0 + timedelta(minutes=28),
        timing_fingerprint=FOUR.timing_fingerprint,
    )


@pytest.mark.parametrize("late", [timedelta(0), timedelta(days=9)])
def test_another_timing_keeps_an_overdue_fire(late: timedelta) -> None:
    now = T0 + timedelta(minutes=30) + late

    state = edited_state(FOUR, RAN, now=now)

    assert state == replace(RAN, timing_fingerprint=FOUR.timing_fingerprint)


def test_another_timing_of_a_paused_task_waits_for_its_resumption() -> None:
    state = edited_state(replace(FOUR, enabled=False), replace(RAN, next_run_at=None), now=LATER)

    assert (state.next_run_at, state.timing_fingerprint) == (None, FOUR.timing_fingerprint)


def test_another_timing_mends_what_was_broken() -> None:
    broken = replace(RAN, next_run_at=None, broken_reason="bad", broken_at=T0)

    state = edited_state(FOUR, broken, now=LATER)

    assert (state.broken_reason, state.broken_at) == (None, None)
    assert state.next_run_at == T0 + timedelta(minutes=28)


def test_the_same_timing_mends_what_was_broken_and_starts_what_was_stopped() -> None:
    broken = replace(RAN, next_run_at=None, broken_reason="bad", broken_at=T0)

    for stopped in (broken, replace(RAN, next_run_at=None)):
        assert edited_state(TEN, stopped, now=T0) == replace(
            RAN, next_run_at=T0 + timedelta(minutes=10)
        )


def test_the_same_timing_of_a_paused_task_starts_nothing() -> None:
    paused = replace(RAN, next_run_at=None)

    assert edited_state(replace(TEN, enabled=False), paused, now=LATER) is paused


def test_a_pause_takes_the_next_run_and_the_fault_away() -> None:
    broken = replace(RAN, broken_reason="bad", broken_at=T0)

    state = flipped_state(replace(TEN, enabled=False), broken, enabled=False, now=LATER)

    assert state == replace(RAN, next_run_at=None)


def test_a_resumption_goes_forward_on_the_same_grid_and_catches_nothing_up() -> None:
    paused = replace(RAN, next_run_at=None)

    state = flipped_state(TEN, paused, enabled=True, now=T0 + timedelta(days=7, minutes=3))

    assert state == replace(RAN, next_run_at=T0 + timedelta(days=7, minutes=10))


@pytest.mark.parametrize("when", ["created", "edited", "resumed"])
def test_a_stored_trigger_that_cannot_be_read_is_marked_and_not_raised(when: str) -> None:
    bad = replace(
        TEN, trigger_kind=TriggerKind.CRON, trigger_value="61 * * * *", timing_fingerprint="bad"
    )

    state = {
        "created": lambda: first_state(bad, now=LATER),
        "edited": lambda: edited_state(bad, RAN, now=LATER),
        "resumed": lambda: flipped_state(bad, RAN, enabled=True, now=LATER),
    }[when]()

    assert (state.next_run_at, state.broken_at) == (None, LATER)
    assert "61" in (state.broken_reason or "")
