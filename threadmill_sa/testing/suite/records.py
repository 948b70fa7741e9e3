"""What is recorded of nudges and runs, and how the records are judged."""

from __future__ import annotations

import pytest

from threadmill_sa.model.job import JobId
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.records import RecordsAudit
from threadmill_sa.spi.records import NudgeRecords
from threadmill_sa.spi.recurring import Plan
from threadmill_sa.spi.store import JobStore
from threadmill_sa.testing.suite.tools import (
    T0,
    WithPump,
    compacting,
    new_id,
    new_task,
    nudge,
    one_instance,
    run_all,
    seconds,
    tick,
    together,
    view,
)


class RecordSuite(WithPump):
    """Needs a store that records: `needs_records` is for the fixture that makes it."""

    needs_records = True

    @pytest.fixture
    def records(self, store: JobStore) -> NudgeRecords:
        role = store.records
        if role is None:
            pytest.skip("this store does not record nudges")
        return role

    def test_an_accepted_nudge_is_recorded_as_it_was_accepted(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        revision = nudge(store, T0 + seconds(3))

        audit = _audit(records)

        assert (audit.nudges, audit.runs, audit.uncovered) == (1, 0, 1)
        [recorded] = audit.examples
        assert (recorded.task, recorded.revision) == ("pump", revision)
        assert recorded.requested_at == T0 + seconds(3)

    def test_each_acceptance_is_recorded(self, store: JobStore, records: NudgeRecords) -> None:
        revisions = [nudge(store) for _ in range(4)]

        assert [each.revision for each in _audit(records).examples] == revisions

    def test_a_refused_nudge_is_not_recorded(self, store: JobStore, records: NudgeRecords) -> None:
        store.recurring.register(new_task("paused", enabled=False), now=T0)

        for name in ("nobody", "paused"):
            answer = store.recurring.request_cron_nudge(name, now=T0)
            assert answer.verdict is not NudgeVerdict.ACCEPTED

        assert _audit(records).nudges == 0

    def test_a_run_that_starts_later_covers_all_before_it(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        for _ in range(3):
            nudge(store)

        _start(records)

        assert _judged(records) == (3, 3, 0, 0)

    def test_a_run_that_started_before_covers_nothing(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        _start(records)

        nudge(store)

        assert _judged(records) == (1, 0, 0, 1)

    def test_one_later_run_among_earlier_ones_is_enough(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        _start(records)
        nudge(store)
        _start(records)
        nudge(store)

        assert _judged(records) == (2, 1, 0, 1)

    def test_a_run_of_another_task_covers_nothing(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        store.recurring.register(new_task("other"), now=T0)
        nudge(store)

        _start(records, "other")

        assert _judged(records) == (1, 0, 0, 1)

    def test_a_consumed_nudge_is_not_covered_by_that(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        nudge(store)

        tick(store, one_instance)
        run_all(store)

        assert view(store).nudge_revisions == frozenset()
        assert _judged(records) == (1, 0, 0, 1)

    def test_compacting_keeps_every_record(self, store: JobStore, records: NudgeRecords) -> None:
        for _ in range(3):
            nudge(store)

        tick(store, compacting)

        assert _judged(records) == (3, 0, 0, 3)

    @pytest.mark.parametrize("enabled", [False, True])
    def test_n5_a_nudge_before_the_end_of_a_pause_is_excused(
        self, store: JobStore, records: NudgeRecords, *, enabled: bool
    ) -> None:
        nudge(store)

        store.recurring.set_enabled("pump", enabled=False, now=T0)
        if enabled:
            store.recurring.set_enabled("pump", enabled=True, now=T0)

        assert _judged(records) == (1, 0, 1, 0)

    def test_n5_a_nudge_after_the_end_of_a_pause_is_not_excused(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        nudge(store)
        store.recurring.set_enabled("pump", enabled=False, now=T0)
        store.recurring.set_enabled("pump", enabled=True, now=T0)

        nudge(store)

        assert _judged(records) == (2, 0, 1, 1)

    def test_a_flip_that_changes_nothing_excuses_nothing(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        nudge(store)

        store.recurring.set_enabled("pump", enabled=True, now=T0)

        assert _judged(records) == (1, 0, 0, 1)

    def test_a_flip_of_another_task_excuses_nothing(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        store.recurring.register(new_task("other"), now=T0)
        nudge(store, name="other")
        nudge(store)

        store.recurring.set_enabled("other", enabled=False, now=T0)
        store.recurring.set_enabled("other", enabled=True, now=T0)

        assert _judged(records) == (2, 0, 1, 1)

    @pytest.mark.parametrize("again", [False, True])
    def test_n6_a_nudge_of_a_deleted_registration_is_excused(
        self, store: JobStore, records: NudgeRecords, *, again: bool
    ) -> None:
        nudge(store)

        store.recurring.delete("pump")
        if again:
            store.recurring.register(new_task(), now=T0)

        assert _judged(records) == (1, 0, 1, 0)

    def test_a_nudge_that_an_operator_cleared_is_excused(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        observed = frozenset({nudge(store)})
        store.recurring.clear_cron_nudge("pump", observed)

        nudge(store)
        store.recurring.clear_cron_nudge("pump", observed)  # gone by now: nothing is cleared

        assert _judged(records) == (2, 0, 1, 1)

    def test_what_was_covered_stays_so_after_a_pause(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        nudge(store)
        _start(records)

        store.recurring.set_enabled("pump", enabled=False, now=T0)

        assert _judged(records) == (1, 1, 0, 0)

    def test_an_edit_excuses_nothing(self, store: JobStore, records: NudgeRecords) -> None:
        nudge(store)

        store.recurring.register(new_task(payload="1"), now=T0)

        assert _judged(records) == (1, 0, 0, 1)

    def test_an_expected_nudge_counts_before_it_is_written(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        store.recurring.register(new_task("other"), now=T0)
        promises = records.expect(["pump", "other", "nobody"], now=T0)
        _start(records, "other")

        audit = _audit(records)

        assert set(promises) == {"pump", "other"}

        assert (audit.nudges, audit.covered, audit.uncovered) == (2, 1, 1)
        [expected] = audit.examples
        assert (expected.task, expected.revision) == ("pump", None)
        assert expected.requested_at == T0

    def test_a_disabled_task_leaves_no_expected_nudge(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        store.recurring.set_enabled("pump", enabled=False, now=T0)

        assert dict(records.expect(["pump"], now=T0)) == {}
        assert _judged(records) == (0, 0, 0, 0)

    def test_n5_an_expected_nudge_whose_write_was_refused_is_excused(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        """Whatever the pause that refused it left behind, and though the task is enabled again."""
        store.recurring.register(new_task("other"), now=T0)
        promises = records.expect(["other", "pump"], now=T0)

        records.refuse("pump", promises["pump"])

        assert _judged(records, ["pump"]) == (1, 0, 1, 0)
        assert _judged(records, ["other"]) == (1, 0, 0, 1)

    def test_a_refusal_excuses_only_its_own_promise(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        before = records.expect(["pump"], now=T0)
        nudge(store)
        refused = records.expect(["pump"], now=T0)
        records.expect(["pump"], now=T0)

        records.refuse("pump", refused["pump"])
        records.refuse("nobody", before["pump"])

        assert _judged(records) == (4, 0, 1, 3)

    def test_a_refused_promise_that_a_run_shows_is_covered(self, records: NudgeRecords) -> None:
        promises = records.expect(["pump"], now=T0)
        _start(records)

        records.refuse("pump", promises["pump"])

        assert _judged(records) == (1, 1, 0, 0)

    def test_a_refusal_after_the_records_were_cleared_changes_nothing(
        self, records: NudgeRecords
    ) -> None:
        promises = records.expect(["pump"], now=T0)
        records.clear()
        records.expect(["pump"], now=T0)

        records.refuse("pump", promises["pump"])

        assert _judged(records) == (1, 0, 0, 1)

    def test_an_audit_can_be_of_some_tasks(self, store: JobStore, records: NudgeRecords) -> None:
        store.recurring.register(new_task("other"), now=T0)
        nudge(store)
        nudge(store, name="other")
        _start(records, "other")

        assert _judged(records, ["other"]) == (1, 1, 0, 0)
        assert _judged(records, ["pump"]) == (1, 0, 0, 1)
        assert _judged(records, ["nobody"]) == (0, 0, 0, 0)
        assert records.audit(["pump"], examples=9).runs == 0

    def test_an_audit_names_the_oldest_nudges_and_the_newest_runs(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        started = [_start(records, attempt=number) for number in range(1, 4)]
        revisions = [nudge(store) for _ in range(4)]

        audit = records.audit(None, examples=2)

        assert (audit.uncovered, audit.runs) == (4, 3)
        assert [each.revision for each in audit.examples] == revisions[:2]
        shown = [(run.job_id, run.attempt, run.started_at) for run in audit.latest_runs]
        assert shown == [(started[2], 3, T0), (started[1], 2, T0)]

    def test_clearing_forgets_nudges_and_runs(
        self, store: JobStore, records: NudgeRecords
    ) -> None:
        for _ in range(3):
            nudge(store)
        _start(records)

        assert records.clear() == 3

        assert _audit(records) == RecordsAudit(nudges=0, runs=0, covered=0, excused=0)
        nudge(store)
        assert _judged(records) == (1, 0, 0, 1)
        _start(records)
        assert _judged(records) == (1, 1, 0, 0)

    def test_n1_every_nudge_of_many_threads_is_covered_by_the_end(
        self, store: JobStore, records: NudgeRecords, plan: Plan
    ) -> None:
        def produce() -> None:
            for _ in range(10):
                nudge(store)

        def consume() -> None:
            for _ in range(10):
                tick(store, plan)
                for job in run_all(store):
                    records.record_run("pump", job.id, job.attempt, now=T0)

        together(produce, consume, produce, consume)
        _start(records)  # `consume` starts a run after it has ended: the last one may be short

        assert _judged(records) == (20, 20, 0, 0)


def _audit(records: NudgeRecords) -> RecordsAudit:
    return records.audit(None, examples=9)


def _judged(records: NudgeRecords, tasks: list[str] | None = None) -> tuple[int, int, int, int]:
    """All nudges, and how many of them are covered, excused and neither."""
    audit = records.audit(tasks, examples=9)
    assert len(audit.examples) == audit.uncovered
    return audit.nudges, audit.covered, audit.excused, audit.uncovered


def _start(records: NudgeRecords, task: str = "pump", *, attempt: int = 1) -> JobId:
    job_id = new_id()
    records.record_run(task, job_id, attempt, now=T0)
    return job_id
