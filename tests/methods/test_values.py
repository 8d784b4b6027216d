"""Values that a method receives and returns: what they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from method_helpers import make_reports

from udjfl.methods.values import Plan, ServedModels, Setup


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_setup_of_reports_begins_at_a_model_of_zeros(dtype: torch.dtype) -> None:
    reports = make_reports([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype, sizes=[7, 8])
    setup = Setup.of(reports)
    assert setup.ids == ("c0", "c1")
    assert setup.sizes.tolist() == [7, 8]
    assert setup.model.tolist() == [0.0, 0.0, 0.0]
    assert setup.model.dtype == dtype
    assert setup.layers == (3,)
    assert len(setup) == 2


def test_a_setup_of_reports_begins_at_their_model_where_they_have_one() -> None:
    model = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert Setup.of(make_reports([[3.0, 4.0]], model=model)).model.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"participation": 0.5}, False),
        ({"drop_out": 0.1}, False),
        ({"participation": 0.5, "drop_out": 0.1}, False),
    ],
)
def test_everyone_answers_if_all_are_asked_and_none_drops_out(
    changes: dict[str, Any], expected: bool
) -> None:
    setup = Setup(["a"], torch.ones(1), torch.zeros(1), **changes)
    assert setup.everyone_answers is expected


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(), False),
        (Plan(multipliers=torch.ones(1), one_full_step=True), False),
        (Plan(anchor=torch.ones(1)), False),  # at mu = 0 it draws nothing towards it
        (Plan(personal=torch.ones(1, 1), personal_mu=1.0), False),
        (Plan(gradient_share=0.5), True),
        (Plan(mu=0.1), True),
        (Plan(shift=torch.zeros(1)), True),
    ],
)
def test_a_plan_tells_whether_it_corrects_gradients(plan: Plan, expected: bool) -> None:
    assert plan.corrects_gradients is expected


def test_offsets_are_each_clients_own() -> None:
    models, shares = torch.zeros(1, 2), torch.ones(2, 1)
    assert ServedModels(models, shares).offset(1) is None
    offsets = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert ServedModels(models, shares, offsets).offset(1).tolist() == [3.0, 4.0]
