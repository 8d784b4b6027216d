"""Warm clients whose processes are killed or hang, on the shared deployment."""

from __future__ import annotations

import os
import signal

import pytest
import torch

pytest.importorskip("flwr")

from shared_deployment import (
    TRAINING,
    DeployedFederation,
    simulate_every_round,
    wait_until,
)

from udjfl.deployment.processes import process_table, stop

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
AWAY = "its process ended before it could reply"


def find_processes(deployed: DeployedFederation) -> tuple[int, int, int]:
    """Return the faulty client's executor, its SuperExec, and the process of its message."""
    executor = deployed.deployment.executors[deployed.faulty].process.pid
    started = {
        pid: int(start) for pid, (parent, start) in process_table().items() if parent == executor
    }
    assert len(started) == 2, started
    superexec, message = sorted(started, key=lambda pid: started[pid])
    return executor, superexec, message


def test_a_kill_costs_at_most_the_message(deployed: DeployedFederation) -> None:
    """Kill, in rounds 1 to 4: the message's process, SuperExec, the executor; and ask it to end."""
    deployment, both = deployed.deployment, [deployed.honest, deployed.faulty]
    run = deployed.new_run(
        faulty=deployed.faulty, faults="hang,wait,hang,hang", quorum=1, rounds=5, eval_every=1
    )
    run_id = run.submit()

    assert run.wait_for("hanging-1"), deployment.log(run_id)
    _, superexec, message = find_processes(deployed)
    os.kill(message, signal.SIGKILL)

    assert run.wait_for("hanging-2"), deployment.log(run_id)
    _, same, message = find_processes(deployed)
    assert same == superexec
    os.kill(superexec, signal.SIGKILL)
    assert wait_until(lambda: superexec not in process_table())
    run.release(2)

    assert run.wait_for("hanging-3"), deployment.log(run_id)
    processes = find_processes(deployed)
    assert processes[1] != superexec
    deployment.executors[deployed.faulty].process.kill()
    deployment.executors[deployed.faulty].process.wait()
    assert wait_until(lambda: not {*processes} & process_table().keys())
    deployment.start_executor(deployed.faulty)

    assert run.wait_for("hanging-4"), deployment.log(run_id)
    os.kill(find_processes(deployed)[2], signal.SIGTERM)

    assert deployment.wait_for_run(run_id) == "finished:completed", deployment.log(run_id)
    absent = {t: run.history.by_client("absent", t) for t in range(1, 6)}
    lost = {deployed.faulty: AWAY}
    assert absent == {1: lost, 2: {}, 3: lost, 4: lost, 5: {}}
    weighted = [list(run.history.by_client("weight", t)) for t in range(1, 6)]
    assert weighted == [[both[0]], both, [both[0]], [both[0]], both]
    evaluated = [list(run.history.by_client("test_accuracy", t)) for t in range(1, 6)]
    assert evaluated == [both, [both[0]], [both[0]], both, both]
    assert wait_until(lambda: deployed.notes() == [])


def test_a_message_that_hangs_is_given_up_and_the_next_one_is_handled(
    deployed: DeployedFederation,
) -> None:
    """The kernel ends its process when the server no longer waits."""
    run = deployed.new_run(
        faulty=deployed.faulty, faults="hang", quorum=1, rounds=3, round_timeout=10.0
    )
    finished = run.run()
    assert finished.completed, finished.output
    assert list(run.history.by_client("absent", 1)) == [deployed.faulty]
    assert list(run.history.by_client("weight", 3)) == [deployed.honest, deployed.faulty]
    executor = deployed.deployment.executors[deployed.faulty]
    assert "was lost: its process ended (it took too long)" in executor.output
    assert wait_until(lambda: deployed.notes() == [])


def test_cold_and_warm_clients_train_the_same_model(deployed: DeployedFederation) -> None:
    """Let Flower start a Python for every message to one client; its errors are named as well."""
    deployment = deployed.deployment
    stop([deployment.nodes[deployed.faulty]])
    executor = deployment.executors[deployed.faulty]
    assert wait_until(lambda: executor.alive() == [])  # it ends with its SuperNode
    deployment.wait_offline([deployed.faulty])
    deployed.restart_node(deployed.faulty, warm=False)
    try:
        run = deployed.new_run(
            faulty=deployed.faulty, faults=",error", quorum=1, on_bad_report="exclude"
        )
        finished = run.run()
    finally:
        stop([deployment.nodes[deployed.faulty]])
        deployment.wait_offline([deployed.faulty])
        deployed.restart_node(deployed.faulty)
    assert finished.completed, finished.output
    (model,) = simulate_every_round(deployed.federation, "fedavg", 1, **TRAINING)
    torch.testing.assert_close(run.model_after(1), model, rtol=1e-4, atol=1e-5)
    (reason,) = run.history.by_client("excluded", 2).values()
    assert "OSError: no space left on this client's disk" in reason
