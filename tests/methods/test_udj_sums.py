"""The step of UDJ-FL from sums over clients is that of `aggregate`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from udjfl.errors import ReportError
from udjfl.methods import METHODS, UDJ, FedAvg, Reports
from udjfl.methods.base import Additive

THEORIES = ("rawls", "egalitarian", "utilitarian", "desert")
POINTS = [
    *(UDJ.rawls(step=step) for step in ("paper", "authors", "safe", "calibrated", "normalised")),
    *(UDJ.egalitarian(step=step) for step in ("paper", "safe", "calibrated", "normalised")),
    *(UDJ.utilitarian(step=step) for step in ("paper", "safe", "calibrated", "normalised")),
    *(UDJ.desert(step=step) for step in ("paper", "authors", "safe", "calibrated", "normalised")),
    UDJ(beta=2.0, gamma=-0.5),
    UDJ(theory="rawls", beta=1000.0, gamma=2.5, step="paper"),
    UDJ(beta=(1.0, 2.0, 0.5, 3.0), gamma=0.3),
    UDJ(beta={"a": 1.0, "b": 2.0, "c": 0.5, "d": 3.0}, gamma=1.0, step="safe"),
    *(UDJ(theory=theory, cap=cap) for theory in THEORIES for cap in (0.7, 1.0)),
    UDJ(theory="rawls", beta=1000.0),  # without the cap, one client would have all weight
]


def reports_of(rows: list[int]) -> Reports:
    """Some of four clients; c's uncertainty is below the floor."""
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    columns: dict[str, list[Any]] = {
        "ids": ["a", "b", "c", "d"],
        "losses": [0.3, 2.0, 0.05, 1.1],
        "uncertainties": [0.2, 0.9, 0.001, 0.4],
        "steps": [3, 8, 1, 5],
        "client_indices": [0, 1, 2, 3],
    }
    picked = {name: [values[row] for row in rows] for name, values in columns.items()}
    return Reports(deltas=deltas[rows], lr=0.1, momentum=0.5, **picked)


@pytest.mark.parametrize("rule", POINTS, ids=lambda rule: rule.label)
def test_sums_of_client_terms_give_the_same_step(rule: UDJ) -> None:
    everyone = reports_of([0, 1, 2, 3])
    _, step, _ = rule.aggregate({}, everyone)
    form: Additive = rule.additive
    common = form.common(everyone)
    terms = [form.client_terms(reports_of([row]), common) for row in range(4)]
    sums = {name: torch.stack([own[name] for own in terms]).sum(dim=0) for name in terms[0]}
    torch.testing.assert_close(form.step_from_sums(sums, 0.1, 0.5), step, rtol=1e-10, atol=1e-14)


def test_a_client_that_leaves_out_what_the_rule_needs_is_named() -> None:
    rule, everyone = UDJ.rawls(), reports_of([0, 1, 2, 3])
    incomplete = Reports(["b"], [[1.0]], losses=[1.0], uncertainties=[0.2])
    with pytest.raises(ReportError, match="client 'b' in round 1: steps was left out"):
        rule.additive.client_terms(incomplete, rule.additive.common(everyone))


def test_terms_are_in_double_precision() -> None:
    rule, everyone = UDJ.rawls(), reports_of([0, 1, 2, 3])
    terms = rule.additive.client_terms(reports_of([1]), rule.additive.common(everyone))
    assert {value.dtype for value in terms.values()} == {torch.float64}


def test_the_scale_is_any_number() -> None:
    rule, everyone = UDJ.rawls(), reports_of([0, 1, 2, 3])
    common = {**rule.additive.common(everyone), "log_scale": 3.0}
    terms = rule.additive.client_terms(everyone, common)
    torch.testing.assert_close(
        rule.additive.step_from_sums(terms, 0.1, 0.5), rule.aggregate({}, everyone)[1]
    )


def test_by_hand() -> None:
    # Egalitarian, normalised: u-weighted mean. (0.2 * 1 + 0.6 * 3) / 0.8 = 2.5
    rule = UDJ.egalitarian(step="normalised")
    each = [
        Reports(["x"], [[value]], losses=[1.0], uncertainties=[u])
        for value, u in ((1.0, 0.2), (3.0, 0.6))
    ]
    common = {
        "largest_uncertainty": 0.6,
        "inverse_uncertainties": 1.0,
        "log_scale": 0.0,
        "log_cap": math.inf,
    }
    terms = [rule.additive.client_terms(report, common) for report in each]
    sums = {name: terms[0][name] + terms[1][name] for name in terms[0]}
    assert float(rule.additive.step_from_sums(sums, 0.1, 0.0)[0]) == pytest.approx(2.5)


def test_the_cap_by_hand() -> None:
    # Weights 8, 1, 1, 2 (egalitarian: u), so the first is lowered to the 4 of the others: log 4 is
    # the common cap. The mean of 1, 0, 0, 0 is then 4 / (4 + 4).
    rule = UDJ.egalitarian()
    shared: dict[str, Any] = {"losses": [1.0], "steps": [1]}
    each = [
        Reports([name], [[value]], uncertainties=[u], **shared)
        for name, value, u in (("a", 1.0, 8), ("b", 0.0, 1), ("c", 0.0, 1), ("d", 0.0, 2))
    ]
    everyone = Reports(
        list("abcd"), [[1.0], [0], [0], [0]], [1.0] * 4, uncertainties=[8.0, 1, 1, 2], steps=[1] * 4
    )
    common = rule.additive.common(everyone)
    assert common["log_cap"] == pytest.approx(math.log(4))
    terms = [rule.additive.client_terms(report, common) for report in each]
    sums = {name: sum(own[name] for own in terms) for name in terms[0]}
    assert float(rule.additive.step_from_sums(sums, 0.1, 0.0)[0]) == pytest.approx(0.5)
    assert UDJ(theory="egalitarian", cap=1.0).additive.common(everyone)["log_cap"] == math.inf


def test_a_budget_has_no_additive_form_yet() -> None:
    assert UDJ(theory="rawls", budget=2.0).additive is None


def test_other_methods_have_no_additive_form() -> None:
    assert FedAvg().additive is None
    assert [name for name, kind in METHODS.items() if "additive" in vars(kind)] == ["udj"]
