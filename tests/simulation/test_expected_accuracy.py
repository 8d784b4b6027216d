"""Expected accuracies of whole runs: where they are known, at the end, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_runs import make_federation, train_briefly

import udjfl
from udjfl.settings import TrainingSettings
from udjfl.simulation.run_methods import MethodTask
from udjfl.simulation.simulate import run_methods
from udjfl.training.records import Record
from udjfl.training.result import summary


@pytest.fixture(scope="module")
def digits() -> udjfl.Federation:
    return udjfl.load("dirty-digits", clients=3)


def expect_by_hand(model: torch.nn.Module, part: udjfl.Examples) -> float:
    """Compute the expected accuracy in percent, without the code under test."""
    assert part.label_probabilities is not None
    with torch.no_grad():
        predicted = model.eval()(part.x).argmax(dim=1).tolist()
    table = part.label_probabilities.double().tolist()
    return 100 * sum(row[k] for row, k in zip(table, predicted, strict=True)) / len(part)


@pytest.mark.parametrize("method", ["rawls", "cffl", "focus:models=2"])
@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_expected_accuracies_are_those_of_the_models_that_clients_use(
    digits: udjfl.Federation, method: str, model: str
) -> None:
    result = train_briefly(digits, method, model=model)
    by_hand = {
        client.id: expect_by_hand(result.model_for(client.id), client.test)
        for client in digits.clients
    }
    assert result.expected_accuracy == pytest.approx(by_hand)
    assert list(result.expected_accuracy or {}) == list(digits.ids)
    assert result.expected_accuracy != result.client_scores


def test_only_the_last_round_has_records(digits: udjfl.Federation) -> None:
    result = train_briefly(digits)
    records = [r for r in result.history.records if r.metric == "expected_accuracy"]
    assert result.expected_accuracy is not None
    assert records == [
        Record(3, name, "expected_accuracy", value)
        for name, value in result.expected_accuracy.items()
    ]
    assert result.history.by_client("test_accuracy", 2)  # earlier rounds were evaluated, too


def test_a_federation_without_known_distributions_has_none(tmp_path: Path) -> None:
    result = train_briefly(make_federation(), out=tmp_path / "run")
    assert result.expected_accuracy is None
    assert "expected_accuracy" not in summary(result)
    assert "expected_accuracy" not in (tmp_path / "run" / "result.json").read_text()
    assert "expected_accuracy" not in (tmp_path / "run" / "records.jsonl").read_text()


def test_they_change_nothing_else(digits: udjfl.Federation) -> None:
    bare = udjfl.Federation(
        digits.name,
        tuple(
            udjfl.Client(c.id, *(udjfl.Examples(p.x, p.y) for p in (c.train, c.test)))
            for c in digits.clients
        ),
        udjfl.Examples(digits.test.x, digits.test.y),
        digits.class_names,
        validation=digits.validation,
    )
    assert bare.fingerprint == digits.fingerprint
    with_them, without = train_briefly(digits, "rawls"), train_briefly(bare, "rawls")
    assert without.expected_accuracy is None
    kept = [r for r in with_them.history.records if r.metric != "expected_accuracy"]
    assert kept == without.history.records
    assert with_them.metrics == without.metrics


def test_clients_without_a_known_distribution_are_left_out() -> None:
    plain = make_federation()
    first, *others = plain.clients
    known = udjfl.Client(first.id, first.train, first.test.with_certain_labels(plain.n_classes))
    federation = udjfl.Federation("own", (known, *others), plain.test, plain.class_names)
    result = train_briefly(federation)
    # Its labels are certain, so the expected accuracy is the accuracy.
    assert result.expected_accuracy == {first.id: result.client_scores[first.id]}


def test_a_resumed_run_has_the_same_ones(digits: udjfl.Federation, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = train_briefly(digits, out=folder)
    stored = json.loads((folder / "result.json").read_text())
    assert stored["expected_accuracy"] == whole.expected_accuracy
    again = train_briefly(digits, out=folder, resume=True)
    assert again.expected_accuracy == whole.expected_accuracy
    assert json.loads((folder / "result.json").read_text()) == stored


@pytest.mark.parametrize("workers", [1, 2])
def test_they_do_not_depend_on_the_methods_beside_it(
    digits: udjfl.Federation, workers: int
) -> None:
    names = ["fedavg", "rawls", "cffl"]
    tasks = [MethodTask(udjfl.method(name)) for name in names]
    settings = TrainingSettings(rounds=3, hidden=5, uncertainty_epochs=2, workers=workers)
    together = run_methods(digits, tasks, settings, seed=0)
    for name, result in zip(names, together, strict=True):
        assert isinstance(result, udjfl.Result)
        assert result.expected_accuracy == train_briefly(digits, name).expected_accuracy
