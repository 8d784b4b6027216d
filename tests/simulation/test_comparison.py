"""`Comparison`: verdicts, corrected tests and who is ranked, from numbers given by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from paired_comparison import compare_gains

import udjfl
from udjfl.methods import FedAvg, method
from udjfl.metrics import table_metrics
from udjfl.settings import DataSettings, TrainingSettings
from udjfl.simulation.method_summary import summarise_method
from udjfl.statistics import summarise
from udjfl.tasks import ACCURACY, SCORES, ScoreKind
from udjfl.training.result import FinishedRun
from udjfl.verdicts import collect_evidence

RAWLS, DESERT = method("rawls"), method("desert")
EGALITARIAN, AFL = method("egalitarian"), method("afl")


@udjfl.parameters
class Frugal(udjfl.Method):
    """A method that may cost half a point."""

    name: ClassVar[str] = "frugal"
    title: ClassVar[str] = "Frugal"
    paper: ClassVar[str] = "none"
    grade: ClassVar[Any] = "verified"
    theories = ("rawls",)

    budget: float = 0.5

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        return state, reports.deltas.mean(dim=0), {}


def test_each_row_has_a_verdict_for_each_theory_in_the_json() -> None:
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4), AFL: (-4, -4, -4, -4, -1)})
    document = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    fedavg, rawls, afl = document["methods"]
    assert fedavg["verdicts"] == []
    (verdict,) = rawls["verdicts"]
    assert set(verdict) == {"theory", "kind", "sentence", "numbers"}
    assert (verdict["theory"], verdict["kind"]) == ("rawls", "kept")
    assert verdict["numbers"]["gain"]["difference"] == pytest.approx(4.0)
    assert verdict["numbers"]["gain_others"]["difference"] == pytest.approx(0.0)
    assert afl["verdicts"][0]["kind"] == "levelled down"
    assert (document["margin"], document["least_advantaged"]) == (2.0, "uncertainty")


def test_a_promise_to_each_client_is_tested() -> None:
    """The mean gains, and client-1 ends 3 points below FedAvg."""
    gains = (-3, 0, 0, 0, 6)
    for text, kind in (("2", "over budget"), ("4", "kept at a price")):
        careful = method(f"udj:theory=rawls:budget=2:client_budget={text}")
        (verdict,) = compare_gains({careful: gains}).verdicts[1]
        assert verdict.kind == kind
    (verdict,) = compare_gains({method("udj:theory=rawls:budget=2"): gains}).verdicts[1]
    assert "limits" not in verdict.numbers


def test_the_table_of_metrics_is_one_family() -> None:
    one = compare_gains({RAWLS: (0, 1, 0, 2, 4)})
    two = compare_gains({RAWLS: (0, 1, 0, 2, 4), DESERT: (2, 0, 1, 0, -2)})
    keys = {metric.key for metric in table_metrics()}
    assert set(one.corrected_p) == {(1, key) for key in keys}
    assert set(two.corrected_p) == {(row, key) for row in (1, 2) for key in keys}
    test = one.rows[1].against_fedavg["mean_accuracy"]
    assert test.p is not None
    for comparison in (one, two):
        corrected = comparison.corrected_p[1, "mean_accuracy"]
        document = comparison.as_dict()["methods"][1]["against_fedavg"]
        assert corrected is not None
        assert corrected >= test.p
        assert document["mean_accuracy"]["p_holm"] == corrected
        assert document["slope"]["p_holm"] is None  # not in the table
    assert two.corrected_p[1, "mean_accuracy"] >= one.corrected_p[1, "mean_accuracy"]  # type: ignore[operator]


def test_untrained_methods_are_not_ranked() -> None:
    """EFFL with one step a round would be first in STD and Psi."""
    gains = {EGALITARIAN: (0, 0, 0, 1, 2), AFL: (-60, -56, -50, -40, -34)}
    comparison = compare_gains(gains)
    assert comparison.left_out == {2: "its mean is 48.0 below FedAvg's, budget 2"}
    for theory in ("egalitarian", "rawls"):
        order = comparison.as_dict()["rankings"][theory]["order"]
        assert [(row["label"], row["rank"]) for row in order] == [
            ("UDJ-FL egalitarian", 1),
            ("FedAvg", 2),
            ("AFL", None),
        ]
        assert order[-1]["left_out"] == comparison.left_out[2]
    wide = replace(comparison, margin=50.0)
    assert wide.left_out == {}
    assert wide.as_dict()["rankings"]["egalitarian"]["order"][0]["label"] == "AFL"
    guess = compare_gains({AFL: (-84, -80, -74, -64, -58)})
    assert guess.left_out == {1: "at chance, a mean of 10.0% with 10 classes"}


def test_a_method_has_its_own_budget() -> None:
    gains = {Frugal(): (-2, -2, -2, -2, 3), RAWLS: (-2, -2, -2, -2, 3)}  # mean -1
    comparison = compare_gains(gains)
    assert [row.budget for row in comparison.rows] == [None, 0.5, None]
    kinds = [verdict.kind for row in comparison.verdicts for verdict in row]
    assert kinds == ["over budget", "kept at a price"]
    assert comparison.left_out == {1: "its mean is 1.0 below FedAvg's, budget 0.5"}


def test_the_least_advantaged_are_an_input() -> None:
    comparison = compare_gains({RAWLS: (5, 0, 0, 0, 0)})
    assert comparison.verdicts[1][0].kind == "opposite"
    richest = {f"client-{number}": float(-number) for number in range(1, 6)}
    other = replace(comparison, least_advantaged=richest)
    assert other.verdicts[1][0].kind == "kept"
    assert json.loads(json.dumps(other.as_dict()))["least_advantaged"] == richest


CHOSEN_ALONE = "udj:theory=rawls:budget=2:advantage=alone"


def test_a_client_whose_accuracy_alone_is_unknown_is_not_the_least_advantaged() -> None:
    row = compare_gains({method(CHOSEN_ALONE): (0, 0, 0, 4, 0)}).rows[1]
    alone = {f"client-{number}": summarise([50.0 - number]) for number in range(1, 5)}
    row = replace(row, accuracy_alone={**alone, "client-5": summarise([None])})
    by = row.least_advantaged("uncertainty")
    assert isinstance(by, dict)
    assert math.isnan(by["client-5"])
    found = collect_evidence("rawls", row.runs, least_advantaged_by=by)
    assert found.beneficiaries == ("client-4",)
    nobody = collect_evidence("rawls", row.runs, least_advantaged_by=dict.fromkeys(by, math.nan))
    assert nobody.beneficiaries == ()


def test_the_least_advantaged_alone_are_those_that_the_method_chose_by() -> None:
    row = compare_gains({method(CHOSEN_ALONE): (0, 0, 0, 4, 0)}).rows[1]
    measured = {f"client-{n}": summarise([float(n)]) for n in range(1, 6)}
    given = {f"client-{n}": summarise([-float(n)]) for n in range(1, 6)}
    row = replace(row, accuracy_alone=measured, score_alone=given)
    by = row.least_advantaged("uncertainty")
    assert isinstance(by, dict)
    assert max(by, key=by.__getitem__) == "client-5"


@pytest.mark.parametrize(("score", "used"), [(ACCURACY, 70.0), (SCORES["auroc"].kind, 60.0)])
def test_a_promise_of_no_less_than_alone_is_judged_by_what_the_method_was_held_to(
    score: ScoreKind, used: float
) -> None:
    careful = method("udj:theory=rawls:budget=2:floor=alone")
    clients = {"a": 80.0, "b": 75.0}
    uncertainty = {"a": 0.1, "b": 0.2}
    fedavg = FinishedRun(
        method=FedAvg(),
        seed=0,
        metrics={},
        undefined={},
        client_scores=clients,
        uncertainty=uncertainty,
        score=score,
    )
    run = replace(
        fedavg,
        method=careful,
        accuracy_alone={"a": 60.0, "b": 60.0},
        score_alone={"a": 70.0, "b": 70.0},  # accuracies: no limit of another score
    )
    row = summarise_method(careful, {0: run}, {0: fedavg})
    assert list(row.runs.alone[0] or ()) == [used, used]
    older = summarise_method(careful, {0: replace(run, score_alone=None)}, {0: fedavg})
    assert list(older.runs.alone[0] or ()) == [60.0, 60.0]


def test_of_own_data_no_setting_of_data_is_shown() -> None:
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4)})
    shown = replace(comparison, own_data=True).as_dict()["settings"]
    of_training = TrainingSettings.flat_fields()
    assert not [n for n in DataSettings.flat_fields() if n in shown and n not in of_training]
    assert set(of_training) <= set(shown)
    assert "target" in comparison.as_dict()["settings"]


def test_the_json_says_if_all_methods_are_held_to_the_margin() -> None:
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4)})
    assert comparison.as_dict()["margin_for_all"] is False
    assert replace(comparison, margin_for_all=True).as_dict()["margin_for_all"] is True


def test_the_smallest_test_parts_and_no_sizes() -> None:
    comparison = compare_gains({RAWLS: (0, 0, 0, 0, 4)}, test_sizes=(500, 80, 90, 400, 300))
    assert comparison.rows[0].test_sizes == {
        "client-1": 500,
        "client-2": 80,
        "client-3": 90,
        "client-4": 400,
        "client-5": 300,
    }
    unknown = compare_gains({RAWLS: (0, 0, 0, 0, 4)}, test_sizes=None)
    assert unknown.rows[0].test_sizes is None
    assert unknown.rows[1].metrics["corrected_std"].mean is None
    assert unknown.verdicts[1][0].kind == "kept"
