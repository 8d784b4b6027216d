"""Whole runs on tiny federations: reproducibility, results and refusals."""

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
from small_runs import (
    make_client_arrays,
    make_federation_of,
    model_bytes,
    rising_uncertainties,
    train_briefly,
)
from torch import nn

import udjfl
from udjfl import _measures
from udjfl.engine.batches import batch_order
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
    "gain_least_advantaged",
    "gain_others",
    "corrected_std",
    "slope",
    "gap",
    "jain",
    "gini",
    "cv",
    "entropy",
    "cosine",
    "worst_tenth",
    "best_tenth",
    "best_minus_worst",
]
NEED_A_REFERENCE = {"psi", "gain_least_advantaged", "gain_others"}
ALONE = ["gain_by_joining", "least_gain_by_joining", "share_better_alone"]


# --- reproducibility


@pytest.mark.parametrize("method", ["fedavg", "rawls", "desert"])
def test_the_same_seed_gives_the_same_bytes(federation: udjfl.Federation, method: str) -> None:
    first = train_briefly(federation, method, participation=0.7, drop_out=0.2)
    torch.rand(3)  # the global generator must not matter
    again = train_briefly(federation, method, participation=0.7, drop_out=0.2)
    assert model_bytes(again) == model_bytes(first)
    assert again.history.records == first.history.records
    assert again.metrics == first.metrics
    assert model_bytes(
        train_briefly(federation, method, participation=0.7, drop_out=0.2, seed=1)
    ) != model_bytes(first)


def test_a_shorter_run_is_the_beginning_of_a_longer_one(federation: udjfl.Federation) -> None:
    short, long = (
        train_briefly(federation, "rawls", rounds=2),
        train_briefly(federation, "rawls", rounds=4),
    )
    assert long.history.records[: len(short.history.records)] == short.history.records


def test_a_model_with_dropout_is_reproducible(federation: udjfl.Federation) -> None:
    def build_model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    assert model_bytes(train_briefly(federation, model=build_model)) == model_bytes(
        train_briefly(federation, model=build_model)
    )


def test_both_engines_give_the_same_run(federation: udjfl.Federation) -> None:
    stacked, serial = (
        train_briefly(federation, "rawls"),
        train_briefly(federation, "rawls", engine="serial"),
    )
    # At most ten steps a round, three rounds; tests/engine derives the tolerance of 1e-5.
    torch.testing.assert_close(
        to_vector(stacked.model), to_vector(serial.model), rtol=1e-4, atol=1e-5
    )


def test_fedavg_on_one_client_is_plain_sgd() -> None:
    """Three rounds are three passes over the data; only the momentum starts afresh each time."""
    federation = make_federation_of(a=make_client_arrays(13))
    result = train_briefly(federation, rounds=3, batch_size=4, seed=5)
    model, data = build("mlp", (4,), 3, seed=5, hidden=5), federation.clients[0].train
    for t in (1, 2, 3):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for batch in batch_order(13, 1, (5, "batches", t), "a")[0].split(4):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(to_vector(result.model), to_vector(model), rtol=1e-5, atol=1e-6)


# --- results


def test_metrics_are_plain_floats_under_the_promised_names(federation: udjfl.Federation) -> None:
    result = train_briefly(federation, "rawls")
    known = [name for name in ALL_METRICS if name not in NEED_A_REFERENCE]
    assert list(result.metrics) == [*known, *ALONE]
    for values in (result.metrics, result.client_scores, result.uncertainty):
        assert all(type(value) is float for value in values.values())
    accuracies, uncertainties = (
        list(result.client_scores.values()),
        list(result.uncertainty.values()),
    )
    assert list(result.client_scores) == list(result.uncertainty) == list(federation.ids)
    assert result.metrics["global_accuracy"] == result.global_accuracy
    assert result.metrics["std"] == _measures.std(accuracies)
    assert result.metrics["pearson_r"] == _measures.pearson_r(uncertainties, accuracies)
    assert result.undefined == {}


def test_accuracies_are_those_of_the_returned_model(federation: udjfl.Federation) -> None:
    result = train_briefly(federation)

    def percent(part: udjfl.Examples) -> float:
        return 100 * float((result.model(part.x).argmax(dim=1) == part.y).double().mean())

    assert result.global_accuracy == pytest.approx(percent(federation.test))
    by_hand = {client.id: percent(client.test) for client in federation.clients}
    assert result.client_scores == pytest.approx(by_hand)
    assert result.history.by_client("test_accuracy", 3) == result.client_scores


