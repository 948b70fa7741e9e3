"""Registering, pausing, deleting, triggering and clearing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_RECURRING = "threadmill_sa/stores/sql/recurring.py"
_STATEMENTS = "threadmill_sa/stores/sql/statements/recurring.py"
_MEMORY = "threadmill_sa/stores/memory/recurring.py"
_TIMING = "threadmill_sa/model/timing.py"
_N5 = "promises/test_n5_pause_wins.py"
_DROPS = """\
            for statement in self._drop_nudges:
                connection.execute(statement, drop)
"""
_IMPORTS = """\
from sqlalchemy import func
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.dml import Delete, Insert
"""

STEERING = (
    Mutant(
        "flip-keeps-the-nudges",
        "N5: what committed before the flip is gone after it",
        _RECURRING,
        _DROPS,
        "            del drop\n",
        tests_of(_N5, "test_n5_a_nudge_from_before_a_pause_never_runs_after_it"),
    ),
    Mutant(
        "flip-keeps-the-nudges-in-memory",
        "N5: what was accepted before the flip is gone after it",
        _MEMORY,
        "(entry, state)\n            self._write_nudge(entry, None)\n",
        "(entry, state)\n",
        tests_of(_N5, "test_n5_a_nudge_from_before_a_pause_never_runs_after_it"),
        store="memory",
    ),
    Mutant(
        "flip-deletes-before-it-flips",
        "N5: the nudges are deleted in a statement later than the flip",
        _RECURRING,
        "            flipped = connection.execute(self._flip, flip).one_or_none()\n",
        "            event = SnapshotEvent.ENABLED if enabled else SnapshotEvent.DISABLED\n"
        '            drop = {"name": name, "happening": event.value, "now": stamp}\n'
        + _DROPS
        + "            flipped = connection.execute(self._flip, flip).one_or_none()\n",
        tests_of(
            _N5,
            "test_n5_a_nudge_that_commits_before_the_flip_is_gone_after_it",
        ),
        more=(
            (
                _DROPS + "            state = rows.schedule_state(locked, name)\n",
                "            state = rows.schedule_state(locked, name)\n",
            ),
        ),
    ),
    Mutant(
        "flip-deletes-at-the-disable-alone",
        "N5: a nudge that commits during a pause is deleted at its end",
        _RECURRING,
        _DROPS,
        '            if enabled:\n                drop |= {"name": ""}\n' + _DROPS,
        tests_of(_N5, "test_n5_a_transaction_that_commits_during_the_pause_is_gone_at_its_end"),
    ),
    Mutant(
        "flip-draws-a-new-epoch",
        "N5: a transaction that was open across a pause and commits after it counts",
        _STATEMENTS,
        '.values(enabled=wish, updated_at=bindparam("stamp", type_=UtcDateTime()))',
        '.values(enabled=wish, epoch=tasks.c.epoch + 1, updated_at=bindparam("stamp",'
        " type_=UtcDateTime()))",
        tests_of(
            _N5, "test_n5_a_transaction_open_across_a_whole_pause_that_commits_after_it_counts"
        ),
    ),
    Mutant(
        "flip-to-the-same-side-drops-nudges",
        "N5: a flip that changes nothing drops nothing",
        _STATEMENTS,
        "        .where(tasks.c.enabled != wish)\n",
        "",
        contract("Nudge", "test_n5_a_flip_to_the_same_side_drops_no_nudge"),
        store="sqlite",
    ),
    Mutant(
        "flip-without-the-lock",
        "a flip and a tick of one task exclude each other",
        _RECURRING,
        '            locked = connection.execute(self._lock, {"name": name}).one_or_none()\n'
        "            if locked is None:\n                return FlipOutcome.UNKNOWN_TASK\n",
        "            locked = connection.execute(self._lock.with_for_update(None),"
        ' {"name": name}).one_or_none()\n'
        "            if locked is None:\n                return FlipOutcome.UNKNOWN_TASK\n",
        tests_of(
            _N5,
            "test_n5_a_tick_held_at_any_statement_and_a_pause_end_with_a_job_or_with_none",
        ),
    ),
    Mutant(
        "delete-keeps-the-nudges",
        "N6: a delete takes the visible nudges with it",
        _RECURRING,
        "(self._delete_definition, self._delete_state, self._delete_nudges)",
        "(self._delete_definition, self._delete_state)",
        tests_of(
            "promises/test_n6_no_resurrection.py",
            "test_n6_a_delete_takes_the_visible_nudges_of_every_epoch_with_it",
        ),
    ),
    Mutant(
        "delete-in-memory-stays-nominated",
        "N6: no tick looks for a nudge of a task that is deleted",
        _MEMORY,
        "            self._nudged.discard(name)\n            return True\n",
        "            return True\n",
        contract("Nudge", "test_n6_a_deleted_task_with_a_nudge_is_not_nominated"),
        store="memory",
    ),
    Mutant(
        "flip-in-memory-stays-nominated",
        "N5: no tick looks for a nudge that a pause has dropped",
        _MEMORY,
        "            self._nudged.discard(entry.task.name)\n",
        "            entry.task.name.strip()\n",
        contract("Nudge", "test_n5_a_nudged_task_that_was_paused_is_not_nominated"),
        store="memory",
    ),
    Mutant(
        "delete-without-the-lock",
        "N6: a delete and a tick of one task exclude each other",
        _RECURRING,
        '            if connection.execute(self._lock, {"name": name}).one_or_none() is None:\n'
        "                return False\n",
        "            if connection.execute(self._lock.with_for_update(None),"
        ' {"name": name}).one_or_none() is None:\n'
        "                return False\n",
        tests_of(
            "promises/test_n6_no_resurrection.py",
            "test_n6_a_tick_at_any_statement_beside_a_delete_resurrects_no_state",
        ),
    ),
    Mutant(
        "epoch-by-counting-nothing",
        "N6: each registration of a name draws an epoch of its own",
        _RECURRING,
        "        epoch = connection.execute(self._draw_epoch).scalar_one()\n",
        "        epoch = 1\n",
        tests_of(
            "promises/test_n6_no_resurrection.py", "test_n6_a_new_registration_inherits_no_nudge"
        ),
    ),
    Mutant(
        "epoch-in-memory-used-again",
        "N6: each registration of a name draws an epoch of its own",
        _MEMORY,
        "        self._last_epoch += 1\n",
        "        self._last_epoch = 1\n",
        contract("Delete", "test_a_new_registration_is_a_new_epoch_with_a_new_schedule"),
        store="memory",
    ),
    Mutant(
        "registration-takes-the-operators-fields",
        "`enabled` and the anchor belong to the stored task",
        _RECURRING,
        "        kept = rows.with_operators_fields(task, stored)\n",
        "        kept = task\n",
        contract("Register", "test_an_edit_keeps_schedule_epoch_and_history_of_runs"),
        store="sqlite",
    ),
    Mutant(
        "registration-resumes-a-paused-task",
        "a pause outlives every registration",
        _MEMORY,
        "                enabled=stored.enabled,\n",
        "",
        contract("Register", "test_a_pause_outlives_every_registration"),
        store="memory",
    ),
    Mutant(
        "registration-wipes-an-overdue-fire",
        "an edit of the timing keeps a fire that is overdue",
        _TIMING,
        "    if state.next_run_at is not None and state.next_run_at <= now:\n"
        "        return state\n",
        "",
        tests_of("unit/test_timing.py", "test_another_timing_keeps_an_overdue_fire"),
    ),
    Mutant(
        "registration-restarts-the-interval",
        "another interval goes on from the anchor, so releases that alternate starve no task",
        _TIMING,
        "upcoming = next_fire(trigger, now, anchor=task.anchor_at or now)",
        "upcoming = next_fire(trigger, now, anchor=now)",
        contract("Register", "test_two_releases_that_alternate_do_not_starve_the_task"),
        store="memory",
    ),
    Mutant(
        "registration-without-fingerprint",
        "the same timing never moves the next run, whatever the stored state is",
        _TIMING,
        "    if state.timing_fingerprint == task.timing_fingerprint and not stopped:\n",
        "    if state.timing_fingerprint == task.timing_fingerprint and stopped is None:\n",
        contract("Register", "test_a_restart_after_the_clock_stepped_back_repeats_no_fire"),
        store="memory",
    ),
    Mutant(
        "resumption-catches-the-pause-up",
        "the end of a pause goes forward from now",
        _TIMING,
        "    state = replace(state, next_run_at=None, broken_reason=None, broken_at=None)\n"
        "    return _forward(task, state, now) if enabled else state\n",
        "    state = replace(state, broken_reason=None, broken_at=None)\n    return state\n",
        contract("Flip", "test_a_pause_takes_the_next_run_away"),
        store="memory",
    ),
    Mutant(
        "trigger-is-not-counted",
        "a manual instance holds back the next one, though it asked for no leave itself",
        "threadmill_sa/engine/client.py",
        "        cron_task_name=task.name,\n        cron_origin=CronOrigin.MANUAL,\n",
        "        cron_origin=CronOrigin.MANUAL,\n",
        tests_of(
            "promises/test_n2_coalescing.py",
            "test_n2_an_instance_that_was_triggered_holds_a_nudge_back",
        ),
    ),
    Mutant(
        "clear-by-less-or-equal",
        "a revision is an identity: what is compared is whether it was observed",
        "threadmill_sa/stores/sql/statements/nudges.py",
        'dialect.member(nudges.c.revision, "revisions", BigInteger())',
        "nudges.c.revision"
        ' <= func.any(bindparam("revisions", type_=postgresql.ARRAY(BigInteger())))',
        contract("Revision", "test_an_older_acceptance_that_was_not_observed_is_not_cleared"),
        more=(
            (
                "from sqlalchemy.sql.dml import Delete, Insert\n",
                _IMPORTS,
            ),
        ),
        store="pg",
    ),
    Mutant(
        "clear-by-less-or-equal-in-memory",
        "an acceptance that took the place of the observed one is not cleared by it",
        _MEMORY,
        "entry.nudge.revision not in observed",
        "entry.nudge.revision < min(observed, default=2**63)",
        contract("Revision", "test_a_newer_acceptance_is_never_cleared"),
        store="memory",
    ),
    Mutant(
        "restored-slots-stay",
        "N7: slots of another server's transactions are moved out of reach at the start",
        "threadmill_sa/stores/sql/identity.py",
        "moved: int = connection.execute(shield_slots(schema)).rowcount",
        "moved = int(shield_slots(schema) is None)",
        tests_of(
            "promises/test_restored_database.py",
            "test_pending_nudges_are_moved_out_of_reach_of_new_transaction_ids_by",
        ),
    ),
    Mutant(
        "nominate-in-memory-names-all-again",
        "a page of names begins behind the one before, and the suite ends where it does not",
        _MEMORY,
        "if after is None or name > after)",
        "if after is None or name)",
        contract("Nominate", "test_names_come_in_pages_by_code_points"),
        store="memory",
    ),
    Mutant(
        "tick-follows-pages-that-come-again",
        "a pass ends, whatever a store names",
        "threadmill_sa/engine/recurring/materializer.py",
        "page[-1] <= after",
        "page[-1] < after",
        tests_of(
            "unit/test_materializer.py",
            "test_a_store_whose_pages_come_again_is_told_so_and_ends_the_pass",
        ),
    ),
)
