"""Cross-fitting: the right number where the label entropy is known, whatever the training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from noisy_clients import SHARES, binary_entropy, make_noisy, measure_in
from torch import nn

import udjfl
from udjfl.engine import SerialEngine, make_engine, one_thread
from udjfl.errors import ReportError
from udjfl.models import build
from udjfl.settings import TrainingSettings
from udjfl.uncertainty import CrossFit, SeededClients, cross_fit, measure, measure_many
from udjfl.uncertainty.alone import task_of
from udjfl.uncertainty.crossfit import block_lengths


def fit_in(federation: udjfl.Federation, model: Any = "mlp", **changes: Any) -> list[CrossFit]:
    settings = TrainingSettings(**{"hidden": 8, **changes})
    clients = [SeededClients(federation.clients, 0)]
    with one_thread():
        return cross_fit(clients, settings, model, task_of(federation, settings), make_engine)[0]


def test_uncertainty_is_the_entropy_of_the_labels_given_the_features() -> None:
    federation = make_noisy(dict.fromkeys(SHARES, 400))
    measured = measure_in(federation)
    assert measured.kind == "crossfit"
    for name, share in SHARES.items():
        assert measured.values[name] == pytest.approx(binary_entropy(share), abs=0.06), name


@pytest.mark.parametrize(
    "changes",
    [
        {"uncertainty_lr": 0.3},
        {"uncertainty_optimiser": "adam", "uncertainty_lr": 0.01},
        {"uncertainty_epochs": 300},
        {"batch_size": 32},
    ],
)
def test_how_clients_train_hardly_matters(changes: dict[str, Any]) -> None:
    federation = make_noisy(dict.fromkeys(SHARES, 200))
    usual = measure_in(federation).values
    assert list(measure_in(federation, **changes).values.values()) == pytest.approx(
        list(usual.values()), abs=0.05
    )


def test_models_do_not_see_what_they_predict() -> None:
    """Labels that have nothing to do with the features cannot be predicted, only memorised."""
    federation = make_noisy({"coin": 60})
    (fit,) = fit_in(federation, hidden=64)
    assert float(fit.out_losses.mean()) > 0.65
    memorised = measure_in(federation, hidden=64, uncertainty="paper", uncertainty_epochs=1000)
    assert memorised.values["coin"] < 0.35


def test_values_are_the_middle_of_seen_and_held_out_losses() -> None:
    for fit in fit_in(make_noisy({"clean": 60, "third": 61})):
        assert float(fit.in_losses.mean()) <= float(fit.out_losses.mean())
        torch.testing.assert_close(fit.values, (fit.in_losses + fit.out_losses) / 2)
        by_hand = (fit.held_out / fit.temperature).log_softmax(dim=1)
        own = -by_hand[torch.arange(len(fit.labels)), fit.labels]
        torch.testing.assert_close(fit.out_losses, own)


@pytest.mark.parametrize("epochs", [1, 2, 5, 30, 100, 1000])
def test_blocks_sum_to_the_epochs_and_grow(epochs: int) -> None:
    lengths = block_lengths(epochs)
    assert sum(lengths) == epochs
    assert lengths[:-1] == sorted(lengths[:-1])
    assert len(lengths) <= 25


def test_training_stops_before_it_memorises() -> None:
    clean, coin = fit_in(make_noisy({"clean": 100, "coin": 100}), hidden=64, uncertainty_lr=0.5)
    assert coin.epochs < 30 < clean.epochs


def test_untrained_models_are_kept_if_training_only_harms() -> None:
    """Two classes, but each fold's model has seen only the other one."""
    x = np.array([[1.0], [1.0], [1.0], [1.0]])
    federation = udjfl.Federation.from_arrays(
        {"a": (x, [0, 1, 2, 3], [[5.0]], [0])}, test=([[6.0]], [0]), class_names="abcd"
    )
    (fit,) = fit_in(federation, "logistic")
    assert fit.epochs == 0
    assert float(fit.values.mean()) == pytest.approx(math.log(4), abs=0.3)


