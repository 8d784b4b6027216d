"""Synthetic(a, b): drawn from the seed, and as different as is asked for."""

from __future__ import annotations

import torch

import udjfl


def load(options: str = "", clients: int = 6, seed: int = 0) -> udjfl.Federation:
    return udjfl.load(f"synthetic:largest=100{options}", clients=clients, seed=seed)


def test_the_seed_decides_everything() -> None:
    assert load().fingerprint == load().fingerprint != load(seed=1).fingerprint
    # More clients do not change the others; ids are sorted, client-10 after client-9.
    few, many = (
        {c.id: c.train.x.sum(0) + c.test.x.sum(0) for c in load(clients=n).clients} for n in (3, 11)
    )
    for name, total in few.items():
        assert torch.allclose(total, many[name], rtol=1e-4, atol=1e-3)


def test_shapes_and_sizes() -> None:
    federation = udjfl.load("synthetic")
    assert len(federation.ids) == 30
    assert (federation.input_shape, federation.n_classes) == ((60,), 10)
    sizes = [len(client.train) + len(client.test) for client in federation.clients]
    assert min(sizes) >= 50
    assert max(sizes) > 10 * min(sizes)


def test_spreads_separate_models_and_inputs() -> None:
    def spread(federation: udjfl.Federation) -> float:
        means = torch.stack([client.train.x.mean() for client in federation.clients])
        return float(means.std())

    assert spread(load(":b=3")) > 3 * spread(load(":b=0"))
    assert spread(load(":iid=true")) < 0.1


def test_iid_clients_share_one_model() -> None:
    """Inputs of one client, labelled by another's model, would differ; a joint one fits all."""
    federation = load(":iid=true")
    result = udjfl.simulate(federation, "fedavg", "logistic", rounds=30, uncertainty_epochs=2)
    apart = udjfl.simulate(load(":a=3:b=0"), "fedavg", "logistic", rounds=30, uncertainty_epochs=2)
    assert result.metrics["global_accuracy"] > apart.metrics["global_accuracy"] + 10
