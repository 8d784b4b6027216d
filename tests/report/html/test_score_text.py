"""Values of the score that is judged: decimals, units, and axes on which better is up or right."""

from __future__ import annotations

import pytest

from udjfl.metrics import METRICS
from udjfl.report.html.score_text import ScoreText, axis_title, is_reversed
from udjfl.report.judged_metrics import for_score
from udjfl.tasks import ACCURACY, SCORES, ScoreKind

LOG_LOSS, RMSE, AUROC, R2 = (SCORES[n].kind for n in ("log-loss", "rmse", "auroc", "r2"))


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (ACCURACY, 81.26, "81.3%"),
        (AUROC, 81.26, "81.3%"),
        (R2, -12.34, "-12.3%"),
        (LOG_LOSS, 0.31234, "0.312"),
        (RMSE, 0.00031234, "0.000312"),
        (RMSE, 52.345, "52.3"),
        (RMSE, 12345.6, "12346"),
    ],
)
def test_three_digits_tell_something(kind: ScoreKind, value: float, shown: str) -> None:
    assert ScoreText.for_values(kind, [value]).value(value) == shown


def test_an_axis_ends_where_the_score_does() -> None:
    assert ScoreText(ACCURACY).domain([50.0, 100.0]) == [48.0, 100.0]
    assert ScoreText(R2).domain([-50.0, 50.0]) == [-54.0, 54.0]
    assert ScoreText(LOG_LOSS, 3).domain([0.0, 1.0]) == [0.0, 1.04]
    low, high = ScoreText(ACCURACY).domain([70.0, 70.0])
    assert low < 70.0 < high


@pytest.mark.parametrize("kind", [LOG_LOSS, RMSE])
def test_lower_is_better_turns_axes_around_and_says_so(kind: ScoreKind) -> None:
    assert ScoreText(kind).scale([0.1, 0.2]).to_dict()["reverse"]
    assert ScoreText(kind).axis == f"{kind.heading} (lower is better)"
    mean, std = (for_score(METRICS[key], kind) for key in ("mean_accuracy", "std"))
    assert (is_reversed(mean), is_reversed(std)) == (True, True)
    assert axis_title(mean) == f"Mean {kind.title} (lower is better)"
    assert axis_title(std) == f"STD, {kind.title} (lower is better)"


def test_higher_is_better_needs_no_words() -> None:
    assert not ScoreText(AUROC).scale([10.0, 20.0]).to_dict()["reverse"]
    assert ScoreText(AUROC).axis == "AUROC, %"
    assert ScoreText(AUROC).gain(1.25) == "+1.2 points"
    assert ScoreText(LOG_LOSS).gain(-1.0) == "-1.0%"
