"""Nine methods over five real SuperNodes against the simulator. Run by `make soak`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("flwr")

from shared_deployment import (
    TRAINING,
    DeployedFederation,
    assert_same_model,
    make_deployment,
    simulate_every_round,
)

import udjfl
from udjfl.methods import ALIASES

pytestmark = [pytest.mark.processes, pytest.mark.soak]

ROUNDS = 2
METHODS = ("fedavg", *ALIASES, "qffl", "afl", "fedmgda", "fedfv")


@pytest.fixture(scope="module")
def five_clients() -> Iterator[DeployedFederation]:
    with make_deployment() as deployment:
        yield DeployedFederation(deployment, udjfl.load("dirty-digits", seed=0))


@pytest.mark.parametrize("method", METHODS)
def test_every_round_ends_with_the_simulators_model(
    method: str, five_clients: DeployedFederation
) -> None:
    run = five_clients.new_run(method=method, **TRAINING, rounds=ROUNDS, eval_every=ROUNDS)
    finished = run.run()
    assert finished.completed, finished.output
    federation = five_clients.federation
    models = simulate_every_round(federation, method, ROUNDS, **TRAINING)
    for t, model in enumerate(models, start=1):
        torch.testing.assert_close(run.model_after(t), model, rtol=1e-4, atol=1e-5)
    simulated = udjfl.simulate(federation, method, **TRAINING, rounds=ROUNDS, eval_every=ROUNDS)
    assert_same_model(run.model, simulated)
    assert run.result["client_scores"] == pytest.approx(simulated.client_scores)
    assert run.result["global_accuracy"] == pytest.approx(simulated.global_accuracy)
    if method in ALIASES:
        assert run.result["uncertainty"] == pytest.approx(simulated.uncertainty, rel=1e-4)
