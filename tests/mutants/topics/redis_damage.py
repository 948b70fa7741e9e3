"""Rows and index entries that a hand has deleted or damaged, and stores that were emptied."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, tests_of

_STORE = "threadmill_sa/stores/redis"
_LUA = f"{_STORE}/lua"
_ROWS, _DAMAGE, _INDEX = f"{_LUA}/lib/rows.lua", f"{_LUA}/lib/damage.lua", f"{_LUA}/lib/index.lua"
_JOBS = "store_only/test_redis_damaged_jobs.py"
_TASKS = "store_only/test_redis_damaged_tasks.py"
_SQLITE = "store_only/test_sqlite_damaged_rows.py"
_OBLIVION = "engine/test_oblivion.py"
_CLAIMED = tests_of(
    _JOBS,
    "test_a_ready_job_whose_row_was_deleted_is_forgotten_and_the_others_are_claimed",
)
_MOVED = tests_of(_JOBS, "test_a_row_that_was_edited_is_found_where_it_says_and_runs_once")

REDIS_DAMAGE = (
    Mutant(
        "redis-row-taken-on-trust",
        "a claim works with no row whose fields a hand has damaged",
        _ROWS,
        "return row and sound(row) and row or nil, packed",
        "return row, packed",
        tests_of(
            _JOBS,
            "test_a_ready_job_with_a_damaged_field_is_set_aside_alone_and_is_told",
        ),
    ),
    Mutant(
        "redis-row-unpacked-on-trust",
        "bytes that are no row stop no script",
        _ROWS,
        "pcall(cmsgpack.unpack, packed)",
        "true, cmsgpack.unpack(packed)",
        tests_of(_JOBS, "test_a_row_that_is_none_is_kept_and_stops_nobody"),
    ),
    Mutant(
        "redis-row-with-half-an-attempt",
        "a number of attempts is a whole one, from zero on",
        _ROWS,
        " and value >= 0 and value % 1 == 0",
        "",
        tests_of(
            _JOBS,
            "test_a_ready_job_with_a_damaged_field_is_set_aside_alone_and_is_told",
        ),
    ),
    Mutant(
        "redis-claim-of-an-ended-job",
        "a job runs when its row says that it is ready, whatever a lane says",
        f"{_LUA}/job_claim.lua",
        " or row[STATE] ~= 'ENQUEUED'",
        "",
        _MOVED,
    ),
    Mutant(
        "redis-claim-of-a-moved-job",
        "a job is claimed from the lane that its row names",
        f"{_LUA}/job_claim.lua",
        " or not stands(row, handler, queue, tail)",
        "",
        _MOVED,
    ),
    Mutant(
        "redis-claim-of-a-tail-that-is-none",
        "what cannot be a place and an id is dropped from its lane",
        f"{_LUA}/job_claim.lua",
        "#tail == TAIL",
        "tail",
        tests_of(_JOBS, "test_a_member_that_names_no_job_stops_nobody"),
    ),
    Mutant(
        "redis-misfit-stays-in-its-lane",
        "what no row bears out is met once and never again",
        f"{_LUA}/job_claim.lua",
        "redis.call('ZREM', index, lane(handler, queue) .. tail) == 1 and queue",
        "queue",
        (
            *_CLAIMED,
            *tests_of(_JOBS, "test_a_member_that_names_no_job_stops_nobody"),
        ),
    ),
    Mutant(
        "redis-claim-that-met-misfits-gives-up",
        "a claim that met misfits alone looks again",
        f"{_STORE}/jobs.py",
        "if claimed or not (strayed or damaged):",
        "if claimed or strayed or damaged or not strayed:",
        _CLAIMED,
    ),
    Mutant(
        "redis-promotion-of-no-row",
        "a delayed job is promoted when its row says that it waits",
        f"{_LUA}/job_promote.lua",
        "if row and row[STATE] == 'SCHEDULED' then",
        "if row or not packed then",
        tests_of(_JOBS, "test_a_delayed_job_whose_row_was_deleted_holds_up_no_promotion"),
    ),
    Mutant(
        "redis-listing-of-no-row",
        "a listing passes over a row that is gone",
        f"{_LUA}/job_list.lua",
        "if not row or wanted[",
        "if wanted[",
        tests_of(_JOBS, "test_a_job_whose_row_was_deleted_is_left_out_of_a_listing_and_unknown"),
    ),
    Mutant(
        "redis-set-aside-what-changed",
        "only what is still as it was read is set aside",
        f"{_LUA}/job_set_aside.lua",
        "if packed ~= misfit[2] then",
        "if false then",
        tests_of(_JOBS, "test_a_row_that_changes_while_it_is_set_aside_is_left"),
    ),
    Mutant(
        "redis-lost-instance-holds-its-task",
        "an instance whose row is gone lets go of the guard",
        _DAMAGE,
        "      shift('t:' .. task, -1)\n",
        "",
        tests_of(_JOBS, "test_the_deleted_row_of_an_instance_lets_go_of_its_task"),
    ),
    Mutant(
        "redis-lost-job-counts-in-its-queue",
        "what is taken out of a lane counts no more",
        _DAMAGE,
        "      shift('q:' .. queue, -1)\n",
        "",
        _CLAIMED,
    ),
    Mutant(
        "redis-lost-job-keeps-its-payload",
        "nothing is kept of a job whose row is gone",
        _DAMAGE,
        "  redis.call('HDEL', payloads, id)\n",
        "",
        _CLAIMED,
    ),
    Mutant(
        "redis-quarantine-over-the-history",
        "a quarantine is told after what the history tells already",
        _DAMAGE,
        "'HSETNX', trail, id .. ':' .. row[ENTRIES], told) == 1",
        "'HSET', trail, id .. ':' .. row[ENTRIES], told) <= 1",
        tests_of(_JOBS, "test_a_quarantine_is_told_after_the_history_that_there_is"),
    ),
    Mutant(
        "redis-counter-below-zero-stays",
        "a counter below zero holds no task",
        _INDEX,
        "or count <= 0 then",
        "or count == 0 then",
        tests_of(_JOBS, "test_a_counter_that_is_none_stops_nobody_and_holds_no_task"),
    ),
    Mutant(
        "redis-counter-that-is-none-stops-all",
        "a counter that is no number stops no script",
        _INDEX,
        "redis.pcall('HINCRBY', counters",
        "redis.call('HINCRBY', counters",
        tests_of(_JOBS, "test_a_counter_that_is_none_stops_nobody_and_holds_no_task"),
    ),
    Mutant(
        "redis-registered-name-forgotten",
        "a name that is registered meanwhile stays in what ticks look at",
        f"{_LUA}/task_forget.lua",
        "named[2] or unchanged(name, '', '', '')",
        "name",
        tests_of(_TASKS, "test_a_name_that_is_registered_meanwhile_is_not_taken_out"),
    ),
    Mutant(
        "redis-mended-task-resumes",
        "a paused task whose definition was damaged stays paused",
        f"{_STORE}/recurring.py",
        "instead_of.enabled_or(enabled)",
        "enabled",
        tests_of(
            _TASKS,
            "test_a_paused_task_with_a_damaged_definition_stays_paused_when_it_is_mended",
        ),
    ),
    Mutant(
        "sqlite-row-taken-on-trust",
        "a row whose columns hold what their types do not is set aside alone",
        "threadmill_sa/stores/sql/rows.py",
        "if value is not None and not isinstance(value, _TYPES.get(name, object)):",
        "if value is NotImplemented:",
        tests_of(
            _SQLITE,
            "test_a_ready_job_with_a_damaged_column_is_quarantined_and_the_others_run",
        ),
    ),
    Mutant(
        "swept-node-registers-its-tasks",
        "a node that others swept away in its silence brings no deleted task back",
        "threadmill_sa/engine/processing/heartbeats.py",
        "silence < limits.NODE_STALE_SECONDS / 2",
        "silence >= 0",
        tests_of(_OBLIVION, "test_a_node_that_others_swept_away_in_its_silence_is_not_told"),
    ),
    Mutant(
        "emptied-store-stays-empty",
        "a node whose registration is gone registers its tasks again",
        "threadmill_sa/engine/processing/heartbeats.py",
        "                self._on_forgotten()\n",
        "                pass\n",
        tests_of(_OBLIVION, "test_a_registration_that_is_gone_between_two_beats_is_noticed_once"),
    ),
    Mutant(
        "redis-small-pool-passes",
        "a pool that one node would exhaust is refused before it starts",
        f"{_STORE}/checks.py",
        "most is not None and most < POOL_MIN",
        "most is not None and most < 1",
        tests_of(
            "store_only/test_redis_clients.py",
            "test_a_pool_that_is_too_small_for_a_node_is_refused_when_it_starts",
        ),
    ),
    Mutant(
        "redis-mode-that-cannot-be-served",
        "a mode that the store cannot serve is refused at construction",
        "threadmill_sa/session/boundary.py",
        "default_mode is EnqueueMode.JOIN_TRANSACTION and not self._joins",
        "default_mode is None and not self._joins and store is None",
        tests_of(
            "store_only/test_redis_clients.py",
            "test_a_mode_that_cannot_be_served_is_refused_at_construction",
        ),
    ),
)
