"""The comparison of measures of uncertainty: its truths are true, its page is that of its file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import udjfl
from udjfl.settings import TrainingSettings

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))  # the script's own modules
import known_entropies  # noqa: E402
import measure_uncertainty  # noqa: E402
import uncertainty_page  # noqa: E402
import uncertainty_results  # noqa: E402

sys.path.remove(str(EXPERIMENTS))
CSV = EXPERIMENTS / "results" / "uncertainty.csv"


def read_results() -> uncertainty_results.Results:
    return uncertainty_results.Results(uncertainty_results.read_rows(CSV))


def test_the_page_is_that_of_the_file() -> None:
    page = (EXPERIMENTS / "UNCERTAINTY.md").read_text(encoding="utf-8")
    rows = uncertainty_results.read_rows(CSV)
    assert uncertainty_page.render(rows, known_entropies.datasets(None)) == page


def test_the_default_is_the_measure_with_the_smallest_worst_error() -> None:
    best = uncertainty_results.best_measure(read_results())
    assert best.partition(",")[0] == TrainingSettings().uncertainty


def test_no_seed_of_the_comparison_was_used_to_develop_the_measure() -> None:
    rows = uncertainty_results.read_rows(CSV)
    assert {row.seed for row in rows} == set(range(100, 110))


@pytest.mark.parametrize("name", ["logistic", "mixture"])
def test_generated_entropies_are_those_of_the_labels(name: str) -> None:
    """A large sample's best linear softmax, on features that contain the truth, loses as much."""
    measured = getattr(known_entropies, name)(0, (20_000,) * 5)
    assert measured.truth is not None
    for client, truth in zip(measured.federation.clients, measured.truth, strict=True):
        assert fit_linear(client.train) == pytest.approx(truth, abs=0.02), client.id


def fit_linear(examples: udjfl.Examples) -> float:
    """Return the log loss of the best linear softmax."""
    inputs = torch.cat([examples.x, torch.ones(len(examples), 1)], dim=1).double()
    weights = torch.zeros(inputs.shape[1], 4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(inputs @ weights, examples.y)
        value.backward()
        return value

    optimiser.step(loss)
    return loss().item()


def test_a_row_by_hand() -> None:
    row = uncertainty_results.Row(
        "d", 0, "m", 1.0, (0.1, 0.5, 0.4), (0.2, 0.3, 0.6), (), (), (), ()
    )
    assert row.error == pytest.approx((0.1 + 0.2 + 0.2) / 3)
    assert row.bias == pytest.approx((-0.1 + 0.2 - 0.2) / 3)
    assert row.rank_correlation == pytest.approx(0.5)  # 1 - 6 * (0 + 1 + 1) / (3 * 8)
    assert dataclasses.replace(row, values=(1.0, 1.0, 1.0)).rank_correlation == 0.0


def test_one_seed_is_measured_by_every_measure() -> None:
    data = next(d for d in known_entropies.datasets(None) if d.name == "logistic, 40 each")
    few = [e for e in measure_uncertainty.estimators() if e.name in ("crossfit", "paper, 5 epochs")]
    rows = measure_uncertainty.measure_seed(data, 0, few)
    assert [row["measure"] for row in rows[:2]] == ["crossfit", "paper, 5 epochs"]
    assert all(set(row) == set(measure_uncertainty.COLUMNS) for row in rows)
    parts = {row["measure"]: np.array(row["values"].split(), dtype=float) for row in rows}
    middle = (parts["crossfit, held out only"] + parts["crossfit, seen only"]) / 2
    assert parts["crossfit"] == pytest.approx(middle, abs=1e-4)
