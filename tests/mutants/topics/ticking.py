"""A tick: what it nominates, locks, reads, plans and writes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_NUDGES = "threadmill_sa/stores/sql/statements/nudges.py"
_STATEMENTS = "threadmill_sa/stores/sql/statements/recurring.py"
_COMMIT = "threadmill_sa/stores/sql/materializing.py"
_DIALECTS = "threadmill_sa/stores/sql/dialects.py"
_PLANNER = "threadmill_sa/engine/recurring/planner.py"
_N1 = "promises/test_n1_run_after_wake.py"
_N2 = "promises/test_n2_coalescing.py"
_AT_ONCE = "store_only/test_at_once.py"
_N6 = "promises/test_n6_no_resurrection.py"
_READING = """\
            for row in connection.execute(read, self._named(sorted(locked)) | instant):
"""
_TAKING = """\
            del read, instant
            for row in (each for each in found if each.name in locked):
"""
_MEMORY = "threadmill_sa/stores/memory/recurring.py"
_READ = "                reading = self._read(name, moment)\n"
_UNREAD = "            moment = now or self._clock.now()\n            plans: dict"
_READ_EARLY = (
    "            moment = now or self._clock.now()\n"
    "            early = {name: self._read(name, moment) for name in names}\n"
    "            self._lock.release()\n"
    '            __import__("time").sleep(0.001)\n'
    "            self._lock.acquire()\n            plans: dict"
)


def _early_in_memory(field: str, rule: str, case: str) -> Mutant:
    read = "                reading = self._read(name, moment)\n"
    mixed = f"replace(reading, {field}=early[name].{field})"
    return Mutant(
        f"reads-{field}-before-the-lock-in-memory",
        rule,
        _MEMORY,
        _UNREAD,
        _READ_EARLY,
        contract("Reading", case),
        more=((read, f"{read}                reading = {mixed}\n"),),
        store="memory",
    )


TICKING = (
    _early_in_memory(
        "task",
        "a tick makes an instance of the definition as it is by then",
        "test_no_tick_after_an_edit_uses_the_older_definition",
    ),
    _early_in_memory(
        "unfinished",
        "an instance that another tick has just made holds back the next",
        "test_ticks_of_several_fires_at_once_leave_one_unfinished_instance",
    ),
    _early_in_memory(
        "pending",
        "a tick serves a nudge only where it is still pending",
        "test_a_nudge_is_run_by_a_tick_or_taken_by_a_clear",
    ),
    Mutant(
        "triggers-what-it-read-before-in-memory",
        "a manual run is made of the definition as it is by then",
        _MEMORY,
        "            job = make(entry.task)\n",
        "            job = make(entry.task)\n"
        "            self._lock.release()\n"
        '            __import__("time").sleep(0.001)\n'
        "            self._lock.acquire()\n",
        contract("Reading", "test_no_trigger_after_an_edit_uses_the_older_definition"),
        store="memory",
    ),
    Mutant(
        "dead-nudges-reach-the-new-registration",
        "N6: a tick sees the nudges of the task's own epoch alone",
        _NUDGES,
        "(nudges.c.task_name == tasks.c.name) & (nudges.c.epoch == tasks.c.epoch)",
        "nudges.c.task_name == tasks.c.name",
        tests_of(
            _N6, "test_n6_a_transaction_open_across_delete_and_registration_is_dropped_and_swept"
        ),
    ),
    Mutant(
        "nominated-without-asking-whether-enabled",
        "a paused task with a nudge that committed late is not looked at each second",
        _STATEMENTS,
        "nudged = select(nudges.c.task_name).where(enabled)",
        "nudged = select(nudges.c.task_name).where(enabled.is_not(None))",
        tests_of(
            "promises/test_n5_pause_wins.py",
            "test_n5_a_transaction_that_commits_during_the_pause_is_gone_at_its_end",
        ),
    ),
    Mutant(
        "consumes-nothing",
        "N2: creating the job and consuming the nudge are one write",
        _COMMIT,
        "if planned.nudges is NudgeAction.CONSUME:",
        "if planned.nudges is None:",
        tests_of(_N2, "test_n2_a_burst_before_the_tick_gives_one_run"),
        store="sqlite",
    ),
    Mutant(
        "runs-a-nudge-that-is-gone",
        "without its lock a task is run only where a nudge is consumed",
        _STATEMENTS,
        '    served = select(literal_column("1")).select_from(consumed).exists()\n',
        '    served = select(literal_column("1")).select_from(held).exists()\n',
        tests_of(_AT_ONCE, "test_a_nudge_that_is_cleared_meanwhile_runs_nothing"),
    ),
    Mutant(
        "writes-over-another-version",
        "without its lock a task is run only as it was read",
        _STATEMENTS,
        '        .where(_version(schema) == bindparam("version", type_=Text()))\n',
        "",
        tests_of(
            _AT_ONCE,
            "test_a_pause_meanwhile_wins",
            "test_an_edit_meanwhile_counts_though_the_timing_is_the_same",
        ),
    ),
    Mutant(
        "waits-without-the-lock",
        "a task that somebody holds is passed by without its lock, too",
        _STATEMENTS,
        '        .with_for_update(skip_locked=True)\n        .cte("held")\n',
        '        .cte("held")\n',
        tests_of(_AT_ONCE, "test_a_task_that_somebody_holds_is_passed_by"),
    ),
    Mutant(
        "a-compaction-keeps-the-version",
        "N2: a run without the lock does not overlook what a compaction made of the nudges",
        _COMMIT,
        "            if planned.state is not None or planned.nudges is NudgeAction.COMPACT\n",
        "            if planned.state is not None\n",
        tests_of(_AT_ONCE, "test_n2_a_compaction_inside_the_statement_leaves_one_follow_up"),
    ),
    Mutant(
        "an-edit-keeps-the-version",
        "an edit that moves no schedule changes the version of the task as well",
        "threadmill_sa/stores/sql/recurring.py",
        "        connection.execute(self._write_state, rows.state_values(upcoming))\n"
        "        return RegisterOutcome.UPDATED",
        "        if upcoming != state:\n"
        "            connection.execute(self._write_state, rows.state_values(upcoming))\n"
        "        return RegisterOutcome.UPDATED",
        tests_of(_AT_ONCE, "test_an_edit_meanwhile_counts_though_the_timing_is_the_same"),
    ),
    Mutant(
        "consumes-every-epoch",
        "a nudge of a dead registration is dropped by the sweep, which tells how many",
        _NUDGES,
        'return delete_nudges_of(schema).where(nudges.c.epoch == bindparam("epoch",'
        " type_=BigInteger()))",
        "del nudges\n    return delete_nudges_of(schema)",
        tests_of(
            _N6, "test_n6_a_tick_of_the_new_registration_leaves_the_dead_nudges_to_the_sweep"
        ),
    ),
    Mutant(
        "ticks-without-a-lock",
        "N2: two ticks of one task exclude each other",
        _STATEMENTS,
        "        .with_for_update(skip_locked=not wait)\n",
        "",
        tests_of(_N2, "test_n2_two_nodes_that_tick_at_once_create_one_follow_up")
        + contract("Race", "test_n2_two_ticks_over_one_nudge_make_one_job"),
        store="pg",
    ),
    Mutant(
        "ticks-wait-for-each-other",
        "a tick passes a task by that another tick or a lifecycle call holds",
        _STATEMENTS,
        ".with_for_update(skip_locked=not wait)",
        ".with_for_update()",
        tests_of(_N6, "test_n6_a_delete_held_at_any_statement_lets_a_tick_pass_by"),
    ),
    Mutant(
        "locks-of-a-tick-unsorted",
        "two ticks that wait lock the rows of many tasks in one order, so they never deadlock",
        _STATEMENTS,
        "        .order_by(state.c.task_name)\n        .with_for_update(skip_locked=not wait)\n",
        "        .with_for_update(skip_locked=not wait)\n",
        tests_of(
            "store_only/test_locks.py",
            "test_a_tick_locks_many_tasks_in_the_order_of_their_names",
        ),
    ),
    Mutant(
        "reads-in-the-locking-statement",
        "what a tick acts on is read after the lock, in a statement of its own",
        _COMMIT,
        "        locked = set(connection.execute(lock, self._named(names)).scalars())\n",
        '        early = self._named(names) | {"now": self._database.instant(now)}\n'
        "        found = connection.execute(self._reads[len(names) == 1], early).all()\n"
        "        locked = set(connection.execute(lock, self._named(names)).scalars())\n",
        tests_of(
            "store_only/test_locks.py",
            "test_a_tick_that_waits_for_another_one_reads_what_that_has_left",
        ),
        more=(
            (
                _READING,
                _TAKING,
            ),
        ),
    ),
    Mutant(
        "guard-removed",
        "an unfinished instance holds back the next",
        _PLANNER,
        "if reading.unfinished and (due or nudged):",
        "if reading.unfinished and (due and nudged) is None:",
        contract("Guard", "test_an_instance_that_runs_holds"),
        store="memory",
    ),
    Mutant(
        "guard-passes-over-a-retry",
        "an instance that waits for its next attempt holds back the next one",
        "threadmill_sa/model/state.py",
        "UNFINISHED = (JobState.AWAITING, JobState.SCHEDULED, JobState.ENQUEUED,",
        "UNFINISHED = (JobState.AWAITING, JobState.ENQUEUED,",
        contract("Guard", "test_an_instance_between_two_attempts_holds"),
        store="sqlite",
    ),
    Mutant(
        "guard-asks-one-task-for-another",
        "the guard counts the instances of the task itself",
        "threadmill_sa/stores/sql/statements/jobs.py",
        "return and_(name.is_not(None), name == task_name, state_is(schema, *UNFINISHED))",
        "del task_name\n    return and_(name.is_not(None), state_is(schema, *UNFINISHED))",
        contract("Guard", "test_jobs_of_other_tasks_do_not_hold"),
        store="sqlite",
    ),
    Mutant(
        "nudge-moves-the-schedule",
        "N4: a nudged run leaves `next_run_at` as it is",
        _PLANNER,
        "return self._run(reading, CronOrigin.NUDGE, (None,), state)",
        "moved = replace(state, next_run_at=reading.now + timedelta(minutes=10))\n"
        "            return self._run(reading, CronOrigin.NUDGE, (None,), moved)",
        tests_of(
            "promises/test_n4_schedule_untouched.py",
            "test_n4_the_next_fire_stays_through_nudge_tick_run_and_follow_up",
        ),
        store="memory",
    ),
    Mutant(
        "fire-leaves-the-nudge-behind",
        "a task that is due and nudged at once runs once",
        _PLANNER,
        "return TaskPlan(TickResult.MATERIALIZED, jobs, ran, NudgeAction.CONSUME)",
        "served = NudgeAction.CONSUME if origin is CronOrigin.NUDGE else NudgeAction.KEEP\n"
        "        return TaskPlan(TickResult.MATERIALIZED, jobs, ran, served)",
        contract("Nudge", "test_n2_due_and_nudged_at_once_is_one_scheduled_run"),
        store="memory",
    ),
    Mutant(
        "drop-starts-a-new-phase",
        "a run for missed fires keeps the phase of the interval",
        _PLANNER,
        "return (fire,), next_fire(trigger, fire, anchor=anchor)",
        "return (fire,), next_fire(trigger, now, anchor=now)",
        contract("Fire", "test_a_late_tick_keeps_the_phase"),
        store="memory",
    ),
    Mutant(
        "drop-runs-the-whole-backlog",
        "`drop` runs once, for the latest missed fire",
        _PLANNER,
        "fire = latest_fire(trigger, now, not_before=overdue, anchor=anchor)",
        "fire = overdue",
        contract("Fire", "test_drop_runs_once_for_the_latest_missed_fire"),
        store="memory",
    ),
    Mutant(
        "catch-up-without-a-bound",
        "one tick creates a bounded number of missed runs",
        _PLANNER,
        "missed = fires_between(trigger, overdue, now, limit=CATCH_UP_MAX, anchor=anchor)",
        "missed = fires_between(trigger, overdue, now, limit=10**6 + CATCH_UP_MAX, anchor=anchor)",
        tests_of(
            "unit/test_planner.py", "test_catch_up_leaves_the_rest_of_a_long_backlog_overdue"
        ),
    ),
    Mutant(
        "compaction-loses-the-nudges",
        "N1: what a compaction takes away it puts back as one",
        _COMMIT,
        "            connection.execute(self._insert_compacted, earliest)\n",
        "            del earliest\n",
        tests_of(_N2, "test_n2_sixteen_transactions_during_one_run_give_one_follow_up"),
    ),
    Mutant(
        "compaction-forgets-the-earliest-request",
        "a compacted nudge tells when the first of them was requested",
        _COMMIT,
        'registration | {"requested_at": min(requested)}',
        'registration | {"requested_at": max(requested)}',
        tests_of(
            _N1,
            "test_n1_compaction_keeps_the_earliest_request_and_a_nudge_that_commits_between",
        ),
    ),
    Mutant(
        "compaction-in-reach-of-transaction-ids",
        "N7: the slot of a compacted nudge is one that no transaction can ever meet",
        _DIALECTS,
        '{"slot": -drawn.c.revision, "revision": drawn.c.revision}',
        '{"slot": drawn.c.revision, "revision": drawn.c.revision}',
        tests_of(
            "promises/test_n7_harmless_to_the_caller.py",
            "test_n7_a_compacted_nudge_stands_where_no_transaction_id_will_ever_be",
        ),
    ),
    Mutant(
        "compaction-without-the-lock",
        "a tick that compacts reads the unfinished jobs under the lock, or it outlives the run",
        _COMMIT,
        "        locked = set(connection.execute(lock, self._named(names)).scalars())\n",
        "        locked = set(connection.execute(self._existing,"
        ' {"names": self._dialect.list_value(names)}).scalars())\n',
        tests_of(
            "store_only/test_locks.py",
            "test_a_tick_that_compacts_keeps_others_out_until_it_has_committed",
        ),
    ),
)
