"""Deleting jobs, and how long finished ones are kept."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_STATEMENTS = "threadmill_sa/stores/sql/statements/retention.py"
_SQL = "threadmill_sa/stores/sql/jobs.py"
_MEMORY = "threadmill_sa/stores/memory"
_LUA = "threadmill_sa/stores/redis/lua"
_SWEEP = "threadmill_sa/engine/processing/retention.py"
_UNIT = "unit/test_retention.py"
_REDIS = "store_only/test_redis_retention.py"
_LOCKS = "store_only/test_locks.py"
_SKIPPING = "        .with_for_update(skip_locked=True)\n"

KEEPING = (
    Mutant(
        "delete-of-a-running-job",
        "a job that a node holds is not deleted",
        "threadmill_sa/model/job.py",
        "        case JobState.PROCESSING:\n            return DeleteVerdict.RUNNING\n",
        "",
        contract("DeleteJob", "test_a_running_job_is_not_deleted"),
        store="sqlite",
    ),
    Mutant(
        "delete-told-as-done",
        "the caller is told that a running job was not deleted",
        "threadmill_sa/keeping.py",
        "if verdict is DeleteVerdict.RUNNING:",
        "if verdict is None:",
        tests_of(
            "engine/test_retention.py",
            "test_a_running_job_is_refused_and_ends_as_if_nothing_had_been_asked",
        ),
    ),
    Mutant(
        "delete-without-a-row-lock",
        "beside a claim a delete meets what the claim has written",
        _STATEMENTS,
        "        .with_for_update()\n",
        "",
        tests_of(_LOCKS, "test_a_delete_meets_what_the_write_that_it_waits_for_has_left"),
    ),
    Mutant(
        "delete-told-nowhere",
        "a delete enters the history",
        _SQL,
        "                connection.execute(self._history, [_deletion(row)])\n",
        "                assert _deletion(row)\n",
        contract("DeleteJob", "test_a_job_that_no_node_holds_is_deleted"),
        store="sqlite",
    ),
    Mutant(
        "delete-leaves-the-job-in-line",
        "no attempt of a deleted job starts",
        f"{_MEMORY}/jobs.py",
        "                self._table.withdraw(row)\n",
        "",
        contract("DeleteJob", "test_a_deleted_job_is_neither_claimed_nor_promoted"),
        store="memory",
    ),
    Mutant(
        "delete-disorders-the-line",
        "the other jobs keep their order",
        f"{_MEMORY}/table.py",
        "    heapify(heap)\n",
        "",
        contract("DeleteJob", "test_the_others_keep_their_order")
        + contract("DeleteJob", "test_delayed_jobs_keep_their_order"),
        store="memory",
    ),
    Mutant(
        "removal-before-its-time",
        "a finished job is kept for its time",
        _STATEMENTS,
        "        .where(jobs.c.state_at <= dialect.later(dialect.now_bound(), age))\n",
        "        .where(dialect.later(dialect.now_bound(), age).is_not(None))\n",
        contract("Retention", "test_a_finished_job_goes_at_its_age_and_not_before"),
        store="sqlite",
    ),
    Mutant(
        "removal-before-its-time-in-memory",
        "a finished job is kept for its time",
        f"{_MEMORY}/table.py",
        " and oldest[0][0] <= until:",
        " and until:",
        contract("Retention", "test_a_finished_job_goes_at_its_age_and_not_before"),
        store="memory",
    ),
    Mutant(
        "removal-in-any-order",
        "the oldest go first",
        _STATEMENTS,
        "        .order_by(jobs.c.state_at, jobs.c.id)\n",
        "        .order_by(jobs.c.id.desc())\n",
        contract("Retention", "test_the_oldest_go_first_up_to_the_limit"),
        store="sqlite",
    ),
    Mutant(
        "removal-waits-for-another",
        "a removal passes by what another one holds",
        _STATEMENTS,
        _SKIPPING,
        "        .with_for_update()\n",
        tests_of(_LOCKS, "test_a_removal_passes_by_what_another_one_holds"),
    ),
    Mutant(
        "removal-leaves-the-history",
        "what is kept of a job goes with it",
        _SQL,
        "            if removed:\n",
        "            if not removed:\n",
        contract("Retention", "test_everything_that_is_kept_of_a_job_goes_with_it"),
        store="sqlite",
    ),
    Mutant(
        "removal-scans-the-history",
        "the history of removed jobs is found by its index, whatever the statistics say",
        _STATEMENTS,
        "dialect.picked(history.c.job_id, select(gone.c.id))",
        "history.c.job_id.in_(select(gone.c.id))",
        tests_of(
            "store_only/test_postgres_plans.py",
            "test_removing_finished_jobs_reads_the_oldest_by_their_index_and_no_other_row",
        ),
    ),
    Mutant(
        "redis-delete-of-a-running-job",
        "a job that a node holds is not deleted",
        f"{_LUA}/job_delete.lua",
        "elseif row[STATE] == 'PROCESSING' then\n  return 'running'\nend",
        "end",
        contract("DeleteJob", "test_a_running_job_is_not_deleted"),
        store="valkey",
    ),
    Mutant(
        "redis-delete-leaves-the-job-in-line",
        "no attempt of a deleted job starts",
        f"{_LUA}/job_delete.lua",
        "redis.call('ZREM', delayed, id)\n",
        "",
        tests_of(_REDIS, "test_the_books_are_right_after_each_delete"),
        store="valkey",
    ),
    Mutant(
        "redis-removal-before-its-time",
        "a finished job is kept for its time",
        f"{_LUA}/job_remove_old.lua",
        " - tonumber(ARGV[3]) + 1",
        " + tonumber(ARGV[3]) + 1",
        contract("Retention", "test_a_finished_job_goes_at_its_age_and_not_before"),
        store="valkey",
    ),
    Mutant(
        "redis-removal-an-instant-late",
        "a finished job goes at its age",
        f"{_LUA}/job_remove_old.lua",
        " - tonumber(ARGV[3]) + 1",
        " - tonumber(ARGV[3])",
        contract("Retention", "test_a_finished_job_goes_at_its_age_and_not_before"),
        store="valkey",
    ),
    Mutant(
        "redis-removal-leaves-the-trail",
        "what is kept of a job goes with it",
        f"{_LUA}/job_remove_old.lua",
        "    redis.call('HDEL', trail, id .. ':' .. number)\n",
        "",
        contract("Retention", "test_everything_that_is_kept_of_a_job_goes_with_it"),
        store="valkey",
    ),
    Mutant(
        "redis-removal-leaves-the-instance",
        "what is kept of a job goes with it",
        f"{_LUA}/job_remove_old.lua",
        "  if row[TASK] then\n",
        "  if false then\n",
        tests_of(_REDIS, "test_nothing_is_left_of_jobs_that_were_removed"),
        store="valkey",
    ),
    Mutant(
        "redis-removal-stumbles-over-a-stray",
        "what no row bears out is taken from the index and holds up no removal",
        f"{_LUA}/job_remove_old.lua",
        "  redis.call('ZREM', index, member) -- Also",
        "  -- Also",
        tests_of(
            _REDIS,
            "test_an_entry_of_a_finished_job_that_no_row_bears_out_holds_up_no_removal",
        ),
    ),
    Mutant(
        "sweep-hammers-a-store-that-is-out",
        "a sweep that failed goes on a tick later",
        _SWEEP,
        "        self._due_at = began + limits.TICK_SECONDS\n",
        "",
        tests_of(_UNIT, "test_an_outage_is_tried_again_a_tick_later_and_not_before"),
    ),
    Mutant(
        "sweep-empties-one-state-first",
        "a crowd in one state holds up no other",
        _SWEEP,
        "                self._left.append(state)\n",
        "                self._left.appendleft(state)\n",
        tests_of(_UNIT, "test_a_crowd_in_one_state_holds_up_no_other"),
    ),
    Mutant(
        "sweep-without-a-bound-of-time",
        "a turn of the sweep leaves the thread to the ticks",
        _SWEEP,
        "if not self._left or self._monotonic() >= until:",
        "if not self._left:",
        tests_of(_UNIT, "test_a_turn_ends_when_its_time_is_up"),
    ),
    Mutant(
        "sweep-forgets-the-rest",
        "a sweep that was cut short carries on a tick later",
        _SWEEP,
        "        if not self._left:\n            self._due_at",
        "        if began >= 0:\n            self._due_at",
        tests_of(_UNIT, "test_a_sweep_that_is_cut_short_carries_on_a_tick_later"),
    ),
)
