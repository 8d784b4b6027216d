"""Two classes by one logit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import make_federation
from torch import Tensor, nn

import udjfl
from udjfl.models import build, to_vector
from udjfl.models.networks import OneLogit, TwoScores

OPTIONS: dict[str, Any] = {"rounds": 4, "uncertainty_epochs": 3, "engine": "serial"}


class Squeezed(nn.Module):
    """One logit, without an axis for it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).squeeze(1)


def zero(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def one_logit() -> nn.Module:
    return zero(nn.Sequential(nn.Linear(4, 1)))


def two_logits() -> nn.Module:
    return zero(nn.Sequential(nn.Linear(4, 2)))


@pytest.fixture(scope="module")
def binary() -> udjfl.Federation:
    return make_federation(n=60, classes=2)


@pytest.mark.parametrize("make", [one_logit, lambda: zero(Squeezed())], ids=["column", "squeezed"])
def test_one_logit_at_twice_the_rate_is_two_logits(make: Any, binary: udjfl.Federation) -> None:
    """The difference of two logits moves by both gradients, twice that of the one logit."""
    one = udjfl.simulate(
        binary, "rawls", make, task="binary", lr=0.2, uncertainty_lr=0.2, **OPTIONS
    )
    two = udjfl.simulate(
        binary, "rawls", two_logits, task="binary", lr=0.1, uncertainty_lr=0.1, **OPTIONS
    )
    assert one.client_scores == two.client_scores
    assert one.uncertainty == pytest.approx(two.uncertainty, rel=1e-3)
    x = binary.test.x
    with torch.no_grad():
        ours, theirs = (run.model.eval()(x).softmax(dim=1) for run in (one, two))
    # Rawls' step divides by norms of the updates, which differ by sqrt(2): FedAvg's does not.
    assert ours.shape == theirs.shape == (len(x), 2)


def test_fedavg_gives_the_same_model_with_one_logit_and_with_two(binary: udjfl.Federation) -> None:
    one = udjfl.simulate(binary, "fedavg", one_logit, task="binary", lr=0.2, **OPTIONS)
    two = udjfl.simulate(binary, "fedavg", two_logits, task="binary", lr=0.1, **OPTIONS)
    with torch.no_grad():
        ours, theirs = (run.model.eval()(binary.test.x).softmax(dim=1) for run in (one, two))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_scores_are_those_of_a_sigmoid() -> None:
    z = torch.tensor([[-2.0], [0.5]])
    two = TwoScores()(z)
    torch.testing.assert_close(two.softmax(dim=1)[:, 1], torch.sigmoid(z[:, 0]))
    assert torch.equal(TwoScores()(two), two)  # two scores stay


def test_names_of_parameters_stay_in_a_sequential_model() -> None:
    module = build(one_logit, (4,), 2, 0, one_logit=True)
    assert [name for name, _ in module.named_parameters()] == ["0.weight", "0.bias"]
    assert type(build(Squeezed, (4,), 2, 0, one_logit=True)) is OneLogit
    built_in = build("logistic", (4,), 2, 0, one_logit=True)
    assert len(to_vector(built_in)) == 10  # two logits, for the fast path


def test_one_logit_is_refused_with_a_hint(binary: udjfl.Federation) -> None:
    with pytest.raises(udjfl.SettingsError, match="for one logit choose task='binary'"):
        udjfl.simulate(binary, "fedavg", one_logit, **OPTIONS)
    three = make_federation(classes=3)
    with pytest.raises(udjfl.SettingsError, match="binary is for two classes, the data has 3"):
        udjfl.simulate(three, "fedavg", "mlp", task="binary", **OPTIONS)


def test_built_in_models_keep_the_fast_path(
    binary: udjfl.Federation, caplog: pytest.LogCaptureFixture
) -> None:
    plain = udjfl.simulate(binary, "fedavg", "mlp:hidden=4", rounds=3, uncertainty_epochs=2)
    same = udjfl.simulate(
        binary, "fedavg", "mlp:hidden=4", rounds=3, uncertainty_epochs=2, task="binary"
    )
    assert same.client_scores == plain.client_scores
    assert [r for r in caplog.records if "one client at a time" in r.getMessage()] == []
    assert np.isfinite(list(same.uncertainty.values())).all()
