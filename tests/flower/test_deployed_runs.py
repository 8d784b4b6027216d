"""Two methods on the shared deployment: the simulator's numbers, and what is written where."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr")

from deploy import APP
from shared_deployment import (
    TRAINING,
    DeployedFederation,
    DeployedRun,
    assert_same_model,
    files_with_secrets,
    simulate_every_round,
)

import udjfl
from udjfl._measures import psi
from udjfl.errors import DeploymentError

pytestmark = pytest.mark.processes

ROUNDS = 2
SETTINGS = {**TRAINING, "rounds": ROUNDS, "eval_every": ROUNDS}


@pytest.fixture(scope="module")
def fedavg(deployed: DeployedFederation) -> DeployedRun:
    """A run of the app in apps/flower."""
    return finish(deployed.new_run(APP, method="fedavg", **SETTINGS))


@pytest.fixture(scope="module")
def rawls(deployed: DeployedFederation, fedavg: DeployedRun) -> DeployedRun:
    """A run of the fault app, which saves the model after every round; nothing fails in it."""
    return finish(deployed.new_run(method="rawls", reference=str(fedavg.out), **SETTINGS))


def finish(run: DeployedRun) -> DeployedRun:
    finished = run.run()
    assert finished.completed, finished.output
    return run


@pytest.mark.parametrize("method", ["fedavg", "rawls"])
def test_model_and_metrics_equal_the_simulators(
    method: str, deployed: DeployedFederation, request: pytest.FixtureRequest
) -> None:
    """The same federation, seed and settings give the same numbers, up to float rounding."""
    run: DeployedRun = request.getfixturevalue(method)
    simulated = udjfl.simulate(deployed.federation, method, **SETTINGS)
    assert_same_model(run.model, simulated)
    assert run.result["client_scores"] == pytest.approx(simulated.client_scores)
    assert run.result["global_accuracy"] == pytest.approx(simulated.global_accuracy)
    if method == "rawls":
        assert run.result["uncertainty"] == pytest.approx(simulated.uncertainty, rel=1e-4)


def test_every_round_ends_with_the_simulators_model(
    deployed: DeployedFederation, rawls: DeployedRun
) -> None:
    models = simulate_every_round(deployed.federation, "rawls", ROUNDS, **TRAINING)
    for t, model in enumerate(models, start=1):
        torch.testing.assert_close(rawls.model_after(t), model, rtol=1e-4, atol=1e-5)


def test_the_run_folder_is_complete(deployed: DeployedFederation, fedavg: DeployedRun) -> None:
    assert fedavg.result["method"] == "fedavg"
    assert list(fedavg.result["client_scores"]) == list(deployed.federation.ids)
    assert 0 <= fedavg.result["global_accuracy"] <= 100
    assert {"settings.json", "versions.json", "records.jsonl", "model.safetensors"} <= {
        path.name for path in fedavg.out.iterdir()
    }
    assert max(record.round for record in fedavg.history.records) == ROUNDS


def test_psi_is_measured_from_the_reference_run(
    deployed: DeployedFederation, fedavg: DeployedRun, rawls: DeployedRun
) -> None:
    columns = (
        rawls.result["client_scores"],
        fedavg.result["client_scores"],
        rawls.result["uncertainty"],
    )
    expected = psi(*([column[name] for name in deployed.federation.ids] for column in columns))
    assert rawls.result["psi"] == pytest.approx(expected)
    assert "psi" not in fedavg.result


@pytest.mark.usefixtures("rawls")
def test_run_folders_and_received_apps_contain_no_key(deployed: DeployedFederation) -> None:
    folder, keys = deployed.deployment.folder, deployed.deployment.keys
    assert files_with_secrets(folder / "runs") == []
    assert files_with_secrets(folder / "superlink") == []
    assert files_with_secrets(folder / "nodes") == []
    assert files_with_secrets(keys) != []  # the search finds keys where they are
    written = b"".join(path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file())
    assert str(keys).encode() not in written


def test_a_run_with_an_unknown_method_fails_and_names_it(deployed: DeployedFederation) -> None:
    finished = deployed.deployment.run(APP, {"method": "no-such-method"})
    assert finished.status == "finished:failed"
    assert "no-such-method" in finished.output


def test_a_setting_that_the_app_does_not_declare_is_refused(deployed: DeployedFederation) -> None:
    with pytest.raises(DeploymentError, match="Invalid run configuration"):
        deployed.deployment.run(APP, {"speed": 3})
