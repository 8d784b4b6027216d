"""Faults that only real processes show: a client's exception, a killed SuperNode or SuperLink."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr")

from shared_deployment import (
    TRAINING,
    DeployedFederation,
    assert_same_model,
    simulate_every_round,
    wait_until,
)

import udjfl
from udjfl.deployment.processes import stop

pytestmark = pytest.mark.processes


def test_a_clients_exception_stops_the_run_and_is_named(deployed: DeployedFederation) -> None:
    """Flower reports an app that raises as text; the client and its own words must survive."""
    run = deployed.new_run(faulty=deployed.faulty, faults="error")
    finished = run.run()
    assert finished.status == "finished:failed"
    assert f"client {deployed.faulty!r} in round 1" in finished.output, finished.output
    assert "OSError: no space left on this client's disk" in finished.output, finished.output
    assert run.history.records == []
    assert list(run.models.iterdir()) == []  # the server's model was not changed


def test_a_killed_node_is_recorded_as_absent_and_rejoins_as_the_same_client(
    deployed: DeployedFederation,
) -> None:
    """Kill a SuperNode while it trains in round 1; start it again before round 2."""
    deployment, both = deployed.deployment, [deployed.honest, deployed.faulty]
    run = deployed.new_run(method="rawls", faulty=deployed.faulty, faults="hang", quorum=1)
    run.close_gate(2)
    run_id = run.submit()
    assert run.wait_for("hanging-1"), deployment.log(run_id)
    deployment.nodes[deployed.faulty].kill()
    executor = deployment.executors[deployed.faulty]
    assert wait_until(lambda: executor.alive() == [])  # nor is the process of its message left
    assert run.wait_for("waiting-2"), deployment.log(run_id)  # round 1 has ended without it
    deployment.wait_offline([deployed.faulty])
    deployed.restart_node(deployed.faulty)
    run.open_gate(2)
    assert deployment.wait_for_run(run_id) == "finished:completed", deployment.log(run_id)
    weighted = [list(run.history.by_client("weight", t)) for t in (1, 2)]
    assert weighted == [[deployed.honest], both]
    assert list(run.history.by_client("absent", 1)) == [deployed.faulty]
    simulated = udjfl.simulate(deployed.federation, "rawls", rounds=1, **TRAINING)
    assert run.result["uncertainty"] == pytest.approx(simulated.uncertainty, rel=1e-4)
    assert list(run.result["client_scores"]) == both


def test_fewer_clients_than_the_quorum_stop_the_run_and_it_can_be_resumed(
    deployed: DeployedFederation,
) -> None:
    """Stop a SuperNode between two rounds; it signs off, so that the SuperLink knows at once."""
    deployment = deployed.deployment
    run = deployed.new_run(quorum=2)
    run.close_gate(2)
    run_id = run.submit()
    assert run.wait_for("waiting-2"), deployment.log(run_id)
    stop([deployment.nodes[deployed.faulty]])
    deployment.wait_offline([deployed.faulty])
    run.open_gate(2)
    assert deployment.wait_for_run(run_id) == "finished:failed"
    log = deployment.log(run_id)
    assert "round 2: 1 usable reports, fewer than the quorum of 2" in log
    assert f"{deployed.faulty}: is not connected" in log
    assert {record.round for record in run.history.records} == {1}
    deployed.restart_node(deployed.faulty)
    finished = run.run(resume=True)
    assert finished.completed, finished.output
    assert_same_model(
        run.model, udjfl.simulate(deployed.federation, "fedavg", rounds=2, **TRAINING)
    )


def test_a_killed_superlink_is_restarted_and_the_run_resumes_to_the_same_model(
    deployed: DeployedFederation,
) -> None:
    """Kill the SuperLink with its server app after round 1; the SuperNodes reconnect."""
    deployment = deployed.deployment
    run = deployed.new_run(method="rawls", rounds=2)
    run.close_gate(2)
    run_id = run.submit()
    assert run.wait_for("waiting-2"), deployment.log(run_id)
    assert deployment.superlink is not None
    deployment.superlink.kill()
    assert not (run.out / "result.json").exists()
    run.open_gate(2)
    deployment.start_superlink()
    deployment.wait_online(deployed.files)
    finished = run.run(resume=True)
    assert finished.completed, finished.output
    assert_same_model(run.model, udjfl.simulate(deployed.federation, "rawls", rounds=2, **TRAINING))
    models = simulate_every_round(deployed.federation, "rawls", 2, **TRAINING)
    for t, model in enumerate(models, start=1):
        torch.testing.assert_close(run.model_after(t), model, rtol=1e-4, atol=1e-5)
