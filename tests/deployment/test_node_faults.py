"""What can be wrong with one node: its id, its key, its data, its disk, its clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deployed_nodes import DeployedNodes, wait_until
from shared_deployment import DeployedRun

import udjfl
from udjfl.deployment.status import read_own_status

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
CLOCK = Path(__file__).parents[1] / "shifted_clock"
DISK = 64 << 20  # bytes
# Run a command with a disk of its own in place of a folder, which is copied to it.
OWN_DISK = (
    'cp -a "$1" "$1.copy" && mount -t tmpfs -o "size=$2" tmpfs "$1" && cp -a "$1.copy/." "$1" && '
    'shift 2 && exec "$@"'
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedNodes]:
    federation = udjfl.load("dirty-digits", clients=2, seed=0)
    with DeployedNodes(tmp_path_factory.mktemp("nodes"), federation) as nodes:
        nodes.start_coordinator()
        nodes.start_nodes()
        yield nodes
        nodes.stop()
        assert nodes.left_behind() == {}
        assert nodes.notes() == []


def submit(nodes: DeployedNodes, rounds: int) -> tuple[DeployedRun, str]:
    """Submit a run that stops before every round but the first, and wait for the first stop."""
    run = nodes.new_run(
        method="rawls", rounds=rounds, quorum=1, on_bad_report="exclude", round_timeout=60.0
    )
    for t in range(2, rounds + 1):
        run.close_gate(t)
    run_id = run.submit()
    assert run.wait_for("waiting-2"), nodes.log(run_id)
    return run, run_id


@pytest.mark.soak
def test_a_node_comes_back_with_another_id_key_or_data(nodes: DeployedNodes) -> None:
    """Its key's name is its id; a new key of that name is the same client; data may not change."""
    honest, changed = nodes.nodes
    node, coordinator = nodes.nodes[changed], nodes.coordinator
    run, run_id = submit(nodes, 4)

    nodes.stop_node(changed)
    node.configure({"config": {"client-id": "somebody-else"}})
    nodes.start_node(changed)
    nodes.wait_online()
    run.open_gate(2)
    assert run.wait_for("waiting-3"), nodes.log(run_id)

    nodes.stop_node(changed)
    node.configure({"config": {}})
    for name in (changed, f"{changed}.pub"):
        (node.keys / name).unlink()
    coordinator.admit([node.make_key(changed)])
    coordinator.wait_until_open()
    nodes.start_node(changed)
    nodes.wait_online()
    run.open_gate(3)
    assert run.wait_for("waiting-4"), nodes.log(run_id)

    nodes.stop_node(changed)
    right = nodes.files[changed]
    nodes.files[changed] = nodes.files[honest]
    nodes.start_node(changed)
    nodes.wait_online()
    run.open_gate(4)
    outcome = nodes.wait_for_run(run_id)
    nodes.files[changed] = right
    nodes.stop_node(changed)
    nodes.start_node(changed)
    nodes.wait_online()

    assert outcome == "completed", nodes.log(run_id)
    excluded = {t: run.history.by_client("excluded", t) for t in (1, 2, 3, 4)}
    assert [list(excluded[t]) for t in (1, 2, 3, 4)] == [[], [changed], [], [changed]]
    assert f"was '{changed}' and is now 'somebody-else'" in str(excluded[2])
    assert "and is now" in str(excluded[4])
    weighted = [list(run.history.by_client("weight", t)) for t in (1, 2, 3, 4)]
    assert weighted == [[honest, changed], [honest], [honest, changed], [honest]]


def can_mount() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces")
def test_a_full_disk_costs_rounds_and_the_node_goes_on_when_there_is_space(
    nodes: DeployedNodes,
) -> None:
    """The node's folder is a small disk: notes, logs, apps and sent.jsonl are on it."""
    honest, full = nodes.nodes
    folder = nodes.nodes[full].folder
    nodes.stop_node(full)
    around = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", OWN_DISK, "sh"]
    process = nodes.start_node(full, around=[*around, str(folder), str(DISK)])
    try:
        nodes.wait_online()
        run, run_id = submit(nodes, 3)
        inside = Path(f"/proc/{process.pid}/root{folder}")
        fill(inside / "filled")
        run.open_gate(2)
        assert run.wait_for("waiting-3"), nodes.log(run_id)
        (inside / "filled").unlink()
        nodes.wait_online()
        run.open_gate(3)
        assert nodes.wait_for_run(run_id) == "completed", nodes.log(run_id)
        sent = (inside / "sent.jsonl").read_text(encoding="utf-8").splitlines()
        notes = list((inside / "state" / "messages").iterdir())
    finally:
        process.terminate()
        process.wait()
        nodes.start_node(full)
        nodes.wait_online()
    absent = {t: run.history.by_client("absent", t) for t in (1, 2, 3)}
    assert absent == {1: {}, 2: {full: "its process ended before it could reply"}, 3: {}}
    assert list(run.history.by_client("weight", 3)) == [honest, full]
    assert notes == []
    assert len(sent) >= 4  # introduction, uncertainty, rounds 1 and 3


def fill(path: Path) -> None:
    """Write a file until there is no space left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.soak
@pytest.mark.parametrize(("shift", "is_admitted"), [(-240.0, True), (3.0, True), (60.0, False)])
def test_a_wrong_clock_is_admitted_within_flowers_bounds_or_named(
    shift: float, is_admitted: bool, nodes: DeployedNodes
) -> None:
    """Flower takes requests that were signed up to 305 s ago, or 5 s ahead."""
    honest, shifted = nodes.nodes
    nodes.stop_node(shifted)
    paths = [str(CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "TEST_CLOCK_SHIFT": str(shift)}
    nodes.start_node(shifted, environment=variables)
    node = nodes.nodes[shifted]
    try:
        if is_admitted:
            nodes.wait_online()
        else:
            wait_until(lambda: read_own_status(node).problem is not None)
        run = nodes.new_run(rounds=1, quorum=1, clients=2 if is_admitted else 1)
        run_id = run.submit()
        assert nodes.wait_for_run(run_id) == "completed", nodes.log(run_id)
        problem = read_own_status(node).problem
    finally:
        nodes.stop_node(shifted)
        nodes.start_node(shifted)
        nodes.wait_online()
    used = list(run.history.by_client("weight", 1))
    assert used == ([honest, shifted] if is_admitted else [honest])
    assert problem is None if is_admitted else "the clock of this machine is wrong" in str(problem)
