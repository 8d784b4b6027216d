"""Scores that are judged in place of accuracy: values, directions, intervals, whole comparisons."""

from __future__ import annotations

import doctest
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from small_runs import make_federation

import udjfl
from udjfl.metrics import METRICS, Outcome
from udjfl.report.saved_runs import compare_runs, find_runs, read_run
from udjfl.settings import TrainingSettings
from udjfl.tasks import ACCURACY, SCORES, scores, wilson_interval
from udjfl.tasks.scores import make_score
from udjfl.training.evaluation import Evaluation
from udjfl.training.judging import check_score

OPTIONS: dict[str, Any] = {"rounds": 12, "uncertainty_epochs": 20}


def mean_error(labels: Any, predicted: Any) -> float:
    return float(np.abs(labels - predicted).mean())


def mean_rightness(labels: Any, predicted: Any) -> float:
    return 1 - mean_error(labels, predicted)


mean_error.better = -1  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def binary() -> udjfl.Federation:
    return make_federation(n=80, classes=2)


def test_docstring_examples() -> None:
    result = doctest.testmod(scores)
    assert (result.failed, result.attempted) == (0, 9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=2, max_size=30))
def test_two_classes_against_scikit_learn(rows: list[tuple[int, int]]) -> None:
    y, p = np.array([row[0] for row in rows]), np.array([row[1] / 10 for row in rows])
    assert scores.accuracy(y, p) == pytest.approx(sklearn_metrics.accuracy_score(y, p > 0.5))
    columns = np.stack([1 - p, p], axis=1)
    loss = sklearn_metrics.log_loss(y, np.clip(columns, 1e-12, 1), labels=[0, 1])
    assert scores.log_loss(y, p) == pytest.approx(loss, rel=1e-6)
    if len(set(y)) == 2:
        assert scores.auroc(y, p) == pytest.approx(sklearn_metrics.roc_auc_score(y, p))
        assert scores.auprc(y, p) == pytest.approx(sklearn_metrics.average_precision_score(y, p))
        assert scores.f1(y, p) == pytest.approx(sklearn_metrics.f1_score(y, p > 0.5))
        balanced = sklearn_metrics.balanced_accuracy_score(y, p > 0.5)
        assert scores.balanced_accuracy(y, p) == pytest.approx(balanced)
    else:
        assert np.isnan(scores.auroc(y, p))


def test_several_classes_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    theirs = sklearn_metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert scores.auroc(y, p) == pytest.approx(theirs)
    chosen = p.argmax(axis=1)
    assert scores.f1(y, p) == pytest.approx(sklearn_metrics.f1_score(y, chosen, average="macro"))


def test_wilson_against_scipy() -> None:
    from scipy import stats

    for right, n in ((0, 10), (7, 10), (10, 10), (83, 120)):
        low, high = stats.binomtest(right, n).proportion_ci(method="wilson")
        expected = pytest.approx((100 * low, 100 * high), abs=1e-4)
        assert wilson_interval(100 * right / n, n) == expected


def test_a_wrong_score_is_named() -> None:
    with pytest.raises(udjfl.SettingsError, match="rmse is not for labels that are classes"):
        make_score("rmse", "classification")
    with pytest.raises(udjfl.SettingsError, match="Did you mean 'auroc'"):
        make_score("aurok", "binary")
    assert make_score("auto", "regression").kind.name == "r2"
    assert make_score(mean_error, "binary").kind.better == -1


def test_measures_follow_the_direction_of_the_score() -> None:
    """Errors 1, 2, 4 of clients with rising uncertainty; under FedAvg 1, 3, 3."""
    outcome = Outcome(
        [1.0, 2.0, 4.0], [0.1, 0.2, 0.3], [1.0, 3.0, 3.0], 2.5, better=-1, is_share=False
    )
    values = {key: metric.evaluate(outcome)[0] for key, metric in METRICS.items()}
    assert values["worst_accuracy"] == 4.0
    assert values["worst_tenth"] == 4.0
    assert values["best_tenth"] == 1.0
    assert values["mean_accuracy"] == pytest.approx(7 / 3)
    assert values["accuracy_most_uncertain"] == 4.0
    # Gains 0, 1, -1 against FedAvg: -1 - (0 + 1) / 2.
    assert values["psi"] == pytest.approx(-1.5)
    assert values["gain_least_advantaged"] == -1.0
    assert values["pearson_r"] < 0  # the more uncertain, the worse served
    assert values["gap"] == 3.0
    assert values["corrected_std"] is None
    plain = Outcome([-1.0, -2.0, -4.0], [0.1, 0.2, 0.3], [-1.0, -3.0, -3.0], -2.5)
    for key in ("psi", "pearson_r", "slope", "gap", "std"):
        assert METRICS[key].evaluate(plain)[0] == values[key]
    assert METRICS["mean_accuracy"].better_for(-1) == -1
    assert METRICS["psi"].better_for(-1) == 1


