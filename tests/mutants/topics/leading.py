"""Leases, the contender, and leader-gated work."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_LEASES = "threadmill_sa/stores/sql/statements/leases.py"
_MEMORY = "threadmill_sa/stores/memory/leases.py"
_DIALECTS = "threadmill_sa/stores/sql/dialects.py"
_CONTENDER = "threadmill_sa/engine/leadership/contender.py"
_MAINTENANCE = "threadmill_sa/engine/processing/maintenance.py"
_STEPS = "leadership/test_contender.py"
_RELIEF = "engine/test_maintenance_lease.py"
_SQL = "store_only/test_leases_sql.py"
_HELD = """\
        leases.c.holder == bindparam("lease_holder", type_=String()),
        leases.c.term == bindparam("lease_term", type_=BigInteger()),
"""

LEADING = (
    Mutant(
        "lease-renewed-by-name-only",
        "a renewal matches the name, the holder and the term",
        _LEASES,
        _HELD,
        '        bindparam("lease_holder", type_=String()) != "",\n'
        '        bindparam("lease_term", type_=BigInteger()) > 0,\n',
        contract("Lease", "test_a_lease_that_was_taken_over_cannot_be_renewed"),
        store="sqlite",
    ),
    Mutant(
        "lease-renewed-after-its-end",
        "a lease that ran out is never had back",
        _LEASES,
        "        .where(leases.c.expires_at > dialect.clock_value())\n        .values(",
        "        .values(",
        contract("Lease", "test_a_lease_that_ran_out_cannot_be_renewed"),
        store="sqlite",
    ),
    Mutant(
        "lease-released-without-its-term",
        "a release of an old term ends no later one",
        _LEASES,
        '        leases.c.term == bindparam("lease_term", type_=BigInteger()),\n',
        '        bindparam("lease_term", type_=BigInteger()) > 0,\n',
        contract("Lease", "test_an_old_term_of_the_same_holder_ends_nothing"),
        store="sqlite",
    ),
    Mutant(
        "lease-term-grows-with-a-renewal",
        "a renewal never changes the term",
        _LEASES,
        "        .values(expires_at=_end_of(dialect))\n",
        "        .values(expires_at=_end_of(dialect), term=leases.c.term + 1)\n",
        contract("Lease", "test_a_renewal_moves_the_end_and_nothing_else"),
        store="sqlite",
    ),
    Mutant(
        "lease-forgotten-at-its-release",
        "the number of a term survives the release",
        _MEMORY,
        "            row.holder, row.expires_at = None, self._clock.now()\n",
        "            del self._rows[lease.name]\n",
        contract("Lease", "test_the_term_survives_the_release"),
        store="memory",
    ),
    Mutant(
        "lease-by-the-clock-of-the-transaction",
        "a lease lasts from the moment it is written, whatever was waited for",
        _DIALECTS,
        """\
    def clock_value(self) -> Instant:
        return func.pg_catalog.clock_timestamp(type_=UtcDateTime())
""",
        """\
    def clock_value(self) -> Instant:
        return func.pg_catalog.now(type_=UtcDateTime())
