"""Recording nudges and runs, and the check that reads the records."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, contract, tests_of

_DIALECTS = "threadmill_sa/stores/sql/dialects.py"
_RECORDING = "threadmill_sa/stores/sql/recording.py"
_STATEMENTS = "threadmill_sa/stores/sql/statements/records.py"
_COVERED = "checker/test_covered.py"
_DROPPED = "checker/test_dropped.py"
_REFUSED = "checker/test_refused.py"

RECORDING = (
    Mutant(
        "record-reads-what-other-callers-write",
        "N7: a recorded nudge adds no conflict between callers at SERIALIZABLE",
        _DIALECTS,
        '        return (rows.add_cte(record(rows).cte("recorded")),)\n',
        "        return accept, record(pending)\n",
        tests_of(_COVERED, "test_n7_recording_adds_no_conflict_between_callers"),
        store="pg",
    ),
    Mutant(
        "record-of-a-pause-is-a-statement-late",
        "N5: what commits after the statement that drops the nudges has to run",
        _DIALECTS,
        '        return (noting.add_cte(dropping.cte("dropped")),)\n',
        "        return dropping, noting\n",
        tests_of(_DROPPED, "test_a_nudge_that_commits_right_after_the_pause_has_ended"),
        store="pg",
    ),
    Mutant(
        "record-of-a-promise-left-out",
        "a crash between commit and after-commit write is found",
        "threadmill_sa/session/boundary.py",
        "            promises = own.expect_nudges(names, now=self._instant())\n",
        "            promises = {}\n",
        tests_of(_DROPPED, "test_a_crash_between_the_commit_and_the_write"),
    ),
    Mutant(
        "record-of-a-refusal-left-out",
        "N5: a write refused before the end of a pause commits excuses its promise",
        "threadmill_sa/session/promises.py",
        "        records.refuse(name, promise)\n",
        "        pass\n",
        tests_of(_REFUSED, "test_n5_a_commit_before_the_end_of_the_pause_is_excused"),
        store="pg",
    ),
    Mutant(
        "record-of-a-refusal-excuses-the-whole-task",
        "what was lost beside a refused write is found",
        _STATEMENTS,
        '        .where(_promise(records) == bindparam("promise", type_=BigInteger()))\n',
        '        .where(bindparam("promise", type_=BigInteger()) > 0)\n',
        tests_of(_REFUSED, "test_what_was_lost_beside_a_refused_write_is_found"),
        store="pg",
    ),
    Mutant(
        "record-of-a-refusal-excuses-what-was-accepted",
        "a joined nudge in the transaction of a refused write has to run",
        _STATEMENTS,
        "        .where(records.c.revision.is_(None))\n",
        "",
        tests_of(_REFUSED, "test_a_joined_nudge_beside_a_refused_write_still_counts"),
        store="pg",
    ),
    Mutant(
        "record-of-a-run-after-its-handler",
        "a run counts by what was committed before its handler began",
        "threadmill_sa/engine/processing/runner.py",
        "            if self._on_start is not None:\n                self._on_start(job)\n"
        "            value = handler.function(**arguments)\n",
        "            value = handler.function(**arguments)\n"
        "            if self._on_start is not None:\n                self._on_start(job)\n",
        tests_of(_DROPPED, "test_a_run_whose_snapshot_is_older"),
    ),
    Mutant(
        "record-of-a-nudge-cleared-before-its-run",
        "a nudge that commits while the records are cleared keeps its run, or goes with it",
        _RECORDING,
        "            connection.execute(self._clear_snapshots)\n"
        "            return connection.execute(self._clear_nudges).rowcount\n",
        "            cleared = connection.execute(self._clear_nudges).rowcount\n"
        "            connection.execute(self._clear_snapshots)\n"
        "            return cleared\n",
        tests_of(_COVERED, "test_clearing_never_parts_a_nudge_from_its_run"),
        store="pg",
    ),
    Mutant(
        "record-audit-trusts-the-last-run-alone",
        "snapshots may be written down in another order than they were taken",
        _STATEMENTS,
        "        .where(_is_run(found) if run else ~_is_run(found))\n",
        "        .where(_is_run(found) & (found.c.id < 0) if run else ~_is_run(found))\n",
        tests_of(_COVERED, "test_a_run_covers_what_its_snapshot_shows"),
        store="pg",
    ),
    Mutant(
        "record-audit-forgets-the-epoch",
        "N6: a nudge of a deleted registration is owed no run",
        _STATEMENTS,
        "                tasks.c.epoch == nudges.c.epoch,\n",
        "",
        contract("Record", "test_n6_a_nudge_of_a_deleted_registration_is_excused"),
        store="sqlite",
    ),
    Mutant(
        "record-audit-forgets-the-pause",
        "N5: a nudge that commits during a pause waits for its end and is dropped",
        _STATEMENTS,
        "                tasks.c.enabled == true(),\n",
        "",
        tests_of(_COVERED, "test_a_commit_within_the_pause_is_excused_and_one_after_it_is_not"),
        store="pg",
    ),
    Mutant(
        "record-check-looks-once",
        "a run that comes while the check looks is not missed",
        "threadmill_sa/testing/checker.py",
        "        audit = records.audit(names, examples=_EXAMPLES)\n        if audit.uncovered:\n"
        "            raise",
        "        if audit.uncovered:\n            raise",
        tests_of(_COVERED, "test_a_run_that_comes_while_the_check_looks_counts"),
    ),
)
