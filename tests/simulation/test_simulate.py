"""Whole runs on tiny federations: what repeats, what comes back, and what is refused."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import client_arrays, federation_of, few_rounds, rising
from torch import nn

import udjfl
from udjfl import metrics
from udjfl.engine.base import batch_order
from udjfl.errors import SettingsError, StorageError, UdjflError
from udjfl.models import build, to_vector
from udjfl.training.result import summary

ALL_METRICS = [
    "global_accuracy",
    "accuracy_most_uncertain",
    "accuracy_least_uncertain",
    "worst_accuracy",
    "mean_accuracy",
    "std",
    "psi",
    "pearson_r",
]


def content(result: udjfl.Result) -> bytes:
    """The bytes of every number of the final model."""
    return b"".join(value.numpy().tobytes() for value in result.model.state_dict().values())


# Repeating


@pytest.mark.parametrize("method", ["fedavg", "rawls", "desert"])
def test_the_same_seed_gives_the_same_bytes(federation: udjfl.Federation, method: str) -> None:
    first = few_rounds(federation, method, participation=0.7, drop_out=0.2)
    torch.rand(3)  # ambient randomness must not matter
    again = few_rounds(federation, method, participation=0.7, drop_out=0.2)
    assert content(again) == content(first)
    assert again.history.records == first.history.records
    assert again.metrics == first.metrics
    assert content(
        few_rounds(federation, method, participation=0.7, drop_out=0.2, seed=1)
    ) != content(first)


def test_fewer_rounds_are_the_beginning_of_more(federation: udjfl.Federation) -> None:
    short, long = (
        few_rounds(federation, "rawls", rounds=2),
        few_rounds(federation, "rawls", rounds=4),
    )
    assert long.history.records[: len(short.history.records)] == short.history.records


def test_a_model_with_dropout_repeats(federation: udjfl.Federation) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    assert content(few_rounds(federation, model=make)) == content(
        few_rounds(federation, model=make)
    )


def test_both_engines_give_the_same_run(federation: udjfl.Federation) -> None:
    stacked, serial = (
        few_rounds(federation, "rawls"),
        few_rounds(federation, "rawls", engine="serial"),
    )
    # Ten rounded steps a round at most, three rounds: see tests/engine for where 1e-5 comes from.
    torch.testing.assert_close(
        to_vector(stacked.model), to_vector(serial.model), rtol=1e-4, atol=1e-5
    )


def test_fedavg_on_one_client_is_plain_sgd() -> None:
    """Three rounds are three passes over the data; only the momentum starts afresh each time."""
    made = federation_of(a=client_arrays(13))
    result = few_rounds(made, rounds=3, batch_size=4, seed=5)
    model, data = build("mlp", (4,), 3, seed=5, hidden=5), made.clients[0].train
    for t in (1, 2, 3):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for batch in batch_order(13, 1, (5, "batches", t), "a")[0].split(4):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(to_vector(result.model), to_vector(model), rtol=1e-5, atol=1e-6)


# What comes back


def test_metrics_are_plain_floats_under_the_promised_names(federation: udjfl.Federation) -> None:
    result = few_rounds(federation, "rawls")
    assert list(result.metrics) == [name for name in ALL_METRICS if name != "psi"]
    for values in (result.metrics, result.client_accuracy, result.uncertainty):
        assert all(type(value) is float for value in values.values())
    accuracies, doubts = list(result.client_accuracy.values()), list(result.uncertainty.values())
    assert list(result.client_accuracy) == list(result.uncertainty) == list(federation.ids)
    assert result.metrics["global_accuracy"] == result.global_accuracy
    assert result.metrics["std"] == metrics.std(accuracies)
    assert result.metrics["pearson_r"] == metrics.pearson_r(doubts, accuracies)
    assert result.undefined == {}


def test_accuracies_are_those_of_the_returned_model(federation: udjfl.Federation) -> None:
    result = few_rounds(federation)

    def percent(part: udjfl.Examples) -> float:
        return 100 * float((result.model(part.x).argmax(dim=1) == part.y).double().mean())

    assert result.global_accuracy == pytest.approx(percent(federation.test))
    by_hand = {client.id: percent(client.test) for client in federation.clients}
    assert result.client_accuracy == pytest.approx(by_hand)
    assert result.history.by_client("test_accuracy", 3) == result.client_accuracy


def test_psi_needs_a_reference(federation: udjfl.Federation) -> None:
    reference = few_rounds(federation)
    result = few_rounds(federation, "rawls", reference=reference, uncertainty=rising(federation))
    assert list(result.metrics) == ALL_METRICS
    gain = {
        name: result.client_accuracy[name] - reference.client_accuracy[name]
        for name in federation.ids
    }
    # Client 3 is the most uncertain.
    assert result.metrics["psi"] == pytest.approx(
        gain["client-3"] - (gain["client-1"] + gain["client-2"]) / 2
    )
    assert few_rounds(federation, reference=reference).metrics["psi"] == 0.0


def test_a_reference_with_other_clients_is_refused_before_training(
    federation: udjfl.Federation,
) -> None:
    seen: list[str] = []
    reference = few_rounds(federation_of(x=client_arrays(5), y=client_arrays(6)))
    with pytest.raises(SettingsError, match="reference: has other clients"):
        few_rounds(
            federation, "rawls", reference=reference, progress=lambda stage, *_: seen.append(stage)
        )
    assert "training" not in seen  # a run may take hours; the mistake was there before


def test_progress_is_told(federation: udjfl.Federation) -> None:
    seen: list[tuple[str, int, int]] = []
    few_rounds(federation, progress=lambda *at: seen.append(at))
    assert seen == [
        ("uncertainty", 1, 1),
        ("training", 1, 3),
        ("training", 2, 3),
        ("training", 3, 3),
    ]


# Uncertainties of one's own


def test_given_uncertainties_reach_method_and_metrics(federation: udjfl.Federation) -> None:
    """Egalitarian weights are u / sum u: 0.1, 0.2, 0.3 over 0.6."""
    result = few_rounds(federation, "egalitarian", uncertainty=rising(federation))
    assert list(result.history.by_client("weight", 1).values()) == pytest.approx(
        [1 / 6, 2 / 6, 3 / 6]
    )
    assert result.metrics["accuracy_most_uncertain"] == result.client_accuracy["client-3"]
    assert result.uncertainty == pytest.approx({"client-1": 0.1, "client-2": 0.2, "client-3": 0.3})


@pytest.mark.parametrize(
    "number",
    [np.float32, np.float64, torch.tensor, int],
    ids=["float32", "float64", "tensor", "int"],
)
def test_numbers_of_any_kind_are_taken(
    federation: udjfl.Federation, tmp_path: Path, number: Any
) -> None:
    values = {name: number(1 + place) for place, name in enumerate(federation.ids)}
    result = few_rounds(federation, "rawls", uncertainty=values, out=tmp_path / "run")
    assert result.uncertainty == {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}
    assert all(type(value) is float for value in result.uncertainty.values())


def test_client_ids_that_are_numbers() -> None:
    made = udjfl.Federation.from_arrays(
        {7: client_arrays(8), 8: client_arrays(9)}, test=client_arrays(5)[:2], class_names="xyz"
    )
    assert few_rounds(made, uncertainty={7: 0.1, 8: 0.2}).uncertainty == {"7": 0.1, "8": 0.2}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"client-1": 0.1, "client-3": 0.3}, "uncertainty: no value for client 'client-2'"),
        ({"client-1": 0.1, "client-2": 0.0, "client-3": 0.3}, "client-2.*uncertaint.*above zero"),
        ({"client-1": 0.1, "client-2": -1.0, "client-3": 0.3}, "client-2.*uncertaint.*above zero"),
        ({"client-1": 0.1, "client-2": math.nan, "client-3": 0.3}, "client-2.*uncertaint.*finite"),
        ({"client-1": 0.1, "client-2": math.inf, "client-3": 0.3}, "client-2.*uncertaint.*finite"),
        ({"client-1": 0.1, "client-2": "high", "client-3": 0.3}, "client-2"),
        ([0.1, 0.2, 0.3], "uncertainty"),
        ("entropie", "uncertainty"),
    ],
    ids=["missing", "zero", "negative", "nan", "infinite", "text", "a list", "unknown kind"],
)
def test_uncertainties_that_cannot_be_used(
    federation: udjfl.Federation, values: Any, message: str
) -> None:
    with pytest.raises(UdjflError, match=message):
        few_rounds(federation, uncertainty=values)


def test_resuming_with_other_uncertainties_is_refused(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    """They decide a run's numbers as much as its settings do, and those are compared."""
    few_rounds(federation, "rawls", uncertainty=rising(federation), out=tmp_path / "run")
    same = few_rounds(
        federation, "rawls", uncertainty=rising(federation), out=tmp_path / "run", resume=True
    )
    assert same.uncertainty == rising(federation)
    other = dict.fromkeys(federation.ids, 0.5)
    with pytest.raises(StorageError, match="uncertaint"):
        few_rounds(federation, "rawls", uncertainty=other, out=tmp_path / "run", resume=True)


