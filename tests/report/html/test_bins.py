"""Clients one by one, or in ten groups of similar uncertainty."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import make_federation

import udjfl
from udjfl.report.html.bins import GROUPS, SHARES, quantiles, split_by_uncertainty
from udjfl.report.html.material import Material


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_quantiles_are_numpys(values: list[float]) -> None:
    assert quantiles(values) == pytest.approx(list(np.quantile(values, SHARES)), abs=1e-9)


def test_few_clients_stand_alone(material: Material) -> None:
    bins = split_by_uncertainty(material, material.rows[1])
    assert [one.label for one in bins] == material.by_uncertainty()
    changes = dict(zip(material.by_uncertainty(), bins, strict=True))
    before, after = (row.client_scores for row in material.rows[:2])
    for client, one in changes.items():
        assert one.change == pytest.approx((after[client].mean or 0) - (before[client].mean or 0))


def test_many_clients_are_grouped() -> None:
    federation = make_federation(n_clients=30, n=6)
    comparison = udjfl.compare(
        federation, ["fedavg", "rawls"], seeds=2, model="logistic", rounds=1, uncertainty_epochs=1
    )
    material = Material("x", comparison.seeds, comparison.rows, comparison, "")
    bins = split_by_uncertainty(material, comparison.rows[1])
    assert len(bins) == GROUPS
    known = [one.uncertainty for one in bins if one.uncertainty is not None]
    assert known == sorted(known)
    mean = statistics.fmean(one.change for one in bins)
    before, after = (row.metrics["mean_accuracy"].mean for row in comparison.rows)
    assert before is not None
    assert after is not None
    assert mean == pytest.approx(after - before)
