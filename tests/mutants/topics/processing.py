"""Claims, attempts, heartbeats, failures and counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_JOBS = "threadmill_sa/stores/sql/statements/jobs.py"
_ROWS = "threadmill_sa/stores/sql/rows.py"
_MEMORY = "threadmill_sa/stores/memory"
_HEARTBEATS, _SILENCE = "threadmill_sa/engine/processing/heartbeats.py", "engine/test_silence.py"

PROCESSING = (
    Mutant(
        "finish-without-the-token",
        "an attempt ends only while its token holds the job",
        _JOBS,
        "        .where(jobs.c.attempt_token == rows.c.token)\n",
        "",
        contract(
            "Finish",
            "test_a_wrong_token_is_lost_and_writes_nothing",
            "test_an_attempt_that_was_claimed_again_cannot_finish",
        ),
        store="sqlite",
    ),
    Mutant(
        "finish-without-the-token-in-memory",
        "an attempt ends only while its token holds the job",
        f"{_MEMORY}/rows.py",
        "            and self.attempt_token == attempt_token\n",
        "            and attempt_token is not None\n",
        contract("Finish", "test_an_attempt_that_was_claimed_again_cannot_finish"),
        store="memory",
    ),
    Mutant(
        "finish-by-another-node",
        "an attempt is ended by the node that claimed it",
        _JOBS,
        "        .where(node_id.is_(None) | (jobs.c.owner_node_id == node_id))\n",
        "        .where(node_id.is_(None) | node_id.is_not(None))\n",
        contract("Finish", "test_another_node_cannot_finish"),
        store="sqlite",
    ),
    Mutant(
        "finish-locks-in-the-order-of-its-call",
        "a finish and a heartbeat lock the jobs of their node in one order",
        "threadmill_sa/stores/sql/jobs.py",
        "firsts.values()), key=lambda each: each.job_id\n",
        "firsts.values()), key=lambda each: 0\n",
        tests_of(
            "store_only/test_locks.py",
            "test_a_batch_locks_the_jobs_of_a_node_in_the_order_of_their_ids",
        ),
    ),
    Mutant(
        "heartbeat-locks-in-the-order-of-its-call",
        "a finish and a heartbeat lock the jobs of their node in one order",
        "threadmill_sa/stores/sql/nodes.py",
        "sorted(held, key=lambda each: each.job_id)",
        "list(held)",
        tests_of(
            "store_only/test_locks.py",
            "test_a_batch_locks_the_jobs_of_a_node_in_the_order_of_their_ids",
        ),
    ),
    Mutant(
        "claim-keeps-the-token",
        "each claim of a job raises its token",
        _JOBS,
        "            attempt_token=jobs.c.attempt_token + 1,\n",
        "            attempt_token=jobs.c.attempt_token + 0,\n",
        contract("Finish", "test_an_attempt_that_was_claimed_again_cannot_finish"),
        store="sqlite",
    ),
    Mutant(
        "claim-without-a-row-lock",
        "no job is held by two claims",
        _JOBS,
        "        .with_for_update(skip_locked=True)\n    )\n    if one_queue:\n",
        "    )\n    if one_queue:\n",
        contract("Claim", "test_eight_claimers_never_share_one_of_a_hundred_jobs"),
        store="pg",
    ),
    Mutant(
        "claim-waits-for-another-claim",
        "a claim passes by what another one holds",
        _JOBS,
        "        .with_for_update(skip_locked=True)\n    )\n    if one_queue:\n",
        "        .with_for_update()\n    )\n    if one_queue:\n",
        tests_of(
            "store_only/test_locks.py",
            "test_a_claim_takes_what_an_open_claim_has_left",
        ),
    ),
    Mutant(
        "claim-of-any-handler",
        "a node takes only the jobs that it can run",
        _JOBS,
        '        .where(dialect.member(jobs.c.handler, "handlers", String()))\n',
        "",
        contract("Claim", "test_only_jobs_of_the_named_handlers_are_taken"),
        store="sqlite",
    ),
    Mutant(
        "claim-beats-by-an-injected-clock",
        "liveness is judged by the store's clock, never by an injected one",
        _JOBS,
        "            heartbeat_at=dialect.clock_value(),\n",
        "            heartbeat_at=now,\n",
        contract("Node", "test_a_claim_counts_as_a_beat_by_the_clock_that_the_nodes_show"),
    ),
    Mutant(
        "claim-beats-by-an-injected-clock-in-memory",
        "liveness is judged by the store's clock, never by an injected one",
        f"{_MEMORY}/jobs.py",
        "                row.heartbeat_at = self._clock.now()\n",
        "                row.heartbeat_at = moment\n",
        contract("Node", "test_a_claim_counts_as_a_beat_by_the_clock_that_the_nodes_show"),
        store="memory",
    ),
    Mutant(
        "reclaim-without-a-timeout",
        "only a silent job is taken from its node",
        _JOBS,
        '        .where(jobs.c.heartbeat_at <= bindparam("silent_since", type_=UtcDateTime()))\n',
        "",
        contract("Reclaim", "test_only_an_owner_that_has_not_beaten_since_loses_its_job"),
        store="sqlite",
    ),
    Mutant(
        "reclaim-takes-what-another-holds",
        "two reclaims share no job",
        _JOBS,
        "        .order_by(jobs.c.id)\n"
        '        .limit(bindparam("limit", type_=Integer()))\n'
        "        .with_for_update(skip_locked=True)\n",
        '        .order_by(jobs.c.id)\n        .limit(bindparam("limit", type_=Integer()))\n',
        contract("Reclaim", "test_two_reclaims_share_no_job"),
        store="pg",
    ),
    Mutant(
        "reclaim-waits-for-a-finish",
        "a reclaim passes by a job that another transaction is ending",
        _JOBS,
        "        .order_by(jobs.c.id)\n"
        '        .limit(bindparam("limit", type_=Integer()))\n'
        "        .with_for_update(skip_locked=True)\n",
        "        .order_by(jobs.c.id)\n"
        '        .limit(bindparam("limit", type_=Integer()))\n'
        "        .with_for_update()\n",
        tests_of("store_only/test_locks.py", "test_a_reclaim_passes_by_what_a_finish_holds"),
    ),
    Mutant(
        "promotion-waits-for-another",
        "a promotion passes by what another one holds",
        _JOBS,
        "        .with_for_update(skip_locked=True)\n    )\n    return (\n        update(jobs)\n"
        "        .where(dialect.picked(jobs.c.id, due))\n",
        "        .with_for_update()\n    )\n    return (\n        update(jobs)\n"
        "        .where(dialect.picked(jobs.c.id, due))\n",
        tests_of("store_only/test_locks.py", "test_a_promotion_takes_what_another_one_has_left"),
    ),
    Mutant(
        "folding-waits-for-another",
        "a folding passes by the deltas that another one holds",
        _JOBS,
        "_for_update(skip_locked=True)\n    )\n    return (\n        delete(deltas)\n",
        "_for_update()\n    )\n    return (\n        delete(deltas)\n",
        tests_of(
            "store_only/test_locks.py", "test_a_folding_leaves_the_deltas_that_another_one_holds"
        ),
    ),
    Mutant(
        "beat-renews-a-lost-claim",
        "a beat renews exactly the claims whose tokens it names",
        "threadmill_sa/stores/sql/statements/nodes.py",
        "        .where(jobs.c.attempt_token == rows.c.token)\n",
        "",
        contract(
            "Node",
            "test_a_beat_does_not_revive_what_is_lost",
            "test_a_beat_tells_which_jobs_are_lost",
        ),
        store="sqlite",
    ),
    Mutant(
        "retry-ends-the-job",
        "an instance between two attempts is unfinished",
        _ROWS,
        "    OutcomeKind.RETRY: JobState.SCHEDULED,\n",
        "    OutcomeKind.RETRY: JobState.FAILED,\n",
        contract("Guard", "test_an_instance_between_two_attempts_holds"),
        store="sqlite",
    ),
    Mutant(
        "retry-ends-the-job-in-memory",
        "an instance between two attempts is unfinished",
        f"{_MEMORY}/outcomes.py",
        "    OutcomeKind.RETRY: JobState.SCHEDULED,\n",
        "    OutcomeKind.RETRY: JobState.FAILED,\n",
        contract("Guard", "test_an_instance_between_two_attempts_holds"),
        store="memory",
    ),
    Mutant(
        "retry-in-two-writes-in-memory",
        "a retry is one write, so an instance between two attempts is never seen as ended",
        f"{_MEMORY}/jobs.py",
        "                end_attempt(self._table, row, outcome, moment)\n                verdicts",
        "                if outcome.retry_seconds is not None:\n"
        "                    self._table.move(row, JobState.FAILED, moment)\n"
        "                    self._lock.release()\n"
        '                    __import__("time").sleep(0.001)\n'
        "                    self._lock.acquire()\n"
        "                    self._table.withdraw(row)\n"
        "                end_attempt(self._table, row, outcome, moment)\n                verdicts",
        contract("Finish", "test_a_tick_beside_a_retry_never_sees_the_instance_as_ended"),
        store="memory",
    ),
    Mutant(
        "release-spends-an-attempt",
        "a job that is given back has not used its attempt",
        _ROWS,
        '"given_back": int(outcome.kind is OutcomeKind.RELEASED)',
        '"given_back": int(outcome.kind is None)',
        contract("Finish", "test_a_release_gives_the_attempt_back"),
        store="sqlite",
    ),
    Mutant(
        "release-spends-an-attempt-in-memory",
        "a job that is given back has not used its attempt",
        f"{_MEMORY}/outcomes.py",
        "            row.attempt -= 1  # The token",
        "            row.attempt -= 0  # The token",
        contract("Finish", "test_a_release_gives_the_attempt_back"),
        store="memory",
    ),
    Mutant(
        "instance-backs-off-for-an-hour",
        "a recurring instance pauses at most a minute, since it holds back the next",
        "threadmill_sa/engine/processing/failures.py",
        "cap = None if job.cron_task_name is None else limits.RECURRING_BACKOFF_MAX_SECONDS",
        "cap = None",
        tests_of(
            "engine/test_running.py",
            "test_a_recurring_instance_never_backs_off_longer_than_a_minute",
        ),
    ),
    Mutant(
        "payload-without-a-limit",
        "a payload is measured in bytes before any SQL",
        "threadmill_sa/codec/encode.py",
        "    if len(data) > max_bytes:\n",
        "    if len(data) > 2 * max_bytes:\n",
        tests_of("unit/test_codec_encode.py", "TestSize::test_the_limit_counts_utf8_bytes"),
    ),
    Mutant(
        "outcome-dropped-in-an-outage",
        "a worker keeps its outcome until the store has taken it",
        "threadmill_sa/engine/processing/completer.py",
        "                self._put_back(batch)\n",
        "",
        tests_of("engine/test_outages.py", "test_an_outcome_survives_an_outage_of_the_store"),
    ),
    Mutant(
        "claims-while-it-cannot-beat",
        "a node whose heartbeats fail claims nothing",
        "threadmill_sa/engine/processing/crew.py",
        "return self._heartbeats.healthy() and not self._completer.stuck",
        "return not self._completer.stuck",
        tests_of(
            "engine/test_outages.py", "test_a_node_that_cannot_beat_claims_nothing_until_it_can"
        ),
    ),
    Mutant(
        "claims-while-outcomes-wait",
        "a node whose outcomes cannot be recorded claims nothing",
        "threadmill_sa/engine/processing/crew.py",
        "return self._heartbeats.healthy() and not self._completer.stuck",
        "return self._heartbeats.healthy()",
        tests_of(
            "engine/test_outages.py", "test_nothing_is_claimed_while_outcomes_cannot_be_recorded"
        ),
    ),
    Mutant(
        "completer-ends-before-its-last-look",
        "what was accepted before the stop is recorded",
        "threadmill_sa/engine/processing/completer.py",
        "            elif stopping:\n",
        "            elif self._stopping.is_set():\n",
        tests_of(
            "engine/test_drain.py",
            "test_what_is_given_back_while_the_completer_finds_nothing_to_do_is_recorded",
        ),
    ),
    Mutant(
        "silence-judged-right-after-a-jump",
        "after a jump of the store's clock all nodes get the time to beat again",
        _HEARTBEATS,
        "            self._in_touch_since = now\n        self._store_time",
        "        self._store_time",
        tests_of(_SILENCE, "test_a_jump_of_the_stores_clock_makes_nobody_silent"),
    ),
    Mutant(
        "silence-judged-by-a-forgotten-node",
        "what is known of the store's clock is as old as the last beat that was seen",
        _HEARTBEATS,
        "known, self._store_time = self._store_time, None",
        "known = self._store_time",
        tests_of(_SILENCE, "test_a_node_that_the_store_has_forgotten_judges_nobody"),
    ),
    Mutant(
        "silence-judged-after-a-sleep",
        "a node that slept judges nobody before it is in touch again",
        _HEARTBEATS,
        "known is None or not self.healthy() or ",
        "known is None or ",
        tests_of(_SILENCE, "test_a_machine_that_slept_judges_nobody_before_all_can_have_beaten"),
    ),
    Mutant(
        "heartbeats-by-a-clock-that-stands-still",
        "heartbeats are judged by a clock that goes on while the machine is suspended",
        "threadmill_sa/engine/processing/crew.py",
        "elapsed=suspend_proof_seconds,",
        "elapsed=self._monotonic,",
        tests_of(_SILENCE, "test_an_hour_that_nobody_saw_takes_no_job_from_a_living_node"),
    ),
    Mutant(
        "folding-forgets-what-was-folded",
        "counts stay exact when deltas are folded",
        _JOBS,
        "table.c.n + statement.excluded.n",
        "statement.excluded.n",
        tests_of(
            "promises/test_counts_are_exact.py",
            "test_counts_are_exact_after_producers_workers_and_three_folders_at_once",
        ),
    ),
    Mutant(
        "folding-in-any-order",
        "two foldings lock the counts in one order, so they never deadlock",
        "threadmill_sa/stores/sql/jobs.py",
        "for queue, n in sorted(queues.items()):",
        "for queue, n in queues.items():",
        tests_of(
            "store_only/test_locks.py",
            "test_a_folding_locks_the_counts_in_the_order_of_their_names",
        ),
    ),
    Mutant(
        "batch-stored-in-part-in-memory",
        "a batch is stored whole or not at all",
        f"{_MEMORY}/jobs.py",
        "            self._table.require_new(jobs)\n            for job in jobs:\n",
        "            for job in jobs:\n                self._table.require_new([job])\n",
        contract("Insert", "test_a_stored_id_is_refused_with_its_whole_batch"),
        store="memory",
    ),
)