# Corners


def test_one_client_only() -> None:
    made = federation_of(a=client_arrays(10))
    result = few_rounds(made, "rawls", reference=few_rounds(made))
    assert result.metrics["std"] == 0.0
    assert result.metrics["psi"] is None
    assert result.metrics["pearson_r"] is None
    assert set(result.undefined) == {"psi", "pearson_r"}
    assert all("client" in reason for reason in result.undefined.values())


@pytest.mark.parametrize("method", ["fedavg", "rawls", "egalitarian", "utilitarian", "desert"])
def test_clients_with_one_class_and_with_one_example(method: str) -> None:
    result = few_rounds(
        federation_of(
            a=client_arrays(10, labels=[1] * 10), b=client_arrays(1), c=client_arrays(20)
        ),
        method,
    )
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
    assert all(value > 0 for value in result.uncertainty.values())
    assert result.metrics["mean_accuracy"] is not None


@pytest.mark.parametrize("method", ["fedavg", "rawls", "desert"])
def test_a_federation_of_one_class(method: str) -> None:
    """Nothing is uncertain and everything is right: all clients have the same uncertainty, and no r can be had."""
    x = np.random.default_rng(0).normal(size=(12, 4))
    made = {"a": (x[:4], [0] * 4, x[4:6], [0, 0]), "b": (x[6:9], [0] * 3, x[9:10], [0])}
    result = few_rounds(udjfl.Federation.from_arrays(made, test=(x[10:], [0, 0])), method)
    assert result.client_accuracy == {"a": 100.0, "b": 100.0}
    assert result.uncertainty["a"] == result.uncertainty["b"] > 0
    assert result.metrics["pearson_r"] is None
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


