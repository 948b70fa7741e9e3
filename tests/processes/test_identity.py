"""Two processes that look alike from outside are two nodes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.tools import until
from tests.processes.fleet import WORKERS, Depot

NAMESPACES = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c")
# Each is the first process of its own namespace, on a host of the same name.
ALIKE = 'hostname twin && exec "$0" "$@"'


@pytest.fixture
def namespaces() -> tuple[str, ...]:
    """What to put before a command so that it is process 1 on the host `twin`."""
    if shutil.which("unshare") is None:
        pytest.skip("the program `unshare` is absent")
    probe = subprocess.run([*NAMESPACES, ALIKE, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"namespaces may not be made here: {probe.stderr.decode().strip()}")
    return (*NAMESPACES, ALIKE)


@pytest.mark.long
def test_two_nodes_of_equal_host_name_and_pid_are_two_and_only_the_killed_ones_job_moves(
    depot: Depot, namespaces: tuple[str, ...]
) -> None:
    twins = [depot.launch(prefix=namespaces) for _ in range(2)]
    for twin in twins:
        twin.wait_for_banner()
    nodes = {str(node.id): node for node in depot.tm.store.nodes.list()}
    assert len({twin.node_id for twin in twins}) == 2
    assert set(nodes) == {twin.node_id for twin in twins}
    assert [(node.host, node.pid) for node in nodes.values()] == [("twin", 1)] * 2

    job_ids = {depot.tm.enqueue("hold") for _ in range(2 * WORKERS)}  # a slot of both for each
    until(lambda: set(depot.held_by()) == job_ids, "the claims")
    victim, _ = twins
    moved = set(depot.held_by(victim.node_id))
    kept = job_ids - moved
    victim.kill()
    until(lambda: set(depot.held_by()) <= kept, "the reclaim")
    (depot.here / "may-end").touch()
    depot.wait_done()

    assert len(moved) == len(kept) == WORKERS
    assert {depot.job(job_id).attempt for job_id in moved} == {2}
    assert {depot.job(job_id).attempt for job_id in kept} == {1}
    depot.check()
