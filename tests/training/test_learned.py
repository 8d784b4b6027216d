"""Tables say aloud that nobody learned, and then give no verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import make_federation, train_briefly

import udjfl
from udjfl.report.saved_runs import compare_runs, find_runs
from udjfl.training.evaluation import Evaluation
from udjfl.training.federation_info import FederationInfo
from udjfl.training.learned import NOBODY_LEARNED, common_warning, warn_if_unlearned
from udjfl.uncertainty import LEARNED_NOTHING, ONE_CLASS, ClientEvidence, Uncertainty

IDS = ("a", "b")
# 60 + 70 of 200 test examples are of the first class: always that class is right in 65%.
COUNTS = torch.tensor([[60, 40], [70, 30]])
KNOWN = Uncertainty("crossfit", {"a": 0.3, "b": 0.4})


def warn(
    accuracy: float, loss: float = 1.0, uncertainty: Uncertainty = KNOWN, counts: Any = COUNTS
) -> str | None:
    info = FederationInfo(IDS, (9.0, 9.0), torch.zeros(2, 2), 2, test_counts=counts)
    evaluation = Evaluation(dict.fromkeys(IDS, loss), dict.fromkeys(IDS, accuracy))
    return warn_if_unlearned(info, evaluation, uncertainty)


def test_a_shared_model_is_compared_with_the_most_frequent_class() -> None:
    # Noise: sqrt(0.6 * 0.4 / 100 + 0.7 * 0.3 / 100) / 2 = 3.35 points; 65 + 1.645 * 3.35 = 70.5.
    assert warn(71.0) is None
    warning = warn(70.0)
    assert warning is not None
    assert warning.startswith(NOBODY_LEARNED)
    assert "70.0% on average, and always the same class 65.0%" in warning
    # The entropy of 65:35 is 0.647; a loss below that shows that something was learned.
    assert warn(65.0, loss=0.60) is None
    assert warn(65.0, loss=0.645) is not None
    assert warn(50.0, counts=None) is None  # the server does not know


def test_a_tiny_client_does_not_decide() -> None:
    """Two clients of three learned; the third has one test example, and it is wrong."""
    ids = ("a", "b", "c")
    counts = torch.tensor([[30, 30], [12, 12], [0, 1]])
    info = FederationInfo(ids, (9.0,) * 3, torch.zeros(3, 2), 2, test_counts=counts)
    evaluation = Evaluation({"a": 0.3, "b": 0.5, "c": 9.0}, {"a": 93.3, "b": 79.2, "c": 0.0})
    known = Uncertainty("crossfit", dict.fromkeys(ids, 0.3))
    assert warn_if_unlearned(info, evaluation, known) is None


def test_a_tiny_client_does_not_decide_a_regression() -> None:
    info = FederationInfo(
        ("a", "b"), (9.0, 9.0), torch.zeros(2, 1), 1, test_sizes=(98, 2), labels_are_numbers=True
    )
    for explained, warned in ((60.0, False), (0.5, True)):
        evaluation = Evaluation({"a": 1.0, "b": 1.0}, {"a": explained, "b": -50_000.0})
        assert (warn_if_unlearned(info, evaluation, KNOWN) is not None) == warned


def test_one_class_everywhere_cannot_be_learned_and_is_not_blamed() -> None:
    assert warn(100.0, counts=torch.tensor([[10, 0], [10, 0]])) is None


def make_evidence(*flags: str, loss: float | None = 0.6) -> ClientEvidence:
    return ClientEvidence(50, 0.6, 0.6, held_out_loss=loss, flags=flags)


@pytest.mark.parametrize(
    ("second", "warned"),
    [
        (make_evidence(LEARNED_NOTHING), True),
        (make_evidence(ONE_CLASS), True),  # it can tell nothing
        (make_evidence(), False),
    ],
)
def test_clients_that_learned_nothing_alone(second: ClientEvidence, warned: bool) -> None:
    evidence = {"a": make_evidence(LEARNED_NOTHING), "b": second}
    warning = warn(90.0, uncertainty=Uncertainty("crossfit", KNOWN.values, evidence=evidence))
    assert (warning is not None) == warned


def test_uncertainties_near_the_highest_possible() -> None:
    high = {"a": 0.99 * math.log(2), "b": math.log(2)}
    warning = warn(90.0, uncertainty=Uncertainty("paper", high))
    assert warning is not None
    assert "ln(2) = 0.693" in warning
    assert warn(90.0, uncertainty=Uncertainty("given", high)) is None  # in what unit, who knows
    assert warn(90.0, uncertainty=Uncertainty("paper", high | {"a": 0.5})) is None


def test_a_comparison_is_warned_if_most_seeds_are() -> None:
    warning = f"{NOBODY_LEARNED} (why)"
    assert common_warning({1: None, 2: warning, 3: warning}) == (
        f"{NOBODY_LEARNED} (on 2 of 3 seeds; seed 2: why)"
    )
    assert common_warning({0: warning}) == warning
    assert common_warning({0: warning, 1: None}) is None


def make_unscaled() -> udjfl.Federation:
    """Make clients with a column whose numbers are so large that nothing can be learned."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, 3))
        y = (x[:, 0] > 0).astype(int)
        return np.column_stack([x, 1e6 * rng.normal(size=n)]), y

    return udjfl.Federation.from_arrays(
        {name: (*draw(80), *draw(50)) for name in "abc"}, test=draw(40)
    )


def test_unscaled_columns_give_a_warning_and_no_verdict(tmp_path: Path) -> None:
    comparison = udjfl.compare(
        make_unscaled(), "rawls,desert", "logistic", seeds=2, rounds=5, lr=1e-9, out=tmp_path
    )
    assert comparison.warning is not None
    assert comparison.warning.startswith(NOBODY_LEARNED)
    assert not any(comparison.verdicts)
    document = comparison.as_dict()
    assert document["warning"] == comparison.warning
    assert all(not row["verdicts"] for row in document["methods"])
    again = compare_runs(find_runs([tmp_path]))
    assert again.warning == comparison.warning


def test_a_run_that_learned_has_no_warning() -> None:
    result = train_briefly(make_federation(n=200), rounds=30, uncertainty_epochs=30)
    assert result.warning is None


def test_python_says_aloud_that_nobody_learned(caplog: pytest.LogCaptureFixture) -> None:
    """As the command line does: in the log, and wherever a result is shown."""
    data = make_unscaled()
    result = udjfl.simulate(data, "fedavg", "logistic", rounds=2, lr=1e-9)
    (record,) = caplog.records
    assert record.getMessage() == result.warning
    comparison = udjfl.compare(data, "rawls", "logistic", seeds=2, rounds=2, lr=1e-9)
    assert caplog.records[-1].getMessage() == comparison.warning
    for shown in (result, comparison):
        assert f"warning='{NOBODY_LEARNED} (" in repr(shown)
        assert f"Warning: {NOBODY_LEARNED} (" in shown._repr_html_()