def test_the_federation_and_ambient_state_are_left_alone(federation: udjfl.Federation) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    before = copy.deepcopy(federation.clients)
    few_rounds(federation, "rawls")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    for client, old in zip(federation.clients, before, strict=True):
        assert torch.equal(client.train.x, old.train.x)
        assert torch.equal(client.train.y, old.train.y)


# Settings


def test_every_mistake_is_reported_at_once(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError) as caught:
        few_rounds(
            federation,
            "fedavgg",
            rounds=0,
            lr=-1,
            momentum=2,
            loss_at="begin",
            drop_out=1,
            engine="fast",
        )
    named = [sentence.split(":")[0] for sentence in caught.value.mistakes]
    assert sorted(named) == ["drop_out", "engine", "loss_at", "lr", "method", "momentum", "rounds"]


@pytest.mark.parametrize("seed", [1.5, "x", -1, None])
def test_a_seed_is_a_whole_number_from_zero(federation: udjfl.Federation, seed: Any) -> None:
    """1.5 taken for 1 would pass for another repetition; the command line refuses all of these."""
    with pytest.raises(SettingsError, match="seed"):
        few_rounds(federation, seed=seed)


def test_a_method_class_in_place_of_a_method(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="method"):
        few_rounds(federation, udjfl.FedAvg)


@pytest.mark.parametrize("sizes", [(4, 2), (3, 3)], ids=["too few scores", "too few inputs"])
def test_a_model_that_does_not_fit_the_data(
    federation: udjfl.Federation, sizes: tuple[int, int]
) -> None:
    """Four features and three classes."""
    with pytest.raises(SettingsError, match="model"):
        few_rounds(federation, model=lambda: nn.Linear(*sizes))


def test_simulate_is_a_function_whatever_was_imported_first() -> None:
    """A submodule must not take the place of a function of the same name; and `import udjfl` does not wait for torch."""
    script = (
        "import sys, udjfl; assert 'torch' not in sys.modules; import udjfl.simulation.simulate, udjfl.simulation.compare, udjfl.methods; "
        "print(all(callable(f) for f in (udjfl.simulate, udjfl.compare, udjfl.method, udjfl.load)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_a_reference_of_another_seed_is_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="reference: has seed 1, this run has seed 0"):
        few_rounds(federation, "rawls", reference=few_rounds(federation, seed=1))


def test_a_reference_that_is_not_fedavg_is_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(
        SettingsError, match="reference: is a result of UDJ-FL rawls; psi is measured from FedAvg"
    ):
        few_rounds(federation, "desert", reference=few_rounds(federation, "rawls"))


def test_resuming_with_another_model_is_refused(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    """Two functions without a name look the same in the settings; their parameters do not."""
    few_rounds(federation, model=lambda: nn.Linear(4, 3), out=tmp_path / "run")
    with pytest.raises(StorageError, match="another model"):
        few_rounds(
            federation,
            model=lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)),
            out=tmp_path / "run",
            resume=True,
        )


def test_an_ensemble_shows_both_parts(federation: udjfl.Federation) -> None:
    result = few_rounds(federation, uncertainty="ensemble", uncertainty_models=2)
    assert result.epistemic is not None
    assert list(result.epistemic) == list(result.uncertainty)
    assert summary(result)["epistemic"] == result.epistemic