@pytest.mark.parametrize("name", ["auroc", "auprc", "f1", "balanced-accuracy", "log-loss"])
def test_a_run_judges_what_its_model_predicts(name: str, binary: udjfl.Federation) -> None:
    result = udjfl.simulate(binary, "rawls", "logistic", score=name, **OPTIONS)
    assert result.score.name == name
    assert result.client_interval is not None
    for client in binary.clients:
        predicted = result.model_for(client.id)(client.test.x).softmax(dim=1)[:, 1]
        expected = SCORES[name].compute(client.test.y.numpy(), predicted.detach().double().numpy())
        assert result.client_scores[client.id] == pytest.approx(expected, abs=1e-4)
        low, high = result.client_interval[client.id]
        assert low <= high
    assert set(result.too_small) == set(binary.ids)  # 10 to 12 test examples
    assert result.accuracy_alone is not None


def test_accuracy_by_name_changes_nothing(binary: udjfl.Federation) -> None:
    plain = udjfl.simulate(binary, "rawls", "logistic", **OPTIONS)
    named = udjfl.simulate(binary, "rawls", "logistic", score="accuracy", **OPTIONS)
    assert (named.client_scores, named.metrics) == (plain.client_scores, plain.metrics)
    assert plain.client_interval is not None
    for client in binary.clients:
        size, value = len(client.test), plain.client_scores[client.id]
        assert plain.client_interval[client.id] == wilson_interval(value, size)


def test_a_comparison_by_a_score_where_lower_is_better_mirrors_the_higher_one(
    binary: udjfl.Federation,
) -> None:
    """1 - e instead of e: gains, verdict kinds, ranks and who is better off alone are the same."""
    methods = "rawls,desert"
    down, up = (
        udjfl.compare(binary, methods, "logistic", seeds=5, score=score, **OPTIONS)
        for score in (mean_error, mean_rightness)
    )
    for low, high in zip(down.rows, up.rows, strict=True):
        for key in ("psi", "pearson_r", "std", "gap"):
            assert low.metrics[key].mean == pytest.approx(high.metrics[key].mean, abs=1e-9)
        worst = low.metrics["worst_accuracy"].mean
        assert worst is not None
        assert 1 - worst == pytest.approx(high.metrics["worst_accuracy"].mean)
    assert down.verdicts
    for ours, theirs in zip(down.verdicts, up.verdicts, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            # A point is a hundredth of FedAvg's mean, which differs: signs and p do not.
            p = one.numbers["measure"]["p"], other.numbers["measure"]["p"]
            assert p[0] == pytest.approx(p[1], rel=1e-6)
            gains = one.numbers["client_gains"], other.numbers["client_gains"]
            assert {k: v > 0 for k, v in gains[0].items()} == {
                k: v > 0 for k, v in gains[1].items()
            }
    ranks = [
        [entry["label"] for entry in c.as_dict()["rankings"]["egalitarian"]["order"]]
        for c in (down, up)
    ]
    assert set(ranks[0]) == set(ranks[1])
    assert down.as_dict()["rankings"]["utilitarian"]["better"] == "lower"


def test_folders_keep_the_score(tmp_path: Path, binary: udjfl.Federation) -> None:
    options = {**OPTIONS, "score": "log-loss"}
    comparison = udjfl.compare(binary, "rawls", "logistic", seeds=2, out=tmp_path / "c", **options)
    again = compare_runs(find_runs([tmp_path / "c"]))
    assert again.score == comparison.score
    assert again.rows[1].metrics == comparison.rows[1].metrics
    fedavg = udjfl.simulate(binary, "fedavg", "logistic", out=tmp_path / "f", **OPTIONS)
    assert read_run(tmp_path / "f").client_interval == fedavg.client_interval
    with pytest.raises(udjfl.SettingsError, match="has accuracy as score, this run log-loss"):
        udjfl.simulate(binary, "rawls", "logistic", reference=fedavg, **options)


def test_a_score_that_is_not_defined_is_refused_before_training() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        name: (rng.normal(size=(20, 3)), rng.integers(0, 2, 20), rng.normal(size=(9, 3)), labels)
        for name, labels in (("a", [0, 1, 0, 1, 0, 1, 0, 1, 0]), ("b", [1] * 9))
    }
    federation = udjfl.Federation.from_arrays(arrays, test=(rng.normal(size=(4, 3)), [0, 1, 0, 1]))
    with pytest.raises(udjfl.DataError, match="client 'b': AUROC is not defined for its test part"):
        udjfl.simulate(federation, "fedavg", "logistic", score="auroc", rounds=1)


