"""Recording nudges and runs on Redis."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_STORE = "threadmill_sa/stores/redis"
_LUA = f"{_STORE}/lua"

REDIS_RECORDS = (
    Mutant(
        "redis-accept-without-a-record",
        "the script that accepts a nudge records it",
        f"{_LUA}/nudge_accept.lua",
        "  record_nudge(revision, name, gate, now, false)\n",
        "",
        contract("Record", "test_each_acceptance_is_recorded"),
        store="valkey",
    ),
    Mutant(
        "redis-record-unasked",
        "nothing is recorded unless it was asked for",
        f"{_LUA}/nudge_accept.lua",
        "local recorded = ARGV[3] == '1'",
        "local recorded = ARGV[3] ~= nil",
        tests_of("store_only/test_redis_records.py", "test_off_is_off"),
    ),
    Mutant(
        "redis-run-that-saw-nothing",
        "a run's record shows every nudge accepted before it",
        f"{_LUA}/lib/records.lua",
        "redis.call('HGET', sequences, 'revision') or '0'",
        "'0'",
        contract("Record", "test_a_run_that_starts_later_covers_all_before_it"),
        store="valkey",
    ),
    Mutant(
        "redis-flip-without-a-record",
        "N5: a flip excuses what was recorded before it",
        f"{_LUA}/task_flip.lua",
        "record_drop(name, ARGV[6] == '1' and 'enabled' or 'disabled')\n",
        "",
        contract("Record", "test_n5_a_nudge_before_the_end_of_a_pause_is_excused"),
        store="valkey",
    ),
    Mutant(
        "redis-clear-without-a-record",
        "an operator's clear excuses what was recorded before it",
        f"{_LUA}/nudge_clear.lua",
        "    record_drop(name, 'cleared')\n",
        "",
        contract("Record", "test_a_nudge_that_an_operator_cleared_is_excused"),
        store="valkey",
    ),
    Mutant(
        "redis-refusal-of-any-record",
        "a refusal excuses its own promise only",
        f"{_LUA}/nudge_refuse.lua",
        " or record[1] ~= ARGV[1] or not record[4]",
        "",
        contract("Record", "test_a_refusal_excuses_only_its_own_promise"),
        store="valkey",
    ),
    Mutant(
        "redis-record-of-a-dead-registration",
        "N6: a nudge is excused when its registration is gone",
        f"{_STORE}/records.py",
        "living.get(each.view.task) == each.epoch",
        "each.view.task in living",
        contract("Record", "test_n6_a_nudge_of_a_deleted_registration_is_excused"),
        store="valkey",
    ),
)
