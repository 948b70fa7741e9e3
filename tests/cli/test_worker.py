"""`worker`: real processes that start, drain and end by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.tools import command, invoke, running_worker
from tests.fixtures.sql import engine_for
from threadmill_sa import JobState, Threadmill
from threadmill_sa.model.job import Job


@contextmanager
def producer(url: str) -> Iterator[Threadmill]:
    """A Threadmill that knows the names of the shop's handlers and runs nothing."""
    with engine_for(url) as engine:
        tm = Threadmill(engine)
        for name in ("patient", "stubborn", "brief"):
            tm.job(name)(lambda: None)
        yield tm
        tm.close()


def after(tm: Threadmill, job_id: object) -> Job:
    job = tm.get_job(job_id)  # type: ignore[arg-type]
    assert job is not None
    return job


def test_the_banner_names_store_node_queues_and_cadences(
    shop_directory: Path, sqlite_url: str
) -> None:
    arguments = ("--queues", "default, mail", "--tick", "0.5", "--workers", "3")

    with running_worker(shop_directory, sqlite_url, "shop:tm", *arguments) as worker:
        worker.wait_for_banner()
        worker.process.terminate()
        assert worker.exit_code() == 0, worker.err

    fields = dict(line.split(maxsplit=1) for line in worker.out.splitlines()[1:])
    assert fields["store"] == sqlite_url
    assert len(fields["node"]) == 36
    assert fields["queues"] == "default, mail"
    assert fields["workers"] == "3"
    assert fields["tick"] == "0.5 s"
    assert fields["handlers"] == "brief, patient, pump, stubborn"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_with_zero(
    shop_directory: Path, sqlite_url: str, number: signal.Signals
) -> None:
    with running_worker(shop_directory, sqlite_url, "shop:make", "--json") as worker:
        worker.wait_for_banner()
        worker.process.send_signal(number)

        assert worker.exit_code() == 0, worker.err
    assert json.loads(worker.out)["handlers"] == "brief, patient, pump, stubborn"
    assert "Traceback" not in worker.err


def test_sigterm_gives_running_jobs_back_and_spends_no_attempt(
    shop_directory: Path, sql_url: str
) -> None:
    with producer(sql_url) as tm:
        job_ids = [tm.enqueue("patient"), tm.enqueue("stubborn")]
        with running_worker(
            shop_directory, sql_url, "shop:tm", "--json", "--grace", "0.2"
        ) as worker:
            worker.wait_for_file("patient.started")
            worker.wait_for_file("stubborn.started")
            worker.process.terminate()

            assert worker.exit_code() == 0, worker.err
        jobs = [after(tm, job_id) for job_id in job_ids]

    assert [job.state for job in jobs] == [JobState.ENQUEUED, JobState.ENQUEUED]
    assert [job.attempt for job in jobs] == [0, 0]


def test_sigterm_lets_a_job_end_within_the_grace(shop_directory: Path, sql_url: str) -> None:
    with producer(sql_url) as tm:
        job_id = tm.enqueue("brief")
        with running_worker(shop_directory, sql_url, "shop:tm", "--json") as worker:
            worker.wait_for_file("brief.started")
            worker.process.terminate()
            worker.wait_for_words("draining")
            (shop_directory / "brief.may-end").touch()

            assert worker.exit_code() == 0, worker.err
        job = after(tm, job_id)

    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_gives_jobs_back_at_once(
    shop_directory: Path, sql_url: str, number: signal.Signals, code: int
) -> None:
    with producer(sql_url) as tm:
        job_id = tm.enqueue("stubborn")
        with running_worker(shop_directory, sql_url, "shop:tm", "--grace", "600") as worker:
            worker.wait_for_file("stubborn.started")
            worker.process.send_signal(number)
            worker.wait_for_words("draining")
            worker.process.send_signal(number)

            assert worker.exit_code() == code, worker.err
        job = after(tm, job_id)

    assert (job.state, job.attempt) == (JobState.ENQUEUED, 0)


def test_a_signal_during_start_up_ends_the_process(shop_directory: Path, sqlite_url: str) -> None:
    (shop_directory / "slow_shop.py").write_text(
        "import threading\nfrom shop import *\n"
        "(here / 'importing').touch()\nthreading.Event().wait(120)\n"
    )

    with running_worker(shop_directory, sqlite_url, "slow_shop:tm") as worker:
        worker.wait_for_file("importing")
        worker.process.terminate()

        assert worker.exit_code() == 0
    assert "stopped before the start" in worker.err
    assert worker.out == ""


def test_a_thread_of_the_application_does_not_keep_the_worker_alive(
    shop_directory: Path, sqlite_url: str
) -> None:
    (shop_directory / "stuck_shop.py").write_text(
        "import threading\nfrom shop import *\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
    )

    with running_worker(shop_directory, sqlite_url, "stuck_shop:tm") as worker:
        worker.wait_for_banner()
        worker.process.terminate()

        assert worker.exit_code() == 0


def test_a_schema_that_is_missing_names_the_command(
    shop_directory: Path, sql_empty_url: str
) -> None:
    with running_worker(shop_directory, sql_empty_url, "shop:tm") as worker:
        assert worker.exit_code() == 1

    assert "threadmill-sa db upgrade" in worker.err
    assert "Traceback" not in worker.err
    assert worker.out == ""


def test_migrate_brings_the_schema_first(shop_directory: Path, sql_empty_url: str) -> None:
    with running_worker(shop_directory, sql_empty_url, "shop:tm", "--migrate") as worker:
        worker.wait_for_banner()
        worker.process.terminate()

        assert worker.exit_code() == 0, worker.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:tm"], "module 'nowhere' cannot be found"),
        (["shop:number"], "expected a Threadmill"),
        ([], "Missing argument"),
        (["shop:tm", "--workers", "0"], "workers must be"),
        (["shop:tm", "--heartbeat", "50"], "healthy jobs would be taken back"),
        (["shop:tm", "--queues", ","], "queue name must have"),
    ],
)
def test_a_worker_that_is_asked_wrongly_exits_with_two(
    shop: Path, arguments: list[str], words: str
) -> None:
    result = invoke("worker", *arguments)

    assert result.exit_code == 2, result.output
    assert words in result.stderr


def test_the_app_may_come_from_the_environment(shop_directory: Path, sqlite_url: str) -> None:
    done = subprocess.run(
        command("worker"),
        cwd=shop_directory,
        env={**os.environ, "THREADMILL_APP": "nowhere:tm"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_an_embedded_node_installs_no_signal_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    tm = Threadmill.in_memory()
    seen: list[object] = []

    def embed() -> None:
        with tm.node(workers=1):
            seen.extend(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))

    thread = threading.Thread(target=embed)
    thread.start()
    thread.join()
    tm.close()

    assert seen == before
