"""Accepting a nudge: the statement that rides a caller's transaction."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_NUDGES = "threadmill_sa/stores/sql/statements/nudges.py"
_DIALECTS = "threadmill_sa/stores/sql/dialects.py"
_WRITING = "threadmill_sa/stores/sql/writing.py"
_PREPARED = "threadmill_sa/stores/sql/prepared.py"
_N7 = "promises/test_n7_harmless_to_the_caller.py"
_N7_ENVIRONMENT = "promises/test_n7_callers_environment.py"
_CAN_ACCEPT = """\
        .where(tasks.c.name == bindparam("name", type_=String()))
        .where(tasks.c.enabled == true())
    )
"""
_TWO_QUEUES = (
    "test_n7_thirty_two_callers_enqueue_into_two_queues_in_opposite_order_without_an_error"
)
_COUNTING = """\
        instant = self._instant(now)
        for each in jobs:
            execute(self._counted, {"queue": each.queue, "n": 0})
        if len(jobs) == 1:
"""

ACCEPTING = (
    Mutant(
        "accept-of-a-paused-task",
        "N5: the statement that accepts is the one that asks whether the task is enabled",
        _NUDGES,
        "        .where(tasks.c.enabled == true())\n",
        "",
        contract("Nudge", "test_n5_a_paused_task_is_refused"),
        store="sqlite",
    ),
    Mutant(
        "accept-of-a-paused-task-in-memory",
        "N5: a paused task is refused",
        "threadmill_sa/stores/memory/recurring.py",
        "return NudgeVerdict.ACCEPTED if entry.task.enabled else NudgeVerdict.DISABLED",
        "return NudgeVerdict.ACCEPTED",
        contract("Nudge", "test_n5_a_paused_task_is_refused"),
        store="memory",
    ),
    Mutant(
        "accept-in-one-slot-for-all",
        "N7: a slot belongs to one transaction, so no producer meets the row of another",
        _DIALECTS,
        "return cast(cast(func.pg_catalog.pg_current_xact_id(), Text), BigInteger)",
        'return literal_column("0", BigInteger)',
        tests_of(_N7, "test_n7_one_task_nudged_by_many_open_transactions_makes_none_of_them_wait"),
    ),
    Mutant(
        "accept-without-conflict-clause",
        "N2: a second nudge in one transaction takes the place of the first",
        _DIALECTS,
        'return statement.on_conflict_do_update(index_elements=["task_name", "slot"], set_=fresh)',
        "del fresh\n        return statement",
        tests_of(
            "promises/test_n2_coalescing.py",
            "test_n2_many_nudges_in_one_transaction_are_one_acceptance",
        ),
        store="pg",
    ),
    Mutant(
        "accept-without-conflict-clause-on-sqlite",
        "N2: an acceptance takes the place of the pending one",
        _DIALECTS,
        'self.insert(nudges).prefix_with("OR REPLACE")',
        "self.insert(nudges)",
        contract("Nudge", "test_n2_a_burst_gives_one_run"),
        store="sqlite",
    ),
    Mutant(
        "accept-again-keeps-the-old-epoch",
        "N6: a nudge belongs to the registration that it was accepted under, the last one too",
        _DIALECTS,
        'for name in ("epoch", "revision")}',
        'for name in ("revision",)}',
        tests_of(
            "promises/test_n6_no_resurrection.py",
            "test_n6_a_transaction_that_nudges_again_after_a_new_registration_reaches_that_one",
        ),
    ),
    Mutant(
        "accept-again-keeps-the-old-revision",
        "the receipt names the acceptance that is pending",
        _DIALECTS,
        'for name in ("epoch", "revision")}',
        'for name in ("epoch",)}',
        tests_of(
            "promises/test_n2_coalescing.py",
            "test_n2_many_nudges_in_one_transaction_are_one_acceptance",
        ),
    ),
    Mutant(
        "accept-again-forgets-the-earlier-request",
        "a pending nudge shows when the earliest of its requests was made",
        _DIALECTS,
        "func.least(nudges.c.requested_at, again.requested_at)",
        "again.requested_at",
        tests_of(
            "promises/test_n2_coalescing.py",
            "test_n2_of_several_requests_in_one_transaction_the_earliest_is_shown",
        ),
    ),
    Mutant(
        "accept-again-keeps-the-request-of-a-dead-registration",
        "N6: a nudge is as old as its earliest request under the registration that it is for",
        _DIALECTS,
        "(nudges.c.epoch == again.epoch, func",
        "(nudges.c.epoch <= again.epoch, func",
        tests_of(
            "promises/test_n2_coalescing.py",
            "test_n6_a_request_of_a_registration_that_is_gone_makes_no_later_one_older",
        ),
    ),
    Mutant(
        "accept-locks-the-definition",
        "N8: an open caller holds no lock that a lifecycle call wants (the ledger rule)",
        _NUDGES,
        _CAN_ACCEPT,
        _CAN_ACCEPT.replace("    )\n", "        .with_for_update(read=True)\n    )\n"),
        tests_of(
            "promises/test_n8_engine_never_stalls.py",
            "test_n8_every_engine_operation_completes_beside_an_open_joined",
        ),
    ),
    Mutant(
        "accept-locks-the-schedule",
        "N8: an open caller holds no lock that a tick wants (the ledger rule)",
        _NUDGES,
        _CAN_ACCEPT,
        _CAN_ACCEPT.replace(
            "    )\n",
            "        .join(schema.cron_task_state, schema.cron_task_state.c.task_name"
            " == tasks.c.name)\n"
            "        .with_for_update(of=schema.cron_task_state)\n    )\n",
        ),
        tests_of(
            "promises/test_n8_engine_never_stalls.py",
            "test_n8_a_fire_of_the_same_task_is_on_time_beside_an_open_nudge",
        ),
    ),
    Mutant(
        "enqueue-counts-in-one-row",
        "N7: an insert in the caller's transaction updates no row that others update",
        _WRITING,
        "        self._insert_many = job_statements.insert_jobs(schema, dialect)\n",
        "        self._insert_many = job_statements.insert_jobs(schema, dialect)\n"
        "        self._counted = job_statements.fold_queue_count(schema, dialect)\n",
        tests_of(
            _N7,
            _TWO_QUEUES,
        ),
        more=(
            (
                "        instant = self._instant(now)\n        if len(jobs) == 1:\n",
                _COUNTING,
            ),
        ),
    ),
    Mutant(
        "verdict-of-a-task-that-is-resumed-meanwhile",
        "a task that is enabled between accept and verdict is tried again, not called paused",
        _WRITING,
        "            if not enabled:\n                break\n",
        "            break\n",
        tests_of(
            "promises/test_n5_pause_wins.py",
            "test_n5_a_task_that_is_resumed_between_refusal_and_verdict_is_nudged",
        ),
    ),
    Mutant(
        "callers-map-of-schemas-moves-our-tables",
        "N7: the caller's translation of schemas does not reach our statements",
        _PREPARED,
        '    "schema_translate_map": None,\n',
        "",
        tests_of(
            _N7_ENVIRONMENT, "test_n7_a_callers_translation_of_schemas_does_not_move_our_tables"
        ),
    ),
    Mutant(
        "callers-options-reach-joined-statements",
        "N7: what a caller has set on its connection changes nothing of ours",
        _PREPARED,
        "execution_options=OWN_OPTIONS if connection.get_execution_options() else None",
        "execution_options=None",
        tests_of(_N7_ENVIRONMENT, "test_n7_execution_options_of_the_caller_change_nothing"),
    ),
    Mutant(
        "tables-without-their-schema",
        "N7: our tables are named with their schema, whatever the caller's search path says",
        "threadmill_sa/stores/sql/store.py",
        "return Schema(self._schema_name or self._resolve_schema())",
        "return Schema(self._schema_name)",
        tests_of(_N7_ENVIRONMENT, "test_n7_on_postgresql_joined_writes_hold_under"),
    ),
    Mutant(
        "functions-without-their-schema",
        "N7: the system's functions are named with their schema",
        _DIALECTS,
        "func.pg_catalog.pg_current_xact_id()",
        "func.pg_current_xact_id()",
        tests_of(
            _N7_ENVIRONMENT,
            "test_n7_functions_that_the_caller_puts_before_the_systems_are_not_called",
        ),
    ),
    Mutant(
        "temporary-tables-before-ours-on-sqlite",
        "N7: a caller's temporary table of the same name is not ours",
        "threadmill_sa/stores/sql/store.py",
        'return "main"  # named',
        'return ""  # named',
        tests_of(
            _N7_ENVIRONMENT, "test_n7_on_sqlite_a_temporary_table_of_the_same_name_is_not_ours"
        ),
    ),
    Mutant(
        "sequence-in-blocks-given-twice",
        "a revision is an identity: no two acceptances share one",
        "threadmill_sa/stores/sql/numbering.py",
        "self._upcoming, self._end = first + 1, first + REVISION_BLOCK",
        "self._upcoming, self._end = first, first + REVISION_BLOCK",
        contract("Revision", "test_acceptances_at_one_instant_are_told_apart"),
        store="pg",
    ),
)