def test_a_client_is_measured_alone() -> None:
    every = measure_in(make_noisy(dict.fromkeys(SHARES, 50))).values
    only = measure_in(make_noisy({"third": 50})).values
    assert only["third"] == pytest.approx(every["third"], rel=1e-5)


def test_both_engines_measure_the_same() -> None:
    federation = make_noisy({"tenth": 40, "coin": 23})
    stacked = measure_in(federation, uncertainty_epochs=8).values
    serial = measure_in(federation, uncertainty_epochs=8, engine="serial").values
    assert list(serial.values()) == pytest.approx(list(stacked.values()), rel=1e-4)


def test_the_same_seed_gives_the_same_numbers() -> None:
    federation = make_noisy({"tenth": 40, "coin": 23})
    first = measure_in(federation)
    before = torch.random.get_rng_state()
    assert measure_in(federation) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert measure_in(federation, seed=1).values != first.values
    assert all(type(value) is float for value in first.values.values())


def test_several_federations_are_measured_together() -> None:
    federations = [make_noisy({"tenth": 40, "coin": 30}, seed) for seed in (0, 1)]
    settings = TrainingSettings(hidden=8)
    with one_thread():
        together = measure_many(federations, settings, [0, 5])
    for federation, seed, both in zip(federations, (0, 5), together, strict=True):
        alone = measure_in(federation, seed)
        assert list(both.values) == list(federation.ids)
        assert list(both.values.values()) == pytest.approx(list(alone.values.values()), rel=1e-5)


def test_several_federations_by_another_measure() -> None:
    federations = [make_noisy({"tenth": 40}, seed) for seed in (0, 1)]
    settings = TrainingSettings(hidden=8, uncertainty="paper", uncertainty_epochs=2)
    with one_thread():
        together = measure_many(federations, settings, [0, 5])
    alone = [
        measure_in(federation, seed, uncertainty="paper", uncertainty_epochs=2)
        for federation, seed in zip(federations, (0, 5), strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_few_examples_give_a_finite_positive_number(n: int) -> None:
    values = measure_in(make_noisy({"clean": n, "coin": 30})).values
    assert all(0 < value < 2 for value in values.values()), values


def test_one_class_gives_a_small_positive_number() -> None:
    federation = udjfl.Federation.from_arrays(
        {"a": (np.arange(40.0)[:, None], [1] * 40, [[99.0]], [0])}, test=([[98.0]], [0])
    )
    assert 0 < measure_in(federation).values["a"] < 0.1


def test_a_model_with_buffers_keeps_those_of_its_fold() -> None:
    """Batch norm refuses a batch of one example; 41 examples would leave one of 33."""

    def build_model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    federation = make_noisy({"clean": 41, "coin": 41})
    values = measure_in(federation, model=build_model, batch_size=32, uncertainty_epochs=30).values
    assert values["clean"] < 0.2
    assert values["coin"] > 0.5


def test_a_diverged_client_is_named_or_left_out() -> None:
    clients = {"a": (np.full((30, 1), 1e30), [0, 1] * 15, [[1.0]], [0])}
    federation = udjfl.Federation.from_arrays(clients, test=([[2.0]], [0]), allow_duplicates=True)
    with pytest.raises(ReportError, match=r"'a'.*uncertainties.*training alone diverged"):
        measure_in(federation, model="logistic", uncertainty_lr=1e30)
    values = measure_in(
        federation, model="logistic", uncertainty_lr=1e30, on_bad_report="exclude"
    ).values
    assert math.isnan(values["a"])


def test_progress_counts_the_blocks() -> None:
    federation = make_noisy({"tenth": 20})
    settings = TrainingSettings(hidden=8, uncertainty_epochs=3)
    engine = SerialEngine(build("mlp", (4,), 2, 0, hidden=8), federation.clients)
    seen: list[tuple[int, int]] = []
    measure(federation, engine, settings, 0, "mlp", lambda *at: seen.append(at))
    assert seen == [(1, 3), (2, 3), (3, 3)]
