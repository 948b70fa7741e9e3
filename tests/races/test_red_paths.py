"""Wrong implementations, each of which somebody could write, are caught by the same driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import literal, select, text

from tests.races.actors import EDIT, JOINED_NUDGE, RENEW, TICK, TRIGGER, Kind, named
from tests.races.performing import Faults, Performance, needs_of, prepare
from tests.races.stages import PUMP, MemoryStage, Seat, Stage
from threadmill_sa import Threadmill
from threadmill_sa.engine.client import manual_instance
from threadmill_sa.model.job import NewJob
from threadmill_sa.spi.recurring import MakeInstance
from threadmill_sa.stores.sql import rows
from threadmill_sa.stores.sql.materializing import Materializing
from threadmill_sa.stores.sql.recurring import SqlRecurring

NOTHING = select(literal(1))


@pytest.fixture
def stage(embedded_stage: Stage) -> Iterator[Stage]:
    yield embedded_stage
    # What was wrong must not stay: the next test builds its scene again.
    embedded_stage.needs = None
    embedded_stage.lengths.clear()


def _fault(stage: Stage, pair: Sequence[Kind], switches: int | None = None) -> str:
    prepare(stage, needs_of(pair))
    with pytest.raises(Faults) as caught:
        Performance(stage, pair, "red paths").everything(switches=switches)
    return str(caught.value)


def _each(stage: Stage, change: Callable[[Any], None]) -> None:
    for seat in stage.seats:
        change(seat.tm.store.recurring)


def test_a_tick_that_clears_the_nudges_after_its_commit_loses_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(recurring: SqlRecurring) -> None:
        materializing: Any = recurring._materializing
        commit = materializing.commit

        def clearing_later(names: Sequence[str], *args: Any, **kwargs: Any) -> Any:
            outcomes = commit(names, *args, **kwargs)
            if any(outcome.jobs for outcome in outcomes):
                recurring._database.write(
                    lambda connection: connection.execute(
                        recurring._delete_nudges, {"name": names[0]}
                    )
                )
            return outcomes

        monkeypatch.setattr(materializing, "_consume", NOTHING)
        monkeypatch.setattr(materializing, "_at_once", lambda *_args: None)
        monkeypatch.setattr(materializing, "commit", clearing_later)

    _each(stage, change)

    assert "N1: " in _fault(stage, [JOINED_NUDGE, TICK])


def test_ticks_that_take_no_lock_make_two_runs_of_one_nudge(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(recurring: SqlRecurring) -> None:
        materializing: Materializing = recurring._materializing
        state = materializing._write_state.table
        unlocked = select(state.c.task_name).where(state.c.task_name == PUMP)
        monkeypatch.setattr(materializing, "_locks", dict.fromkeys(materializing._locks, unlocked))
        monkeypatch.setattr(materializing, "_at_once", lambda *_args: None)

    _each(stage, change)

    assert "N2/N5/N6: " in _fault(stage, [TICK, TICK])


def test_a_tick_that_asks_for_no_epoch_serves_a_nudge_of_a_task_that_is_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every registration gets one epoch: as if it were never compared.
    def change(recurring: SqlRecurring) -> None:
        monkeypatch.setattr(recurring, "_draw_epoch", select(literal(1)))

    _each(stage, change)
    change(stage.quiet.store.recurring)  # type: ignore[arg-type]
    stage.needs = None

    found = _fault(stage, [named("nudge+commit-rr"), RENEW], switches=4)

    assert "N2/N5/N6: " in found


def test_a_flip_that_keeps_what_was_nudged_before_it_runs_it_after_the_pause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(recurring: SqlRecurring) -> None:
        monkeypatch.setattr(recurring, "_drop_nudges", ())

    _each(stage, change)

    assert "N2/N5/N6: " in _fault(stage, [named("nudge-now"), named("disable+enable")])


def test_a_compaction_that_forgets_what_it_took_loses_a_nudge(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(recurring: SqlRecurring) -> None:
        monkeypatch.setattr(recurring._materializing, "_insert_compacted", NOTHING)

    _each(stage, change)

    assert "N1: " in _fault(stage, [named("finish"), TICK])


def test_a_nudge_that_writes_one_row_for_all_makes_producers_wait(stage: Stage) -> None:
    def nudge(seat: Seat, stage: Stage) -> None:
        del stage
        with seat.engine.begin() as connection:
            connection.execute(
                text("UPDATE threadmill_cron_nudges SET requested_at = clock_timestamp()")
            )

    wrong = Kind("one cell", nudge, frozenset({"nudged"}), producer=True)

    assert "one cell (actor 0) waits for ['one cell']" in _fault(stage, [wrong, wrong])


def test_a_caller_who_gets_an_error_of_the_database_is_seen(stage: Stage) -> None:
    def nudge(seat: Seat, stage: Stage) -> None:
        del stage
        engine = seat.engine.execution_options(isolation_level="REPEATABLE READ")
        with engine.begin() as connection:
            connection.execute(text("SELECT count(*) FROM threadmill_cron_nudges"))
            connection.execute(
                text("UPDATE threadmill_cron_nudges SET requested_at = clock_timestamp()")
            )

    wrong = Kind("one cell", nudge, frozenset({"nudged"}), patient=True)

    assert "40001" in _fault(stage, [wrong, wrong])


@pytest.mark.parametrize("other", [EDIT, RENEW], ids=str)
def test_a_trigger_that_reads_the_definition_before_its_lock_runs_an_old_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, other: Kind
) -> None:
    def change(recurring: SqlRecurring) -> None:
        monkeypatch.setattr(recurring, "trigger", _reading_first(recurring))

    _each(stage, change)

    assert "has an older handler" in _fault(stage, [TRIGGER, other], switches=4)


def test_it_is_caught_in_memory_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threadmill, "trigger", _trigger_in_two_calls)

    assert "has an older handler" in _fault(MemoryStage(2), [TRIGGER, EDIT])


def _reading_first(recurring: SqlRecurring) -> Callable[..., NewJob | None]:
    trigger = recurring.trigger

    def act(name: str, make: MakeInstance, *, now: datetime | None = None) -> NewJob | None:
        def read(connection: Any) -> Any:
            return connection.execute(recurring._definition, {"task": name}).one_or_none()

        found = recurring._database.read(read)
        if found is None:
            return None
        job = make(_task(found))
        return trigger(name, lambda _: job, now=now)

    return act


def _task(row: Any) -> Any:
    return rows.cron_task(row, fingerprint=None)


def _trigger_in_two_calls(self: Threadmill, task: str) -> Any:
    view: Any = self.get_recurring(task)
    job = manual_instance(view, self._ids(self._clock.now()))  # type: ignore[arg-type]
    made = self.store.recurring.trigger(task, lambda _: job)
    if made is None:
        raise self._unknown_task(task)
    return made.id
