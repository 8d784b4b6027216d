"""Numbers as labels: models, losses, evaluation and uncertainty."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import udjfl
from udjfl.errors import NotDefinedError
from udjfl.report.saved_runs import read_run

NOISE = {"a": 0.1, "b": 0.5, "c": 1.0}
MODEL = "mlp:hidden=8:weight_norm=no"
OPTIONS: dict[str, Any] = {"rounds": 12, "lr": 0.02, "uncertainty_lr": 0.02}


def make_regression(n: int = 200, scale: float = 1.0) -> udjfl.Federation:
    """Make clients whose label is a linear function of the features, with noise."""
    rng = np.random.default_rng(0)

    def draw(size: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, 4))
        return x, scale * (x[:, 0] - 0.5 * x[:, 1] + noise * rng.normal(size=size))

    clients = {name: (*draw(n, s), *draw(n // 2, s)) for name, s in NOISE.items()}
    return udjfl.Federation.from_arrays(clients, test=draw(50, 0.0), task="regression")


@pytest.fixture(scope="module")
def federation() -> udjfl.Federation:
    return make_regression()


def test_the_scores_are_r_squared_of_the_served_model(federation: udjfl.Federation) -> None:
    result = udjfl.simulate(federation, "fedavg", MODEL, **OPTIONS)
    assert result.warning is None
    for client in federation.clients:
        with torch.no_grad():
            predicted = result.model_for(client.id).eval()(client.test.x)[:, 0].double()
        y = client.test.y.double()
        expected = 1 - float((predicted - y).square().mean() / y.var(correction=0))
        assert result.client_scores[client.id] == pytest.approx(100 * expected, abs=1e-3)


def test_the_uncertainty_is_the_variance_of_the_noise() -> None:
    """A linear model can fit the data, so the mean of seen and held-out errors is the noise."""
    result = udjfl.simulate(
        make_regression(600), "fedavg", "logistic", rounds=1, lr=0.02, uncertainty_lr=0.02
    )
    for name, noise in NOISE.items():
        # The standard error of a variance from n examples is sqrt(2 / n) of it: 6%.
        assert result.uncertainty[name] == pytest.approx(noise**2, rel=0.18)


def test_every_loss_trains(federation: udjfl.Federation) -> None:
    for loss in ("squared-error", "absolute-error", "huber", "gaussian", _quartic):
        result = udjfl.simulate(federation, "fedavg", MODEL, loss=loss, **{**OPTIONS, "lr": 0.05})
        assert result.metrics["mean_accuracy"] is not None
        assert result.metrics["mean_accuracy"] > 5.0


def _quartic(outputs: Tensor, labels: Tensor) -> Tensor:
    return (1 + (outputs[:, 0] - labels).square()).log()


@pytest.mark.parametrize("engine", ["serial", "mapped"])
def test_engines_agree(engine: Any, federation: udjfl.Federation) -> None:
    options = {**OPTIONS, "rounds": 3, "uncertainty": dict.fromkeys("abc", 0.1)}
    plain = udjfl.simulate(federation, "fedavg", MODEL, engine="serial", **options)
    other = udjfl.simulate(federation, "fedavg", MODEL, engine=engine, **options)
    assert other.client_scores == pytest.approx(plain.client_scores, rel=1e-3)


def test_a_model_without_an_axis_of_outputs(federation: udjfl.Federation) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)[:, 0]

    result = udjfl.simulate(federation, "fedavg", Flat, **OPTIONS)
    assert result.metrics["mean_accuracy"] is not None
    assert result.metrics["mean_accuracy"] > 10.0


@pytest.mark.parametrize("method", ["rawls", "egalitarian", "utilitarian", "desert", "afl", "term"])
def test_methods_run(method: str, federation: udjfl.Federation) -> None:
    result = udjfl.simulate(federation, method, MODEL, **{**OPTIONS, "rounds": 3})
    assert all(math.isfinite(value) for value in result.client_scores.values())


def test_budgets_are_points_of_r_squared(federation: udjfl.Federation) -> None:
    settings = {**OPTIONS, "rounds": 2, "lr": 0.3}  # some R^2 are below 0 in the first round
    methods = ["fedavg", "udj:theory=rawls:budget=2"]
    comparison = udjfl.compare(federation, methods, model=MODEL, seeds=1, **settings)
    assert [row.failed for row in comparison.rows] == [{}, {}]
    result = udjfl.simulate(federation, "udj:theory=rawls:budget=2", MODEL, **settings)
    scores = [r.value for r in result.history.records if r.metric == "score"]
    assert min(map(float, scores)) < 0  # else this shows nothing


@pytest.mark.parametrize("method", ["fedfa", "cffl"])
def test_methods_that_read_shares_of_right_predictions_are_not_defined(
    method: str, federation: udjfl.Federation
) -> None:
    with pytest.raises(NotDefinedError, match="which a regression does not have"):
        udjfl.simulate(federation, method, MODEL, **OPTIONS)


def test_a_folder_is_read_back_and_resumed(tmp_path: Path, federation: udjfl.Federation) -> None:
    result = udjfl.simulate(federation, "fedavg", MODEL, out=tmp_path, **OPTIONS)
    assert read_run(tmp_path).client_scores == result.client_scores
    again = udjfl.simulate(federation, "fedavg", MODEL, out=tmp_path, resume=True, **OPTIONS)
    assert again.client_scores == result.client_scores


def test_bad_input_is_named(federation: udjfl.Federation) -> None:
    x, y = np.random.default_rng(0).normal(size=(4, 2)), [0.5, 1.0, math.nan, 2.0]
    with pytest.raises(udjfl.DataError, match="client 'a', train part: 1 labels are not finite"):
        udjfl.Federation.from_arrays(
            {"a": (x, y, x + 9, [0.0] * 4)}, test=(x + 5, [0.0] * 4), task="regression"
        )
    with pytest.raises(udjfl.SettingsError, match="for a regression use crossfit"):
        udjfl.simulate(federation, "fedavg", MODEL, uncertainty="paper", rounds=1)
    with pytest.raises(udjfl.SettingsError, match="the labels are numbers"):
        udjfl.simulate(federation, "fedavg", MODEL, task="classification", rounds=1)
    with pytest.raises(udjfl.SettingsError, match="a mean and a log variance"):
        udjfl.simulate(federation, "fedavg", lambda: nn.Linear(4, 3), rounds=1)
    with pytest.raises(udjfl.SettingsError, match="a regression has none"):
        udjfl.simulate(federation, "fedavg", MODEL, service="prior-all", rounds=1)
    with pytest.raises(udjfl.SettingsError, match="a regression has no classes"):
        udjfl.simulate(federation, "fedavg", MODEL, class_weights="balanced", rounds=1)


def test_unscaled_labels_are_said_aloud() -> None:
    with pytest.raises((udjfl.DivergedError, udjfl.ReportError)):
        udjfl.simulate(make_regression(scale=1e6), "fedavg", MODEL, rounds=3)
    tiny_rate = udjfl.simulate(
        make_regression(), "fedavg", MODEL, rounds=2, lr=1e-7, uncertainty_lr=0.02
    )
    assert tiny_rate.warning is not None
    assert "of the labels' variance" in tiny_rate.warning
