"""FedMGDA+: by hand, mean direction, clients without a direction, bounds, and where it rests."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, close, diagnostics_of, make_reports, step_of

from udjfl.errors import ReportError
from udjfl.methods.base import Reports
from udjfl.methods.fedmgda import FedMGDA

close = partial(close, rtol=0, atol=1e-6)

number = st.floats(-3, 3, width=32, allow_subnormal=False)
tables = st.tuples(st.integers(1, 7), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(
        st.lists(number, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    )
)


def reports_of(deltas: Any, **changes: Any) -> Reports:
    return make_reports(deltas, **{"sizes": [1 + i for i in range(len(deltas))], **changes})


# u = (1, 0) and (3/5, 4/5), <u_a, u_b> = 3/5, whatever the lengths 2 and 10.
SKEW = [[2.0, 0.0], [6.0, 8.0]]


@pytest.mark.parametrize(
    ("params", "weights", "step"),
    [
        # |l u_a + (1-l) u_b|^2 is symmetric in the two: l = 1/2, d = (8/10, 4/10).
        ({"epsilon": 1.0}, (1 / 2, 1 / 2), (0.8, 0.4)),
        ({"epsilon": 1.0, "server_lr": 0.5}, (1 / 2, 1 / 2), (0.4, 0.2)),
        # l0 = 1/3, 2/3: as near to 1/2 as epsilon lets them. 13/30 (1, 0) + 17/30 (3/5, 4/5) =
        # (130+102, 136)/300.
        ({"epsilon": 0.1, "l0": "size"}, (13 / 30, 17 / 30), (232 / 300, 136 / 300)),
        ({"epsilon": 0.0, "l0": "size"}, (1 / 3, 2 / 3), (1 / 3 + 2 / 5, 8 / 15)),
    ],
)
def test_by_hand(params, weights, step):
    reports = reports_of(SKEW)
    close(diagnostics_of(FedMGDA(**params), reports)["weight"], weights)
    close(step_of(FedMGDA(**params), reports), step)


def test_three_clients_by_hand():
    # u = (1, 0), (1, 0), (0, 1): free weights 1/4, 1/4, 1/2; within 1/12 of 1/3 the third has at
    # most 5/12.
    deltas = [[1.0, 0.0], [5.0, 0.0], [0.0, 3.0]]
    close(step_of(FedMGDA(epsilon=1.0), reports_of(deltas)), (1 / 2, 1 / 2))
    close(step_of(FedMGDA(epsilon=1 / 12), reports_of(deltas)), (7 / 12, 5 / 12))


def test_diagnostics_by_hand():
    diagnostics = diagnostics_of(FedMGDA(epsilon=1.0, server_lr=7.0), reports_of(SKEW))
    close(diagnostics["update_length"], (2.0, 10.0))
    close(diagnostics["common_length"], math.sqrt(0.8))


@EXAMPLES
@given(tables)
def test_epsilon_zero_is_the_mean_direction(deltas):
    """That is FedAvg, if all updates are as long as server_lr."""
    reports = reports_of(deltas)
    units = [row / row.norm() for row in reports.deltas if row.norm() > 0]
    expected = (
        torch.stack(units).mean(dim=0)
        if units
        else torch.zeros(reports.deltas.shape[1], dtype=torch.float64)
    )
    close(step_of(FedMGDA(epsilon=0.0, server_lr=2.0), reports), 2 * expected, atol=1e-12)


@EXAMPLES
@given(tables, st.sampled_from([0.05, 0.5, 1.0]), st.sampled_from(["uniform", "size"]))
def test_properties(deltas, epsilon, l0):
    """Weights keep their bounds; steps are at most server_lr, and downhill for free weights."""
    reports = reports_of(deltas)
    rule = FedMGDA(epsilon=epsilon, l0=l0)
    _, step, diagnostics = rule.aggregate({}, reports)
    assert torch.isfinite(step).all()
    assert step.norm() <= 1 + 1e-9
    lengths = reports.deltas.norm(dim=1)
    moving = lengths > 0
    assert torch.equal(diagnostics["weight"] > 0, (diagnostics["weight"] > 0) & moving)
    if not moving.any():
        assert not step.any()
        return
    start = (
        reports.sizes[moving]
        if l0 == "size"
        else torch.ones(int(moving.sum()), dtype=torch.float64)
    )
    weight = diagnostics["weight"][moving]
    assert ((weight - start / start.sum()).abs() <= epsilon + 1e-9).all()
    assert weight.sum().item() == pytest.approx(1)
    if epsilon == 1:
        along = (reports.deltas[moving] / lengths[moving, None]) @ step
        assert (along >= step @ step - 1e-9).all()


@EXAMPLES
@given(tables, st.data())
def test_lengths_of_updates_do_not_count(deltas, data):
    factors = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(deltas), max_size=len(deltas)))
    scaled = np.array(deltas) * np.array(factors)[:, None]
    for epsilon in (0.1, 1.0):
        close(
            step_of(FedMGDA(epsilon=epsilon), reports_of(scaled)),
            step_of(FedMGDA(epsilon=epsilon), reports_of(deltas)),
            atol=1e-4,
        )


def test_opposite_clients_stay_where_they_are():
    assert step_of(FedMGDA(epsilon=1.0), reports_of([[3.0, 0.0], [-1.0, 0.0]])).norm() < 1e-6


def test_clients_alike_give_a_singular_matrix_and_step_their_way():
    diagnostics = diagnostics_of(FedMGDA(), reports_of([[3.0, 4.0]] * 5))
    close(diagnostics["weight"], [0.2] * 5)
    close(step_of(FedMGDA(), reports_of([[3.0, 4.0]] * 5)), (0.6, 0.8))


def test_more_clients_than_parameters():
    reports = reports_of(np.random.default_rng(0).normal(size=(50, 2)))
    assert (
        step_of(FedMGDA(epsilon=1.0), reports).norm() < 1e-5
    )  # directions all around: 0 is in their hull


def test_a_client_without_direction_is_left_out():
    with_still = reports_of([[2.0, 0.0], [0.0, 0.0], [6.0, 8.0]], sizes=[1, 7, 2])
    for params in ({}, {"epsilon": 0.1, "l0": "size"}):
        rule = FedMGDA(**params)
        close(
            diagnostics_of(rule, with_still)["weight"][[0, 2]],
            diagnostics_of(rule, reports_of(SKEW))["weight"],
            atol=1e-12,
        )
        assert diagnostics_of(rule, with_still)["weight"][1] == 0
        close(step_of(rule, with_still), step_of(rule, reports_of(SKEW)), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_updates_give_no_step(dtype):
    reports = Reports(ids=["a", "b"], deltas=torch.zeros(2, 3, dtype=dtype))
    _, step, diagnostics = FedMGDA().aggregate({}, reports)
    assert torch.equal(step, torch.zeros(3, dtype=dtype))
    assert all(torch.isfinite(value).all() for value in diagnostics.values())


def test_updates_too_short_to_be_squared_have_no_direction_and_tiny_ones_do():
    close(step_of(FedMGDA(epsilon=1.0), reports_of([[1e-200, 0.0], [0.0, 1.0]])), (0.0, 1.0))
    close(step_of(FedMGDA(epsilon=1.0), reports_of([[1e-40, 0.0], [0.0, 1.0]])), (0.5, 0.5))


def test_the_rate_decays_with_the_rounds():
    rule = FedMGDA(server_lr=2.0, decay=0.5)
    lengths = [float(step_of(rule, reports_of([[3.0, 4.0]], round=t)).norm()) for t in (1, 2, 3, 7)]
    assert lengths == pytest.approx([2, 2 / 1.5, 1, 0.5])


def test_comes_to_rest_at_a_pareto_point():
    """With losses |theta - c|^2 / 2 the Pareto points are those between the centres c."""
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    model = torch.tensor([1.0, 3.0], dtype=torch.float64)
    rule = FedMGDA(epsilon=1.0, decay=0.1)
    for t in range(1, 401):
        model = model - step_of(rule, reports_of(0.1 * (model - centres).numpy(), round=t))
    assert abs(float(model[1])) < 0.05
    assert 0.2 < float(model[0]) < 3.8


def test_sizes_are_needed_only_for_size():
    deltas = [[1.0, 0.0], [0.0, 1.0]]
    close(step_of(FedMGDA(), reports_of(deltas, sizes=None)), (0.5, 0.5))
    with pytest.raises(ReportError, match="sizes was left out"):
        step_of(FedMGDA(l0="size"), reports_of(deltas, sizes=None))


def test_only_the_clients_that_report_count():
    some = reports_of(SKEW, client_indices=[3, 8], round=4)
    assert torch.equal(step_of(FedMGDA(), some), step_of(FedMGDA(), reports_of(SKEW)))
