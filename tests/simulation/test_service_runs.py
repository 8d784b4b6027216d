"""Services around whole runs: the common model stays as it is, and clients are served others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import (
    Stopped,
    make_client_arrays,
    make_federation,
    make_federation_of,
    model_bytes,
    read_files,
    rising_uncertainties,
    stop_after,
    train_briefly,
)
from torch import nn

import udjfl
from udjfl.errors import NotDefinedError, SettingsError, StorageError
from udjfl.models import ShiftedLogits
from udjfl.training import service as services
from udjfl.training.result import build_served, read_served
from udjfl.training.run_folder import RunFolder

SERVICES = ("prior-rawls", "prior-egalitarian", "prior-all", "checkpoints:rho=0.5")
COMMON = ("test_accuracy", "test_loss", "train_loss", "step_norm")


@pytest.fixture(scope="module")
def digits() -> udjfl.Federation:
    return udjfl.load("dirty-digits", clients=3)


def accuracy_of(model: nn.Module, part: udjfl.Examples) -> float:
    """Return an accuracy in percent, without the code under test."""
    with torch.no_grad():
        right = (model.eval()(part.x).argmax(dim=1) == part.y).double()
    return 100 * float(right.mean())


def records_of(result: udjfl.Result, metrics: tuple[str, ...] = COMMON) -> list[Any]:
    return [record for record in result.history.records if record.metric in metrics]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("method", ["fedavg", "rawls", "e2fl"])
def test_the_common_model_is_unchanged_to_the_digit(
    digits: udjfl.Federation, method: str, service: str
) -> None:
    plain = train_briefly(digits, method, rounds=5)
    served = train_briefly(digits, method, rounds=5, service=service)
    assert model_bytes(served) == model_bytes(plain)
    assert served.global_accuracy == plain.global_accuracy
    assert served.common_scores == plain.client_scores
    assert served.uncertainty == plain.uncertainty
    assert records_of(served) == records_of(plain)
    assert (plain.service, plain.common_scores) == ("none", None)


@pytest.mark.parametrize("model", ["mlp", "logistic"])
@pytest.mark.parametrize("service", SERVICES)
def test_accuracies_are_those_of_the_models_that_clients_are_served(
    digits: udjfl.Federation, service: str, model: str
) -> None:
    result = train_briefly(digits, model=model, rounds=6, service=service)
    by_hand = {c.id: accuracy_of(result.model_for(c.id), c.test) for c in digits.clients}
    assert result.client_scores == pytest.approx(by_hand)
    assert result.client_scores != result.common_scores
    assert result.history.by_client("served_accuracy", 6) == result.client_scores
    assert result.history.by_client("test_accuracy", 6) == result.common_scores


def test_only_the_most_uncertain_client_is_moved(digits: udjfl.Federation) -> None:
    given = {"client-1": 0.2, "client-2": 0.9, "client-3": 0.3}
    result = train_briefly(digits, service="prior-rawls", uncertainty=given)
    assert result.history.by_client("kappa", 3) == {"client-1": 0, "client-2": 1, "client-3": 0}
    kinds = {name: isinstance(result.model_for(name), ShiftedLogits) for name in digits.ids}
    assert kinds == {"client-1": False, "client-2": True, "client-3": False}


@pytest.mark.parametrize("name", ["prior-rawls", "prior-egalitarian", "prior-all"])
def test_strength_0_is_no_service(digits: udjfl.Federation, name: str, tmp_path: Path) -> None:
    plain = train_briefly(digits, out=tmp_path / "plain")
    served = train_briefly(digits, service=f"{name}:strength=0", out=tmp_path / "served")
    assert served.client_scores == plain.client_scores
    assert served.expected_accuracy == plain.expected_accuracy
    assert served.metrics == plain.metrics
    files = [read_files(tmp_path / folder) for folder in ("plain", "served")]
    assert files[0]["model.safetensors"] == files[1]["model.safetensors"]
    assert records_of(served) == records_of(plain)
    offsets = read_served(RunFolder.open(tmp_path / "served"))
    assert offsets is not None
    assert offsets.offsets is not None
    assert not offsets.offsets.any()


def test_clients_with_the_same_classes_gain_nothing() -> None:
    """Where all class frequencies are alike there is nowhere to move to."""
    labels = [0, 1, 2] * 4
    federation = make_federation_of(
        a=make_client_arrays(12, labels=labels), b=make_client_arrays(12, 2.0, labels=labels)
    )
    result = train_briefly(federation, service="prior-all")
    assert result.client_scores == result.common_scores
    assert result.served is not None
    assert result.served.offsets is not None
    assert result.served.offsets.abs().max() < 1e-12


def test_a_client_of_one_class_is_served_that_class_more_often() -> None:
    """A client that has seen one class alone; the other has all of them."""
    federation = make_federation_of(
        one=make_client_arrays(40, labels=[2] * 40), all=make_client_arrays(45)
    )
    result = train_briefly(federation, service="prior-all")
    x = federation.test.x
    with torch.no_grad():
        before, after = (m.eval()(x).softmax(1) for m in (result.model, result.model_for("one")))
    assert torch.isfinite(after).all()
    assert (after[:, 2] > before[:, 2]).all()


def test_one_client_alone_is_served_the_common_model() -> None:
    federation = make_federation(n_clients=1)
    for service in SERVICES:
        result = train_briefly(federation, service=service)
        assert result.client_scores == result.common_scores


def test_expected_accuracies_are_those_of_the_served_models(digits: udjfl.Federation) -> None:
    result = train_briefly(digits, rounds=6, service="prior-all")
    for client in digits.clients:
        table = client.test.label_probabilities
        assert table is not None
        with torch.no_grad():
            predicted = result.model_for(client.id).eval()(client.test.x).argmax(dim=1)
        by_hand = 100 * float(table.double().gather(1, predicted[:, None]).mean())
        assert result.expected_accuracy is not None
        assert result.expected_accuracy[client.id] == pytest.approx(by_hand)


# --- checkpoints


def test_checkpoints_are_models_of_earlier_rounds(digits: udjfl.Federation) -> None:
    result = train_briefly(
        digits, rounds=8, service="checkpoints:rho=0.5", uncertainty=rising_uncertainties(digits)
    )
    chosen = result.history.by_client("served_round", 8)
    assert chosen["client-1"] == 8
    assert len(set(chosen.values())) > 1
    for name, round in chosen.items():
        earlier = train_briefly(digits, rounds=int(round or 0))
        for own, then in zip(
            result.model_for(name).parameters(), earlier.model.parameters(), strict=True
        ):
            assert torch.equal(own, then)


def test_the_choice_is_by_scores_of_the_received_model(digits: udjfl.Federation) -> None:
    """The score that a client reports in round t + 1 is that of the model after round t."""
    rounds = 8
    result = train_briefly(
        digits,
        rounds=rounds,
        service="checkpoints:rho=0.5",
        uncertainty=rising_uncertainties(digits),
    )
    final = {c.id: accuracy_of(result.model, c.train) / 100 for c in digits.clients}
    wanted = result.history.by_client("target", rounds)
    assert wanted["client-1"] == pytest.approx(final["client-1"])
    assert wanted["client-3"] == pytest.approx(0.5 * final["client-3"])
    middle = (float(wanted["client-1"] or 0) + float(wanted["client-3"] or 0)) / 2
    assert wanted["client-2"] == pytest.approx(middle)
    for client in ("client-2", "client-3"):
        reported = result.history.series("score", client)
        scores = {round - 1: float(reported[round] or 0) for round in range(2, rounds + 1)}
        scores[rounds] = final[client]
        distance = {t: abs(score - float(wanted[client] or 0)) for t, score in scores.items()}
        served = int(result.history.by_client("served_round", rounds)[client] or 0)
        assert distance[served] == pytest.approx(min(distance.values()), abs=1e-9)
    assert any("lowers on purpose" in note for note in result.notes)


def test_fewer_models_are_kept_of_long_runs(
    digits: udjfl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(p.numel() for p in train_briefly(digits).model.parameters())
    monkeypatch.setattr(services, "KEPT_BYTES", 4 * size * 4)
    result = train_briefly(
        digits, rounds=8, service="checkpoints:rho=0.5", uncertainty=rising_uncertainties(digits)
    )
    chosen = {int(round or 0) for round in result.history.by_client("served_round", 8).values()}
    assert chosen <= {2, 4, 6, 8}


def test_clients_that_are_not_always_asked_are_served_what_they_scored() -> None:
    federation = make_federation(6)
    result = train_briefly(
        federation, rounds=9, participation=0.5, seed=3, service="checkpoints:rho=0.3"
    )
    for client in federation.ids:
        served = int(result.history.by_client("served_round", 9)[client] or 0)
        assert served == 9 or served + 1 in result.history.series("score", client)


def test_checkpoints_need_a_model_without_buffers() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    federation = make_federation()
    with pytest.raises(NotDefinedError, match="service: checkpoints are kept without the model's"):
        train_briefly(federation, model=model, service="checkpoints")
    result = train_briefly(federation, model=model, service="prior-all")
    by_hand = {c.id: accuracy_of(result.model_for(c.id), c.test) for c in federation.clients}
    assert result.client_scores == pytest.approx(by_hand)


# --- settings, folders, resuming


def test_a_wrong_service_is_one_mistake_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="service: unknown value 'best'") as caught:
        udjfl.compare(
            make_federation(), "fedavg,rawls", seeds=2, service="best", out=tmp_path / "out"
        )
    assert len(caught.value.mistakes) == 1
    assert not (tmp_path / "out").exists()


def test_methods_with_models_of_their_own_are_left_out_with_the_reason() -> None:
    federation = make_federation()
    with pytest.raises(NotDefinedError, match="set service=none, or choose another method"):
        train_briefly(federation, "focus", service="checkpoints")
    comparison = udjfl.compare(
        federation, "rawls,cffl", seeds=2, rounds=2, uncertainty_epochs=1, service="prior-rawls"
    )
    rawls, cffl = comparison.rows[1:]
    assert not rawls.failed
    assert list(cffl.failed) == [0, 1]
    assert "cffl: serves clients models of its own" in cffl.failed[0]


@pytest.mark.parametrize("service", SERVICES)
def test_a_stopped_run_resumes_to_the_same_bytes(service: str, tmp_path: Path) -> None:
    federation = make_federation()
    arguments: dict[str, Any] = {"rounds": 7, "checkpoint_every": 3, "service": service}
    train_briefly(federation, out=tmp_path / "whole", **arguments)
    with pytest.raises(Stopped):
        train_briefly(federation, out=tmp_path / "stopped", on_progress=stop_after(5), **arguments)
    resumed = train_briefly(federation, out=tmp_path / "stopped", resume=True, **arguments)
    whole, stopped = (read_files(tmp_path / name) for name in ("whole", "stopped"))
    assert "served.safetensors" in whole
    assert stopped == whole
    again = train_briefly(federation, out=tmp_path / "stopped", resume=True, **arguments)
    assert again.client_scores == resumed.client_scores
    assert read_files(tmp_path / "stopped") == whole


def test_a_run_is_not_resumed_with_another_service(tmp_path: Path) -> None:
    federation = make_federation()
    train_briefly(federation, out=tmp_path / "run", service="prior-all")
    with pytest.raises(StorageError, match="was started with another service"):
        train_briefly(federation, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("service", SERVICES)
def test_served_models_are_read_from_a_folder(
    digits: udjfl.Federation, service: str, tmp_path: Path
) -> None:
    result = train_briefly(digits, rounds=5, service=service, out=tmp_path / "run")
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["service"] == service
    assert content["client_scores"] == result.client_scores
    assert content["common_scores"] == result.common_scores
    served = read_served(RunFolder.open(tmp_path / "run"))
    assert served is not None
    for index, client in enumerate(digits.clients):
        model = build_served(result.model, served, index)
        assert accuracy_of(model, client.test) == pytest.approx(result.client_scores[client.id])
    train_briefly(digits, out=tmp_path / "plain")
    assert read_served(RunFolder.open(tmp_path / "plain")) is None
    assert "service" not in json.loads((tmp_path / "plain" / "result.json").read_text())
    assert list(digits.ids) == list(content["common_scores"])


def test_psi_of_a_service_is_measured_from_fedavg_without_it(digits: udjfl.Federation) -> None:
    given = rising_uncertainties(digits)
    plain = train_briefly(digits, rounds=6, uncertainty=given)
    served = train_briefly(
        digits, rounds=6, uncertainty=given, service="prior-rawls", reference=plain
    )
    gain = served.client_scores["client-3"] - plain.client_scores["client-3"]
    assert gain != 0
    assert served.metrics["psi"] == pytest.approx(gain)  # the others are served what they were


@pytest.mark.parametrize("workers", [1, 2])
def test_several_seeds_and_methods_together_have_the_numbers_they_have_alone(workers: int) -> None:
    settings: dict[str, Any] = {
        "rounds": 3,
        "hidden": 5,
        "uncertainty_epochs": 2,
        "service": "checkpoints:rho=0.4",
        "workers": workers,
    }
    comparison = udjfl.compare("dirty-digits", "rawls", seeds=2, clients=3, **settings)
    for seed in (0, 1):
        for row in comparison.rows:
            alone = udjfl.simulate("dirty-digits", row.method, seed=seed, clients=3, **settings)
            together = {c: s.values[seed] for c, s in row.client_scores.items()}
            assert together == alone.client_scores