def test_psi_needs_a_reference(federation: udjfl.Federation) -> None:
    reference = train_briefly(federation)
    result = train_briefly(
        federation, "rawls", reference=reference, uncertainty=rising_uncertainties(federation)
    )
    assert list(result.metrics) == ALL_METRICS
    gain = {
        name: result.client_scores[name] - reference.client_scores[name] for name in federation.ids
    }
    # Client 3 is the most uncertain.
    assert result.metrics["psi"] == pytest.approx(
        gain["client-3"] - (gain["client-1"] + gain["client-2"]) / 2
    )
    assert train_briefly(federation, reference=reference).metrics["psi"] == 0.0


def test_a_reference_with_other_clients_is_refused_before_training(
    federation: udjfl.Federation,
) -> None:
    seen: list[str] = []
    reference = train_briefly(make_federation_of(x=make_client_arrays(5), y=make_client_arrays(6)))
    with pytest.raises(SettingsError, match="reference: has other clients"):
        train_briefly(
            federation,
            "rawls",
            reference=reference,
            on_progress=lambda event: seen.append(event.stage),
        )
    assert "training" not in seen


def test_progress_is_reported(federation: udjfl.Federation) -> None:
    seen: list[tuple[str, int, int]] = []
    train_briefly(federation, on_progress=lambda e: seen.append((e.stage, e.done, e.total)))
    assert seen == [
        ("uncertainty", 1, 2),  # of two epochs, evaluated after each
        ("uncertainty", 2, 2),
        ("training", 1, 3),
        ("training", 2, 3),
        ("training", 3, 3),
    ]


# --- given uncertainties


def test_given_uncertainties_reach_method_and_metrics(federation: udjfl.Federation) -> None:
    """Egalitarian weights are u / sum u: 0.1, 0.2, 0.3 over 0.6."""
    result = train_briefly(federation, "egalitarian", uncertainty=rising_uncertainties(federation))
    assert list(result.history.by_client("weight", 1).values()) == pytest.approx(
        [1 / 6, 2 / 6, 3 / 6]
    )
    assert result.metrics["accuracy_most_uncertain"] == result.client_scores["client-3"]
    assert result.uncertainty == pytest.approx({"client-1": 0.1, "client-2": 0.2, "client-3": 0.3})


@pytest.mark.parametrize(
    "number",
    [np.float32, np.float64, torch.tensor, int],
    ids=["float32", "float64", "tensor", "int"],
)
def test_numbers_of_any_type_are_accepted(
    federation: udjfl.Federation, tmp_path: Path, number: Any
) -> None:
    values = {name: number(1 + index) for index, name in enumerate(federation.ids)}
    result = train_briefly(federation, "rawls", uncertainty=values, out=tmp_path / "run")
    assert result.uncertainty == {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}
    assert all(type(value) is float for value in result.uncertainty.values())


def test_client_ids_may_be_numbers() -> None:
    federation = udjfl.Federation.from_arrays(
        {7: make_client_arrays(8), 8: make_client_arrays(9)},
        test=make_client_arrays(5)[:2],
        class_names="xyz",
    )
    assert train_briefly(federation, uncertainty={7: 0.1, 8: 0.2}).uncertainty == {
        "7": 0.1,
        "8": 0.2,
    }


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
def test_unusable_uncertainties_are_refused(
    federation: udjfl.Federation, values: Any, message: str
) -> None:
    with pytest.raises(UdjflError, match=message):
        train_briefly(federation, uncertainty=values)


