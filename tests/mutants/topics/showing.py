"""What the command line and our log lines let through to a terminal."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, tests_of

_OUTPUT = "threadmill_sa/cli/output.py"
_HOSTILE = "cli/test_hostile_text.py"

SHOWING = (
    Mutant(
        "bidi-overrides-reach-the-terminal",
        "what turns text around is shown instead of done",
        "threadmill_sa/_util/visible.py",
        r"\u202a-\u202e\u2066-\u2069",
        "",
        tests_of(_HOSTILE, "test_a_name_that_turns_text_around_is_written_out"),
    ),
    Mutant(
        "cells-as-they-are",
        "stored text in a listing steers no terminal",
        _OUTPUT,
        "[visible_line(cell) for cell in row]",
        "list(row)",
        tests_of(_HOSTILE, "test_a_failure_that_carries_escapes_is_shown_with_them_written_out"),
    ),
    Mutant(
        "results-as-they-are",
        "a name in an answer steers no terminal",
        _OUTPUT,
        "click.echo(visible_text(text), nl",
        "click.echo(text, nl",
        tests_of(_HOSTILE, "test_a_name_that_turns_text_around_is_written_out"),
    ),
    Mutant(
        "remarks-as-they-are",
        "an error steers no terminal",
        _OUTPUT,
        "click.echo(visible_text(text), err",
        "click.echo(text, err",
        tests_of(_HOSTILE, "test_what_the_applications_own_code_raises_is_written_out"),
    ),
    Mutant(
        "refusals-as-they-are",
        "an argument repeated by a refusal steers no terminal",
        "threadmill_sa/cli/program.py",
        "shown = visible_text(told)",
        "shown = told",
        tests_of(_HOSTILE, "test_an_argument_is_written_out_in_the_refusal_that_repeats_it"),
    ),
    Mutant(
        "log-lines-as-they-are",
        "the text of a handler's error steers no terminal that a log goes to",
        "threadmill_sa/engine/processing/runner.py",
        'headline = visible_line(text.split("\\n", 1)[0])',
        'headline = text.split("\\n", 1)[0]',
        tests_of(_HOSTILE, "test_a_log_line_writes_out_what_a_handler_left_behind"),
    ),
    Mutant(
        "the-workers-log-as-it-is",
        "what a job logs steers no terminal that the worker logs to",
        "threadmill_sa/cli/commands/worker.py",
        "return visible_text(super().formatMessage(record))",
        "return super().formatMessage(record)",
        tests_of(_HOSTILE, "test_the_log_of_a_worker_writes_out_whatever_its_jobs_log"),
    ),
    Mutant(
        "held-whatever-the-job-does",
        "a task is held only while its instance is unfinished",
        "threadmill_sa/cli/views.py",
        " or job is None or job.state not in UNFINISHED:",
        " or job is None:",
        tests_of("cli/test_recurring.py", "test_show_names_the_job_that_holds_a_task_back"),
    ),
)
