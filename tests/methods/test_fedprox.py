"""FedProx by hand, and its relation to FedAvg."""

from __future__ import annotations

import torch
from method_helpers import step_of, two_clients
from small_runs import make_federation, model_bytes, train_briefly

from udjfl.methods import FedAvg, Plan
from udjfl.methods.fedprox import FedProx
from udjfl.models import to_vector


def test_the_step_is_that_of_fedavg() -> None:
    assert step_of(FedProx(), two_clients()).tolist() == [0.25, 1.5]  # 1/4 (1, 0) + 3/4 (0, 2)
    assert step_of(FedProx(weights="uniform"), two_clients()).tolist() == [0.5, 1.0]
    assert torch.equal(step_of(FedProx(mu=9.0), two_clients()), step_of(FedAvg(), two_clients()))


def test_clients_are_drawn_to_the_received_model() -> None:
    assert FedProx(mu=0.3).plan({}, None) == ({}, Plan(mu=0.3))
    assert not FedProx(mu=0.0).plan({}, None)[1].corrects_gradients


def test_without_mu_it_is_fedavg_to_the_last_bit() -> None:
    federation = make_federation()
    assert model_bytes(train_briefly(federation, "fedprox:mu=0")) == model_bytes(
        train_briefly(federation, "fedavg")
    )


def test_clients_stay_nearer_the_more_they_are_drawn() -> None:
    """Momentum 0 and lr mu = 0.1 * 10 = 1: a step leads to the received model minus lr g."""
    federation = make_federation()
    settings = {"rounds": 1, "momentum": 0.0, "local_epochs": 5}
    start = to_vector(train_briefly(federation, "fedavg", lr=1e-9, **settings).model)
    lengths = [
        float((to_vector(train_briefly(federation, name, **settings).model) - start).norm())
        for name in ("fedavg", "fedprox:mu=1", "fedprox:mu=10")
    ]
    assert lengths[0] > 1.2 * lengths[1] > 1.2 * 1.2 * lengths[2] > 0