""",
        tests_of(_SQL, "test_a_wait_for_the_row_does_not_shorten_the_lease"),
        store="pg",
    ),
    Mutant(
        "lease-clock-read-before-the-lock",
        "the row is locked before its new values are computed",
        _LEASES,
        "    return dialect.picked(leases.c.name, row.with_for_update(key_share=key_share))\n",
        "    return leases.c.name.in_(row)\n",
        tests_of(_SQL, "test_a_wait_for_the_row_does_not_shorten_the_lease"),
        store="pg",
    ),
    Mutant(
        "fence-that-holds-nothing",
        "a takeover waits for the fenced transaction",
        _DIALECTS,
        "        return rows.with_for_update(read=True, key_share=True)\n",
        "        return rows\n",
        tests_of(_SQL, "test_a_takeover_waits_for_the_fenced_transaction"),
        store="pg",
    ),
    Mutant(
        "fence-that-stops-renewals",
        "renewals pass by an open fence",
        _DIALECTS,
        "        return rows.with_for_update(read=True, key_share=True)\n",
        "        return rows.with_for_update(read=True)\n",
        tests_of(_SQL, "test_renewals_pass_by_an_open_fence"),
        store="pg",
    ),
    Mutant(
        "fence-without-the-term",
        "a fence asks for the term of the grant",
        _LEASES,
        '        leases.c.term == bindparam("lease_term", type_=BigInteger()),\n',
        '        bindparam("lease_term", type_=BigInteger()) > 0,\n',
        tests_of(_SQL, "test_a_fence_refuses_every_other_holding"),
        store="sqlite",
    ),
    Mutant(
        "trust-counted-from-the-reply",
        "a lease is trusted from the start of its last successful call",
        _CONTENDER,
        "        trusted_until = call.sent_at + self._trust\n",
        "        trusted_until = now + self._trust\n",
        tests_of(_STEPS, "test_trust_is_counted_from_the_start_of_the_call"),
    ),
    Mutant(
        "trust-without-an-end",
        "a holder stops trusting its lease at its own deadline, whatever the store does",
        _CONTENDER,
        "        if holding is None or holding.state is not _State.LEADING"
        " or now < holding.trusted_until:\n",
        "        if holding is None or holding.state is not _State.LEADING or now > -1:\n",
        tests_of(_STEPS, "test_the_term_ends_at_its_own_deadline_while_a_call_hangs"),
    ),
    Mutant(
        "term-released-before-it-is-drained",
        "the lease is kept from others until the work of the ended term is done",
        _CONTENDER,
        "            holding.state = _State.DRAINING\n",
        "            holding.state = _State.RELEASING\n",
        tests_of(
            "leadership/test_leader.py",
            "test_the_lease_is_kept_until_on_released_has_returned",
        ),
    ),
    Mutant(
        "campaign-while-work-goes-on",
        "a process with a run of an ended term does not campaign",
        _CONTENDER,
        "        return self._undrained is None and not self._stopping and not self.stopped\n",
        "        return not self._stopping and not self.stopped\n",
        tests_of(
            "leadership/test_scheduler.py",
            "test_who_has_a_stuck_run_does_not_campaign_and_never_runs_twice",
        ),
    ),
    Mutant(
        "ended-term-adopted-again",
        "a term that has ended here is given back, never begun again",
        _CONTENDER,
        "            if term > self._last_term and self._campaigns:\n",
        "            if self._campaigns:\n",
        tests_of(_STEPS, "test_a_term_that_has_ended_here_is_given_back_and_never_begun_again"),
    ),
    Mutant(
        "late-win-kept",
        "what is won after the stop is given back",
        "threadmill_sa/engine/leadership/campaign.py",
        "        if not heard and won:",
        "        if not heard and won and self._error is not None:",
        tests_of("leadership/test_leader.py", "test_what_is_won_after_the_stop_is_given_back"),
    ),
    Mutant(
        "callbacks-on-the-heartbeat",
        "a callback that blocks delays no renewal",
        "threadmill_sa/engine/leadership/callbacks.py",
        """\
        self._thread = threading.Thread(
            target=self._main, name=f"threadmill-leader-{self._name}", daemon=True
        )
        self._thread.start()
