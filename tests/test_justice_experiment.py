"""The experiments on theories: weights and noise by hand, and the page is that of the files."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from small_runs import make_federation

import udjfl
from udjfl.data import Examples
from udjfl.methods import Reports

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
sys.path.insert(0, str(EXPERIMENTS))  # the scripts' own modules
import justice_page  # noqa: E402
import measure_justice  # noqa: E402
import measure_noise  # noqa: E402
import measure_tuning  # noqa: E402
import search_weights  # noqa: E402

sys.path.remove(str(EXPERIMENTS))


def test_the_page_is_that_of_the_files() -> None:
    settings = {name: study.settings for name, study in measure_justice.STUDIES.items()}
    page = (EXPERIMENTS / "JUSTICE.md").read_text(encoding="utf-8")
    assert justice_page.make_page(settings) == page


def test_the_table_of_tuning_is_that_of_the_files() -> None:
    page = (EXPERIMENTS.parent / "docs" / "tuning.md").read_text(encoding="utf-8")
    assert measure_tuning.markdown() in page
    assert measure_tuning.put_table(page) == page


@pytest.mark.parametrize(("n_clients", "count"), [(2, 40), (4, 48), (5, 64)])
def test_points_are_shares_towards_without_and_between_clients(n_clients: int, count: int) -> None:
    points = search_weights.make_points(n_clients, count)
    assert len(points) == count
    for point in points:
        assert len(point) == n_clients
        assert min(point) >= 0
        assert math.isclose(sum(point), 1, abs_tol=1e-3)
    for client in range(n_clients):
        assert tuple(float(other == client) for other in range(n_clients)) in points
        assert any(point[client] == 0 and sum(share > 0 for share in point) for point in points)


def test_fixed_weights_go_by_uncertainty() -> None:
    rule = search_weights.FixedWeights(shares=(0.7, 0.2, 0.1))
    reports = Reports(["a", "b", "c"], torch.eye(3), uncertainties=[0.2, 0.9, 0.4])
    _, step, _ = rule.aggregate({}, reports)
    assert step.tolist() == pytest.approx([0.1, 0.7, 0.2])


def test_equal_weights_are_fedavg_of_equal_clients() -> None:
    rule = search_weights.FixedWeights(shares=(1 / 3,) * 3)
    settings = {"rounds": 2, "hidden": 5, "uncertainty_epochs": 2}
    federation = make_federation()
    ours = udjfl.simulate(federation, rule, **settings)
    theirs = udjfl.simulate(federation, "fedavg:weights=uniform", **settings)
    assert ours.client_scores == theirs.client_scores


def test_intervals_hold_for_all_rows_at_once() -> None:
    # Mean 2, s = sqrt(2 / 3), n = 4: 3.182 * 0.816 / 2 = 1.299 to both sides; more at 99%.
    low, high = search_weights.interval([1.0, 2.0, 2.0, 3.0], 0.95)
    assert (low, high) == pytest.approx((2 - 1.299, 2 + 1.299), abs=1e-3)
    assert search_weights.interval([1.0, 2.0, 2.0, 3.0], 0.99)[0] < low


def test_noise_of_examples_and_of_tracks_by_hand() -> None:
    values = torch.tensor([1.0, 1.0, -1.0, 0.0, 0.0, -1.0], dtype=torch.float64)
    part = Examples(torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64))
    # Mean 0, sum of squares 4: variance 4/5, of the mean 4/5/6.
    assert measure_noise.variance_of_mean(values, part) == pytest.approx(4 / 30)
    # Tracks of two have the sums 2, -1, -1: 6 * 3/2 / 36.
    tracks = Examples(part.x, part.y, together=torch.tensor([5, 5, 2, 2, 9, 9]))
    assert measure_noise.variance_of_mean(values, tracks) == pytest.approx(6 * 1.5 / 36)


@pytest.mark.parametrize("marker", [measure_tuning.FIRST, measure_tuning.AFTER])
def test_a_table_is_put_between_its_markers_only(marker: str) -> None:
    page = f"Before\n{measure_tuning.FIRST}\n{measure_tuning.AFTER} after"
    for wrong in (page.replace(marker, ""), page + marker):
        with pytest.raises(ValueError, match="the table needs it once"):
            measure_tuning.put_table(wrong)
    with pytest.raises(ValueError, match="belongs after it"):
        measure_tuning.put_table(measure_tuning.AFTER + measure_tuning.FIRST)
