"""The schema: what is left half-way, and what a hand has dropped."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, tests_of

_MANAGER = "threadmill_sa/stores/sql/migrate.py"
_INTACT = "threadmill_sa/stores/sql/intact.py"
_FINISHED = "alembic/versions/0009_finished_jobs.py"
_EACH = "migration/test_each_revision.py"
_TESTS = "migration/test_intact.py"
_STARTS = tests_of(
    _TESTS, "test_a_start_is_refused_without_a_key_and_its_statement_lets_nudges_join_again"
)

SCHEMA = (
    Mutant(
        "validate-does-not-look",
        "no node starts where a joined nudge would fail its caller",
        _MANAGER,
        "            require_complete(read_history(connection, self._schema))\n"
        "            require_intact(connection, self._schema)\n",
        "            require_complete(read_history(connection, self._schema))\n",
        _STARTS,
        store="pg",
    ),
    Mutant(
        "migrate-does-not-look",
        "nor where nodes migrate when they start",
        _MANAGER,
        "            self._run(connection, lambda: self._upgrade(connection))\n"
        "            require_intact(connection, self._schema)\n",
        "            self._run(connection, lambda: self._upgrade(connection))\n",
        _STARTS,
        store="pg",
    ),
    Mutant(
        "any-index-is-a-key",
        "a key is an index that a conflict clause can name",
        _INTACT,
        "CASE WHEN indisunique AND indimmediate AND indpred IS NULL AND indexprs IS NULL THEN",
        "CASE WHEN indisunique THEN",
        tests_of(_TESTS, "test_another_index_serves_as_the_key_when_a_nudge_can_meet_on_it"),
        store="pg",
    ),
    Mutant(
        "a-broken-key-is-a-key",
        "a key that is not valid serves nobody",
        _INTACT,
        "            if row.columns and row.works\n",
        "            if row.columns\n",
        tests_of(_TESTS, "test_a_key_that_is_not_valid_is_none"),
        store="pg",
    ),
    Mutant(
        "lost-triggers-are-no-matter",
        "no node starts where jobs are not counted",
        _INTACT,
        '        elif not found.has("trigger", name):\n            yield _Lost(name)\n',
        "",
        tests_of(_TESTS, "test_a_counting_trigger_is_missed_and_comes_back_as_the_page_says"),
        store="sqlite",
    ),
    Mutant(
        "broken-off-index-is-kept",
        "an index that serves no query is built again",
        _FINISHED,
        "        op.execute(_drop_if_broken_off())\n",
        "        assert _drop_if_broken_off()\n",
        tests_of(_EACH, "test_a_broken_off_build_of_the_index_of_finished_jobs_is_built_again"),
        store="pg",
    ),
    Mutant(
        "index-dropped-while-it-was-built",
        "a build that still goes on is waited for, and its index stays",
        _FINISHED,
        "                WHERE indexrelid = leftover) THEN\n",
        "                WHERE indexrelid IS NULL) THEN\n",
        tests_of(_EACH, "test_a_build_of_the_index_that_still_goes_on_is_waited_for_and_kept"),
        more=(("    END IF;\n    leftover := ({invalid});\n", "    END IF;\n"),),
        store="pg",
    ),
)