def test_resuming_with_other_uncertainties_is_refused(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    """Given uncertainties decide a run's numbers as much as its settings do."""
    train_briefly(
        federation, "rawls", uncertainty=rising_uncertainties(federation), out=tmp_path / "run"
    )
    same = train_briefly(
        federation,
        "rawls",
        uncertainty=rising_uncertainties(federation),
        out=tmp_path / "run",
        resume=True,
    )
    assert same.uncertainty == rising_uncertainties(federation)
    other = dict.fromkeys(federation.ids, 0.5)
    with pytest.raises(StorageError, match="uncertaint"):
        train_briefly(federation, "rawls", uncertainty=other, out=tmp_path / "run", resume=True)


# --- corner cases


def test_metrics_that_compare_clients_are_undefined_for_one_client() -> None:
    federation = make_federation_of(a=make_client_arrays(10))
    result = train_briefly(federation, "rawls", reference=train_briefly(federation))
    assert result.metrics["std"] == 0.0
    assert result.metrics["psi"] is None
    assert result.metrics["pearson_r"] is None
    assert set(result.undefined) == {"psi", "pearson_r", "gain_others", "slope", "gap"}
    assert all("client" in reason for reason in result.undefined.values())


@pytest.mark.parametrize("method", ["fedavg", "rawls", "egalitarian", "utilitarian", "desert"])
def test_clients_may_have_one_class_or_one_example(method: str) -> None:
    result = train_briefly(
        make_federation_of(
            a=make_client_arrays(10, labels=[1] * 10),
            b=make_client_arrays(1),
            c=make_client_arrays(20),
        ),
        method,
    )
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
    assert all(value > 0 for value in result.uncertainty.values())
    assert result.metrics["mean_accuracy"] is not None


@pytest.mark.parametrize("method", ["fedavg", "rawls", "desert"])
def test_a_federation_may_have_one_class(method: str) -> None:
    """All clients have the same uncertainty, so Pearson's r is undefined."""
    x = np.random.default_rng(0).normal(size=(12, 4))
    clients = {"a": (x[:4], [0] * 4, x[4:6], [0, 0]), "b": (x[6:9], [0] * 3, x[9:10], [0])}
    result = train_briefly(udjfl.Federation.from_arrays(clients, test=(x[10:], [0, 0])), method)
    assert result.client_scores == {"a": 100.0, "b": 100.0}
    assert result.uncertainty["a"] == result.uncertainty["b"] > 0
    assert result.metrics["pearson_r"] is None
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


def test_the_federation_and_the_state_of_torch_are_left_alone(federation: udjfl.Federation) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    before = copy.deepcopy(federation.clients)
    train_briefly(federation, "rawls")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    for client, old in zip(federation.clients, before, strict=True):
        assert torch.equal(client.train.x, old.train.x)
        assert torch.equal(client.train.y, old.train.y)


# --- settings


def test_every_mistake_is_reported_at_once(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError) as caught:
        train_briefly(
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
    """1.5 rounded to 1 would be a repetition of seed 1; the command line refuses these too."""
    with pytest.raises(SettingsError, match="seed"):
        train_briefly(federation, seed=seed)


def test_a_method_class_is_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="method"):
        train_briefly(federation, udjfl.FedAvg)


@pytest.mark.parametrize("sizes", [(4, 2), (3, 3)], ids=["too few scores", "too few inputs"])
def test_a_model_that_does_not_fit_the_data_is_refused(
    federation: udjfl.Federation, sizes: tuple[int, int]
) -> None:
    """Four features and three classes."""
    with pytest.raises(SettingsError, match="model"):
        train_briefly(federation, model=lambda: nn.Linear(*sizes))


def test_simulate_is_a_function_whatever_was_imported_first() -> None:
    """A submodule does not replace a function of its name, and `import udjfl` loads no torch."""
    script = (
        "import sys, udjfl; assert 'torch' not in sys.modules; "
        "import udjfl.simulation.simulate, udjfl.simulation.compare, udjfl.methods; "
        "print(all(callable(f) for f in (udjfl.simulate, udjfl.compare, udjfl.method, udjfl.load)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_a_reference_of_another_seed_is_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="reference: has seed 1, this run has seed 0"):
        train_briefly(federation, "rawls", reference=train_briefly(federation, seed=1))


def test_a_reference_that_is_not_fedavg_is_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(
        SettingsError, match="reference: is a run of UDJ-FL rawls; psi is measured from FedAvg"
    ):
        train_briefly(federation, "desert", reference=train_briefly(federation, "rawls"))


def test_resuming_with_another_model_is_refused(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    """Two lambdas have the same name in the settings, but other parameters."""
    train_briefly(federation, model=lambda: nn.Linear(4, 3), out=tmp_path / "run")
    with pytest.raises(StorageError, match="another model"):
        train_briefly(
            federation,
            model=lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)),
            out=tmp_path / "run",
            resume=True,
        )


def test_a_result_has_both_parts_of_an_ensembles_uncertainty(federation: udjfl.Federation) -> None:
    result = train_briefly(federation, uncertainty="ensemble", uncertainty_models=2)
    assert result.epistemic is not None
    assert list(result.epistemic) == list(result.uncertainty)
    assert summary(result)["epistemic"] == result.epistemic


def test_a_callback_sees_everything_that_a_round_recorded(federation: udjfl.Federation) -> None:
    events: list[udjfl.Progress] = []
    result = train_briefly(federation, "rawls", on_progress=events.append)
    rounds = [event for event in events if event.stage == "training"]
    assert [event.done for event in rounds] == [1, 2, 3]
    assert [record for event in rounds for record in event.records] == result.history.records
    assert rounds[1].metrics["step_norm"] == result.history.series("step_norm")[2]
    by_client = rounds[2].client_metrics
    assert set(by_client) == set(federation.ids)
    for client, accuracy in result.client_scores.items():
        assert by_client[client]["test_accuracy"] == pytest.approx(accuracy)
    assert all(event.records == () for event in events if event.stage != "training")