def correlation(labels: Any, predicted: Any) -> float:
    """Return the correlation; NaN where either is constant."""
    if np.ptp(labels) == 0 or np.ptp(predicted) == 0:
        return float("nan")
    return float(np.corrcoef(labels, predicted)[0, 1])


def test_a_score_without_a_value_for_equal_predictions_is_allowed() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)
    arrays = {name: (x + i, y, x + i + 9, y) for i, name in enumerate("ab")}
    federation = udjfl.Federation.from_arrays(arrays, test=(x + 99, y))
    settings = TrainingSettings(score=correlation)
    check_score(federation, settings)
    arrays["b"] = (*arrays["b"][:3], np.ones(20, dtype=np.int64))
    constant = udjfl.Federation.from_arrays(arrays, test=(x + 99, y))
    with pytest.raises(udjfl.DataError, match=r"client 'b': .* whose labels are all the same"):
        check_score(constant, settings)


def test_regression_is_judged_by_rmse(binary: udjfl.Federation) -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[Any, Any]:
        x = rng.normal(size=(n, 3))
        return x, x[:, 0] + 0.3 * rng.normal(size=n)

    federation = udjfl.Federation.from_arrays(
        {name: (*draw(80), *draw(40)) for name in "ab"}, test=draw(30), task="regression"
    )
    result = udjfl.simulate(
        federation, "fedavg", "logistic", score="rmse", rounds=30, lr=0.02, uncertainty_lr=0.02
    )
    assert result.score.better == -1
    assert result.metrics["worst_accuracy"] == max(result.client_scores.values())
    assert 0.2 < result.client_scores["a"] < 0.6  # the noise is 0.3


def test_without_another_score_nothing_is_judged_beside_accuracy() -> None:
    assert Evaluation({}, {}).judged is None


def test_points_are_percentages_or_hundredths_of_the_references_mean() -> None:
    assert ACCURACY.points_factor([20.0, 30.0]) == 1
    assert SCORES["rmse"].kind.points_factor([2.0, 6.0]) == 25  # a mean of 4 is 100 points
    assert SCORES["rmse"].kind.points_factor([]) == SCORES["rmse"].kind.points_factor([0.0]) == 1


def test_what_a_score_of_ones_own_says_of_labels_stays_with_the_data() -> None:
    def weighted(labels: Any, predicted: Any) -> float:
        raise ValueError(f"no weight for the label {labels[0]}")

    score = make_score(weighted, "classification")
    with pytest.raises(udjfl.DataError, match="cannot be computed: no weight for the label 7") as e:
        score.compute(np.array([7]), np.array([[1.0]]))
    assert e.value.without_values == "score: weighted cannot be computed: …"


def test_a_score_without_a_value_after_training_names_the_clients() -> None:
    seen: list[float] = []

    def late(labels: Any, predicted: Any) -> float:
        """Have a value in the check before training only, which is once for each client."""
        seen.append(1.0)
        return 1.0 if len(seen) <= 3 else math.nan

    words = r"score: late is not a number for client-1, client-2, .* choose another score"
    with pytest.raises(udjfl.SettingsError, match=words):
        udjfl.simulate(
            make_federation(), "fedavg", "logistic", rounds=1, score=late, uncertainty_epochs=1
        )


def test_a_score_of_ones_own_gets_labels_in_their_unit() -> None:
    def relative(labels: Any, predicted: Any) -> float:
        assert labels.min() >= 100
        return float(np.mean(np.abs(predicted - labels) / labels))

    rng = np.random.default_rng(0)
    pandas = pytest.importorskip("pandas")
    frames = {
        name: pandas.DataFrame({"x": rng.normal(size=40), "cost": rng.uniform(100, 900, 40)})
        for name in ("north", "south")
    }
    federation = udjfl.Federation.from_frames(frames, target="cost", task="regression")
    check_score(federation, TrainingSettings(task="regression", score=relative))
