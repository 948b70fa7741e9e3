"""What Alembic's comparison cannot see is listed here by name."""

from __future__ import annotations

from sqlalchemy import Engine, text

from tests.migration.support import names_of, read_catalog

TRIGGERS = {
    "threadmill_jobs_count_insert",
    "threadmill_jobs_count_update",
    "threadmill_jobs_count_delete",
}
TABLES = {
    "threadmill_alembic_version",
    "threadmill_count_deltas",
    "threadmill_cron_nudges",
    "threadmill_cron_task_state",
    "threadmill_cron_tasks",
    "threadmill_job_counts",
    "threadmill_job_history",
    "threadmill_jobs",
    "threadmill_leases",
    "threadmill_nodes",
    "threadmill_nudge_records",
    "threadmill_queue_counts",
    "threadmill_schema_history",
    "threadmill_snapshot_records",
    "threadmill_store_identity",
}
INDEXES = {
    "ix_threadmill_cron_task_state_broken_at",
    "ix_threadmill_cron_task_state_next_run_at",
    "ix_threadmill_job_history_job",
    "ix_threadmill_jobs_finished",
    "ix_threadmill_jobs_processing",
    "ix_threadmill_jobs_ready",
    "ix_threadmill_jobs_ready_queue",
    "ix_threadmill_jobs_scheduled",
    "ix_threadmill_jobs_task",
    "ix_threadmill_jobs_task_unfinished",
    "ix_threadmill_nudge_records_task",
    "ix_threadmill_snapshot_records_task",
}
SEQUENCES = {
    "threadmill_count_deltas_id_seq",  # of the identity columns
    "threadmill_job_history_id_seq",
    "threadmill_epoch_seq",
    "threadmill_nudge_records_id_seq",
    "threadmill_nudge_revision_seq",
    "threadmill_snapshot_records_id_seq",
}


def test_postgresql_holds_exactly_the_expected_objects(pg_engine: Engine) -> None:
    catalog = read_catalog(pg_engine)
    tables = {name.split(".")[0] for name in names_of(catalog, "column")}
    constraints = {name.split(".")[1] for name in names_of(catalog, "constraint")}
    assert tables == TABLES
    assert names_of(catalog, "trigger") == TRIGGERS
    assert names_of(catalog, "function") == {"threadmill_jobs_count"}
    assert names_of(catalog, "sequence") == SEQUENCES
    assert names_of(catalog, "index") == INDEXES | {
        name for name in constraints if not name.startswith("ck_")
    }
    assert constraints == {
        "ck_threadmill_jobs_state",
        "threadmill_alembic_version_pkc",
        "uq_threadmill_cron_nudges_task_name_slot",
        "uq_threadmill_leases_name_term",
        *(
            f"pk_{table}"
            for table in TABLES - {"threadmill_alembic_version", "threadmill_cron_nudges"}
        ),
    }


def test_a_publication_of_all_tables_lets_nudges_be_deleted(pg_engine: Engine) -> None:
    identity = text(
        "SELECT relreplident FROM pg_class WHERE oid = 'threadmill_cron_nudges'::regclass"
    )
    with pg_engine.connect() as connection:
        assert connection.scalar(identity) == "i"


def test_sqlite_holds_exactly_the_expected_objects(sqlite_engine: Engine) -> None:
    catalog = read_catalog(sqlite_engine)
    assert names_of(catalog, "table") == TABLES
    assert names_of(catalog, "index") == INDEXES
    assert names_of(catalog, "trigger") == TRIGGERS


def test_sqlite_never_gives_a_revision_out_twice(sqlite_engine: Engine) -> None:
    assert "AUTOINCREMENT" in read_catalog(sqlite_engine)["table threadmill_cron_nudges"]


def test_postgresql_triggers_run_once_for_a_statement(pg_engine: Engine) -> None:
    catalog = read_catalog(pg_engine)
    for name in TRIGGERS:
        assert "FOR EACH STATEMENT" in catalog[f"trigger {name}"]