""",
        "        self._main()\n",
        tests_of(
            "leadership/test_leader.py",
            "test_a_callback_that_blocks_delays_neither_renewals_nor_the_loss",
        ),
    ),
    Mutant(
        "burst-of-missed-ticks",
        "missed ticks are made up for by one late run",
        "threadmill_sa/engine/leadership/schedule.py",
        "                slot = latest\n",
        "                slot = due.slot\n",
        tests_of(
            "leadership/test_schedule.py",
            "test_an_overrun_has_one_late_run_and_is_back_on_the_grid",
        ),
    ),
    Mutant(
        "first-term-asks-one-key",
        "of two first holders the later is told of the earlier, whichever key they meet on",
        _LEASES,
        "        .on_conflict_do_nothing()\n",
        '        .on_conflict_do_nothing(index_elements=["name"])\n',
        tests_of(_SQL, "test_of_two_first_holders_the_later_is_told_of_the_earlier"),
        store="pg",
    ),
    Mutant(
        "relieved-for-good",
        "a node takes its turn every few seconds, whoever is said to keep house",
        _MAINTENANCE,
        "                regular = began >= unrelieved_at or not self._relieved()\n",
        "                regular = not self._relieved()\n",
        tests_of(
            _RELIEF,
            "test_while_the_holder_is_dead_nothing_waits_for_more_than_one_relieved_turn",
        ),
        store="memory",
    ),
    Mutant(
        "wake-left-to-the-holder",
        "a wake is taken by the node that hears it",
        _MAINTENANCE,
        "            turn = regular or self._woken.is_set()\n",
        "            turn = regular or (self._woken.is_set() and not self._relieved())\n",
        tests_of(_RELIEF, "test_a_relieved_node_takes_every_wake_at_once"),
        store="memory",
    ),
    Mutant(
        "wake-swallowed-by-a-turn",
        "a wake at the moment of a turn that is left out is taken",
        _MAINTENANCE,
        "                tick_at = min(tick_at, unrelieved_at)\n",
        "                tick_at = min(tick_at, unrelieved_at)\n"
        "                self._woken.clear()\n",
        tests_of(_RELIEF, "test_a_wake_at_the_moment_of_a_turn_that_is_left_out_is_taken"),
    ),
    Mutant(
        "orphans-left-to-the-holder",
        "every node takes orphans back at its own cadence",
        _MAINTENANCE,
        "            if began >= reclaim_at:\n",
        "            if turn and began >= reclaim_at:\n",
        tests_of(_RELIEF, "test_orphans_are_taken_back_by_relieved_nodes_as_by_all"),
        store="memory",
    ),
    Mutant(
        "failed-tick-left-to-the-holder",
        "a tick that failed is tried again at the node's own cadence",
        _MAINTENANCE,
        "                unrelieved_at = tick_at\n",
        "                pass\n",
        tests_of(_RELIEF, "test_a_tick_that_fails_is_tried_again_at_the_nodes_own_cadence"),
    ),
    Mutant(
        "relief-without-an-end",
        "what was heard of a holder counts no longer than its lease",
        "threadmill_sa/engine/processing/maintenance_lease.py",
        "        left = answer.remaining_seconds + self._allowance\n",
        '        left = float("inf")\n',
        tests_of(_RELIEF, "test_an_answer_relieves_until_the_next_one_is_overdue"),
    ),
    Mutant(
        "relieved-by-silence",
        "a node that gets no answer about the lease does all the work",
        "threadmill_sa/engine/processing/maintenance_lease.py",
        "        if answer is None or answer.remaining_seconds <= 0",
        "        if answer is None:\n            return\n        if answer.remaining_seconds <= 0",
        tests_of(_RELIEF, "test_only_another_holder_that_has_time_left_relieves"),
    ),
    Mutant(
        "lock-that-campaigns-again",
        "a lock is one holding, and takes no other term for a block that has lost its own",
        "threadmill_sa/leading.py",
        "make(one_term=True)",
        "make()",
        tests_of("leadership/test_locks.py", "test_a_block_that_lost_its_term_takes_no_other_one"),
    ),
    Mutant(
        "lock-that-waits-for-a-call-given-up",
        "who gives up waiting for a mutex does not wait for the store",
        _CONTENDER,
        "        if self._call is not None and self._call.kind is CallKind.ACQUIRE:\n",
        "        if self._call is not None and self._call.kind is CallKind.RELEASE:\n",
        tests_of(
            "leadership/test_locks.py",
            "test_a_wait_takes_no_longer_than_its_timeout_while_the_store_hangs",
        ),
    ),
    Mutant(
        "fence-by-the-expiry-of-a-snapshot",
        "a renewal that a snapshot does not show ends no term",
        _LEASES,
        "or_(leases.c.expires_at > dialect.clock_value(), dialect.keeps_its_snapshot())",
        "leases.c.expires_at > dialect.clock_value()",
        tests_of(_SQL, "test_a_renewal_that_a_snapshot_does_not_show_ends_no_term"),
        store="pg",
    ),
    Mutant(
        "lock-wait-told-as-an-outage",
        "a mutex that a fence holds up is busy",
        "threadmill_sa/stores/sql/faults.py",
        "    return code == _SQLITE_BUSY or sql_state(error) == _LOCK_NOT_AVAILABLE\n",
        "    return code == _SQLITE_BUSY\n",
        tests_of(_SQL, "test_a_takeover_waits_for_the_fenced_transaction"),
        store="pg",
    ),
    Mutant(
        "lock-wait-as-long-as-the-call",
        "that a lock was waited for in vain is known before the call is given up",
        "threadmill_sa/stores/sql/leases.py",
        "_LOCK_SHARE = 0.25\n",
        "_LOCK_SHARE = 1.0\n",
        tests_of(_SQL, "test_a_takeover_waits_for_the_fenced_transaction"),
        store="pg",
    ),
    Mutant(
        "resignation-seen-later",
        "a resignation is seen when it returns",
        "threadmill_sa/engine/leadership/seat.py",
        "            and grant.end(reason)\n",
        "            and bool(grant)\n",
        tests_of(
            "leadership/test_leader.py",
            "test_a_resignation_and_a_stop_by_a_callback_are_seen_at_once",
        ),
    ),
    Mutant(
        "heartbeat-without-its-loop",
        "nothing is renewed for an event loop that is closed",
        "threadmill_sa/engine/leadership/aleader.py",
        "wanted=lambda: not self._is_closed()",
        "wanted=lambda: True",
        tests_of(
            "leadership/test_async_leader.py",
            "test_a_loop_that_ends_lets_the_lease_of_a_thread_run_out",
        ),
    ),
    Mutant(
        "awaited-after-the-mutex",
        "whatever is awaited runs while the mutex is held",
        "threadmill_sa/_util/callables.py",
        "    return inspect.iscoroutinefunction(_code_of(function))\n",
        "    return inspect.iscoroutinefunction(function)\n",
        tests_of(
            "leadership/test_locks.py",
            "test_whatever_is_awaited_runs_while_the_mutex_is_held",
        ),
    ),
    Mutant(
        "work-that-ends-its-schedule",
        "a work that asks to exit fails alone",
        "threadmill_sa/engine/leadership/gated.py",
        "        except BaseException:  # noqa: BLE001",
        "        except Exception:  # noqa: BLE001",
        tests_of(
            "leadership/test_scheduler.py",
            "test_a_work_that_asks_to_exit_fails_alone_and_the_schedule_goes_on",
        ),
    ),
    Mutant(
        "holder-by-host-and-process",
        "a holder is random per start",
        "threadmill_sa/engine/leadership/leader.py",
        ":{secrets.token_hex(12)}",
        ":{secrets.token_hex(0)}",
        tests_of("leadership/test_leader.py", "test_a_leader_starts_again_as_somebody_else"),
    ),
)
