"""The caller's session: joined, after the commit, or at once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, tests_of

_HOOKS = "threadmill_sa/session/hooks.py"
_JOINED = "threadmill_sa/stores/sql/joined.py"
_BOUNDARY = "threadmill_sa/session/boundary.py"
_UNIT = "threadmill_sa/stores/sql/unit.py"
_AFTER = "session/test_after_commit.py"
_JOIN = "session/test_join.py"
_FIRST = "session/test_sqlite_first_writes.py"

SESSIONS = (
    Mutant(
        "after-commit-fires-on-a-rollback",
        "a deferred write happens for a transaction that was marked as committed, and no other",
        _HOOKS,
        "        if not waiting.committed:\n",
        "        if waiting is None:\n",
        tests_of(_AFTER, "test_a_rollback_discards_and_the_session_goes_on"),
    ),
    Mutant(
        "after-commit-fires-for-a-savepoint",
        "what a released savepoint asked for shares the fate of the outer transaction",
        _HOOKS,
        "        outer = _enclosing(transaction)\n",
        "        outer = None\n",
        tests_of(_AFTER, "test_a_released_savepoint_shares_the_fate_of_the_outer_rollback"),
    ),
    Mutant(
        "after-commit-fires-inside-the-commit",
        "a deferred write waits until the connection is back in its pool",
        _HOOKS,
        "                waiting.committed = True\n",
        "                waiting.committed = True\n"
        "                _fire(waiting)\n"
        "                waiting.writes.clear()\n",
        tests_of(_AFTER, "test_a_pool_of_one_does_not_deadlock"),
    ),
    Mutant(
        "after-commit-keeps-a-rolled-back-savepoint",
        "a savepoint that is rolled back takes along what was asked for inside it",
        _HOOKS,
        "    return session.get_nested_transaction() or session.get_transaction()\n",
        "    return session.get_transaction()\n",
        tests_of(_AFTER, "test_a_rolled_back_savepoint_discards_only_its_own"),
    ),
    Mutant(
        "after-commit-keeps-what-is-inside-a-closed-savepoint",
        "nothing waits in a session for a savepoint that is gone",
        _HOOKS,
        "for each in by_transaction if _is_inside(each, transaction)]",
        "for each in ()]",
        tests_of(_AFTER, "test_closing_a_savepoint_around_an_open_one_keeps_nothing_of_both"),
    ),
    Mutant(
        "after-commit-writes-each-nudge",
        "many nudges of one task in one transaction are one write",
        _BOUNDARY,
        "hooks.write_after_commit(session, (self, name), write)",
        "hooks.write_after_commit(session, object(), write)",
        tests_of(_AFTER, "test_many_nudges_of_one_task_in_one_transaction_are_one_write"),
    ),
    Mutant(
        "failing-write-reaches-the-commit",
        "the host's `commit()` has succeeded and returns so, whatever our write does",
        _HOOKS,
        '        except Exception:\n            counters.add("failed")\n',
        '        except ZeroDivisionError:\n            counters.add("failed")\n',
        tests_of(_AFTER, "test_a_failing_write_is_isolated_logged_and_counted"),
    ),
    Mutant(
        "fault-of-ours-reaches-the-host",
        "no error of ours leaves a listener",
        _HOOKS,
        "    except Exception as error:  # noqa: BLE001 - as above\n",
        "    except ZeroDivisionError as error:\n",
        tests_of(
            "session/test_hooks.py", "test_a_fault_of_ours_in_a_listener_never_reaches_the_host"
        ),
    ),
    Mutant(
        "listeners-behind-the-hosts",
        "a host's hook that raises cannot hide the commit from ours",
        _HOOKS,
        "event.listen(Session, name, listener, insert=True)",
        "event.listen(Session, name, listener)",
        tests_of(
            _AFTER, "test_host_hooks_registered_on_the_class_before_ours_cannot_hide_the_mark"
        ),
    ),
    Mutant(
        "wake-before-the-commit",
        "others are told when the transaction has committed, and never of one that did not",
        _BOUNDARY,
        "            hooks.hint_after_commit(handle, self, self._hint)\n",
        "            self._wake()\n",
        tests_of(_JOIN, "test_a_rollback_takes_the_nudge_and_the_jobs_with_it"),
    ),
    Mutant(
        "wake-of-a-transaction-that-is-open",
        "a watched transaction is told once its status says that it has committed",
        "threadmill_sa/stores/sql/waker.py",
        'committed = committed or status == "committed"',
        "committed = True",
        tests_of(
            "store_only/test_wakes.py",
            "test_a_connection_that_is_rolled_back_wakes_nobody",
        ),
    ),
    Mutant(
        "joined-in-autocommit",
        "AUTOCOMMIT has no transaction to join and is refused by name",
        _JOINED,
        '        if getattr(driver, "autocommit", False):\n            raise _autocommit()\n',
        "        del driver\n",
        tests_of(_AFTER, "test_autocommit_is_refused_by_name"),
    ),
    Mutant(
        "joined-in-autocommit-on-sqlite",
        "AUTOCOMMIT has no transaction to join and is refused by name",
        _JOINED,
        "        if not _in_transaction(driver):\n            raise _autocommit()\n",
        "        pass\n",
        tests_of("store_only/test_sqlite_locking.py", "test_autocommit_is_refused_by_name"),
    ),
    Mutant(
        "joined-in-a-savepoint-of-the-plain-driver",
        "a savepoint that would survive the outer rollback is refused with the advice",
        _JOINED,
        "    elif connection.in_nested_transaction():\n",
        "    elif connection.closed:\n",
        tests_of(_JOIN, "test_a_savepoint_on_plain_sqlite_is_refused_with_advice"),
    ),
    Mutant(
        "joined-on-a-foreign-database",
        "a session of another database is refused without SQL",
        _JOINED,
        "            if known.pool is pool:\n",
        "            if known.pool is not None or pool is None:\n",
        tests_of(_JOIN, "test_a_session_of_another_database_is_refused_without_sql"),
    ),
    Mutant(
        "immediate-nudge-rides-the-write-in-flight",
        "the write that covers a caller starts after the caller arrived",
        "threadmill_sa/engine/recurring/coalescer.py",
        "        if not current.in_flight:\n            return current\n",
        "        return current\n",
        tests_of(
            "unit/test_coalescer.py", "test_the_covering_write_starts_after_the_caller_arrived"
        ),
    ),
    Mutant(
        "immediate-nudge-hides-a-failure",
        "a write that fails fails every caller that it covers",
        "threadmill_sa/engine/recurring/coalescer.py",
        "        if self.failure is not None:\n            raise self.failure\n",
        "",
        tests_of(
            "unit/test_coalescer.py",
            "test_a_failure_reaches_every_caller_it_covers_and_the_next_one_starts_fresh",
        ),
    ),
    Mutant(
        "own-work-at-the-engines-isolation",
        "our transactions are READ COMMITTED whatever the engine's default",
        _UNIT,
        'isolation_level="READ COMMITTED", **OWN_OPTIONS',
        "**OWN_OPTIONS",
        tests_of(
            "store_only/test_engine_defaults.py",
            "test_the_whole_cycle_works_on_an_engine_whose_default_is",
        ),
    ),
    Mutant(
        "own-statement-at-the-sessions-isolation",
        "a single statement of ours runs at READ COMMITTED whatever role or database say",
        _UNIT,
        "                        _pin_isolation(connection)\n",
        "                        pass\n",
        tests_of(
            "store_only/test_engine_defaults.py",
            "test_a_default_of_serializable_set_on_the",
        ),
    ),
    Mutant(
        "own-conflict-is-raised",
        "a conflict of our own transaction left nothing behind and is tried again",
        _UNIT,
        "if fault is Fault.OUTAGE or self._exhausted(tries, waited):",
        "if fault is not Fault.OTHER or self._exhausted(tries, waited):",
        tests_of(
            "store_only/test_sqlite_locking.py",
            "test_n8_the_engine_keeps_trying_beyond_the_drivers_own_patience",
        ),
    ),
    Mutant(
        "joined-names-read-before-the-write",
        "N7: a nudge of several names fails no transaction that its first write would not",
        _BOUNDARY,
        "writes.task_verdicts(names, writing=True)",
        "writes.task_verdicts(names)",
        tests_of(_FIRST, "test_a_joined_write_comes_before_every_read"),
    ),
    Mutant(
        "promise-read-before-the-write",
        "N7: a recorded promise fails no transaction that its first write would not",
        _BOUNDARY,
        "own.task_verdicts(names, writing=recording)",
        "own.task_verdicts(names)",
        tests_of(_FIRST, "test_a_recorded_promise_comes_before_every_read"),
        more=(("            recording = self._store.records is not None\n", ""),),
    ),
    Mutant(
        "unrecorded-nudge-makes-a-writer",
        "a nudge that waits for the commit and is not recorded makes its caller no writer",
        _BOUNDARY,
        "writing=recording)",
        "writing=True)",
        tests_of(_FIRST, "test_nothing_is_written_for_a_nudge_that_waits_and_is_not_recorded"),
        more=(("            recording = self._store.records is not None\n", ""),),
    ),
    Mutant(
        "refused-names-promised",
        "no name is recorded as promised by a call that was refused for another",
        _BOUNDARY,
        "            self._check(own.task_verdicts(names, writing=recording))\n"
        "            promises = own.expect_nudges(names, now=self._instant())\n",
        "            promises = own.expect_nudges(names, now=self._instant())\n"
        "            self._check(own.task_verdicts(names, writing=recording))\n",
        tests_of(_FIRST, "test_no_name_of_a_refused_call_is_promised"),
    ),
)
