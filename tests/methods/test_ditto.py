"""Ditto by hand, and its limits: training alone, and the common model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from method_helpers import close, first_round, two_clients
from small_runs import make_federation, model_bytes, train_briefly
from torch import nn

import udjfl
from udjfl.errors import NotDefinedError
from udjfl.methods import Setup
from udjfl.methods.ditto import Ditto
from udjfl.models import to_vector


def test_a_round_by_hand() -> None:
    reports = two_clients(
        model=torch.tensor([1.0, 1.0], dtype=torch.float64),
        extras={"personal_deltas": torch.tensor([[0.5, 0.0], [0.0, -1.0]])},
    )
    rule = Ditto(lam=2.0)
    state, step, _ = first_round(rule, reports)
    assert step.tolist() == [0.25, 1.5]
    assert state["models"].tolist() == [[0.5, 1.0], [1.0, 2.0]]
    _, plan = rule.plan(state, None)
    assert (plan.personal_mu, plan.mu, plan.shift) == (2.0, 0.0, None)
    assert torch.equal(plan.personal, state["models"])
    served = rule.served(state, step)
    assert served.shares.tolist() == [[1, 0], [0, 1]]


def personal(result: udjfl.Result, client: str) -> torch.Tensor:
    return to_vector(result.model_for(client))


@pytest.mark.parametrize("engine", ["stacked", "serial", "mapped"])
def test_the_common_model_is_fedavgs_to_the_last_bit(engine: str) -> None:
    federation = make_federation()
    ours, theirs = (
        train_briefly(federation, name, engine=engine, participation=0.67)
        for name in ("ditto:lam=1", "fedavg")
    )
    assert model_bytes(ours) == model_bytes(theirs)
    assert ours.global_accuracy == theirs.global_accuracy


def test_without_lam_each_client_trains_alone() -> None:
    """As in a federation of that client only, whose average is its own model."""
    federation = make_federation()
    result = train_briefly(federation, "ditto:lam=0")
    for client in federation.clients:
        alone = replace(federation, clients=(client,))
        close(personal(result, client.id), to_vector(train_briefly(alone).model), 1e-5, 1e-6)


def test_a_strong_pull_leads_to_the_received_model() -> None:
    """lr lam = 1 without momentum: the last step ends at w - lr g, where w is FedAvg's before it.

    So personal models are within lr |g| of it, and nearer with a smaller lr.
    """
    federation = make_federation()
    settings: dict[str, Any] = {"momentum": 0.0, "batch_size": 8}
    gaps = []
    for lr in (0.1, 0.01):
        before = to_vector(train_briefly(federation, rounds=2, lr=lr, **settings).model)
        ours = train_briefly(federation, f"ditto:lam={1 / lr}", rounds=3, lr=lr, **settings)
        gaps.append(max(float((personal(ours, c) - before).norm()) for c in federation.ids))
    assert gaps[0] < 0.1 * 2  # a gradient of this small model is shorter than 2
    assert gaps[1] < gaps[0] / 5


def test_personal_models_differ_and_fit_their_clients() -> None:
    federation = make_federation()
    result = train_briefly(federation, "ditto", rounds=10)
    models = [personal(result, client) for client in federation.ids]
    assert not torch.allclose(models[0], models[1], atol=1e-3)
    assert any("global accuracy is that of the common model" in note for note in result.notes)


def test_a_model_with_buffers_is_refused() -> None:
    def make(input_shape: Any, n_classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, n_classes))

    with pytest.raises(NotDefinedError, match="has buffers"):
        train_briefly(make_federation(), "ditto", model=make)


def test_each_client_is_served_its_own_model_and_a_note_says_so() -> None:
    setup = Setup.of(two_clients())
    served = Ditto().served(Ditto().init(setup), setup.model)
    assert served.shares.dtype == torch.float64
    assert served.shares.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    (note,) = Ditto().notes(setup)
    assert note.startswith("Ditto: each client is served a model of its own")
