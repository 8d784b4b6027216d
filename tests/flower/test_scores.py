"""Numbers as labels, and other scores than accuracy: on Flower as in the simulator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from in_process_grid import InProcessGrid, make_federation, run_strategy, simulate_small

import udjfl
from udjfl import DataError, Federation
from udjfl.errors import ReportError
from udjfl.flower import ClientData
from udjfl.report.saved_runs import read_run


def make_homes() -> Federation:
    """Make a regression from a table, whose labels are scaled for the training."""
    rng = np.random.default_rng(0)
    frames = {}
    for town, noise in (("bath", 2e3), ("ely", 1e4), ("york", 3e4)):
        area, age = rng.normal(90, 20, 40), rng.normal(50, 10, 40)
        price = 2e5 + 2000 * (area - 90) - 500 * age + noise * rng.normal(size=40)
        frames[town] = pd.DataFrame({"area": area, "age": age, "price": price})
    return Federation.from_frames(frames, target="price", task="regression")


def compare_with_simulator(
    federation: Federation, method: str = "fedavg", **changes: Any
) -> udjfl.Result:
    """Run both ways; check that scores, intervals and metrics are the same."""
    here = simulate_small(federation, method, **changes)
    # The simulator always measures uncertainties.
    there = run_strategy(federation, method, report_uncertainties=True, **changes).result
    assert there is not None
    assert there.score == here.score
    assert there.n_classes == here.n_classes
    close = {"rel": 2e-3, "abs": 2e-3}
    assert there.client_scores == pytest.approx(here.client_scores, **close)
    for key in ("global_accuracy", "worst_accuracy", "mean_accuracy", "accuracy_std", "pearson"):
        if here.metrics.get(key) is not None:
            assert there.metrics[key] == pytest.approx(here.metrics[key], rel=1e-2, abs=1e-2)
    if not here.score.is_share:
        assert here.client_interval is not None
        assert there.client_interval is not None
        for client, ends in here.client_interval.items():
            assert there.client_interval[client] == pytest.approx(ends, rel=2e-3, abs=2e-3)
    return there


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {}),
        ("rawls", {"score": "rmse"}),
        ("ditto:lam=1", {"score": "rmse"}),
        ("fedavg", {"loss": "gaussian", "score": "rmse"}),
        ("term", {"loss": "huber", "optimiser": "adam", "lr": 0.01}),
    ],
)
def test_a_regression_is_that_of_the_simulator(method: str, changes: dict[str, Any]) -> None:
    options = {"lr": 0.02, "uncertainty_lr": 0.02, **changes}
    result = compare_with_simulator(make_homes(), method, **options)
    if result.score.name == "rmse":  # in pounds, not in deviations of the labels
        assert all(1e3 < value < 2e5 for value in result.client_scores.values())
    else:
        assert result.score.name == "r2"


def mean_margin(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Return a score of one's own: the mean probability of the right class."""
    return float(predicted[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {"score": "auroc"}),
        ("rawls", {"score": "log-loss"}),
        ("fedavg", {"score": "f1", "service": "prior-all"}),
        ("fedavg", {"score": "balanced-accuracy", "service": "checkpoints"}),
        ("focus", {"score": "auprc"}),
        ("fedavg", {"score": "test_scores:mean_margin"}),
    ],
)
def test_scores_are_those_of_the_simulator(method: str, changes: dict[str, Any]) -> None:
    federation = make_federation()
    result = compare_with_simulator(federation, method, **changes)
    assert result.score.name == changes["score"].rpartition(":")[2]


def test_a_folder_of_a_regression_is_resumed_and_opened(tmp_path: Path) -> None:
    federation, options = make_homes(), {"lr": 0.02, "score": "rmse"}
    result = run_strategy(federation, out=tmp_path, **options).result
    again = run_strategy(federation, out=tmp_path, resume=True, **options).result
    assert result is not None
    assert again is not None
    assert again.client_scores == pytest.approx(result.client_scores)
    assert read_run(tmp_path).client_scores == result.client_scores
    x = federation.clients[0].test.x
    assert udjfl.open(tmp_path).predict(x) == pytest.approx(result.predict(x))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"judged-score": math.nan}, "judged score is nan; it must be a finite number"),
        ({"judged-low": 3.0, "judged-high": 2.0}, r"interval .* is 3.0 to 2.0"),
        ({"test-accuracy": 1.5}, "is 1.5; it must be at most 1"),
    ],
)
def test_unusable_scores_are_refused(numbers: dict[str, float], message: str) -> None:
    federation = make_homes()

    def lie(sent: Message, reply: Message) -> Message:
        if sent.metadata.message_type == "evaluate":
            metrics = reply.content.metric_records["metrics"]
            for name, value in numbers.items():
                metrics[name] = value
        return reply

    grid = InProcessGrid(federation, tamper=lie)
    with pytest.raises(ReportError, match=message):
        run_strategy(federation, "fedavg", grid, lr=0.02, score="rmse")


def test_a_score_that_is_not_defined_for_a_client_is_refused_before_training() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)), np.arange(12) % 2
    clients = {name: (x + i, y, x + i + 9, y) for i, name in enumerate("ab")}
    clients["b"] = (*clients["b"][:3], np.zeros(12, dtype=np.int64))
    federation = Federation.from_arrays(clients, (x, y), allow_duplicates=True)
    with pytest.raises(ReportError, match="AUROC is not defined for its test part"):
        run_strategy(federation, score="auroc")


def test_mistakes_in_the_kind_of_labels() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(DataError, match=r"n_classes is -1: give the number of classes, 0 for"):
        ClientData("a", (x, [0, 1, 0]), (x + 1, [0, 1, 0]), -1)
    regression = ClientData("a", (x, [0.5, 1, 0]), (x + 1, [0, 1, 0]), 0)
    assert regression.federation.labels_are_numbers
    with pytest.raises(ReportError, match="score: rmse is not for labels that are classes"):
        run_strategy(make_federation(), score="rmse")
