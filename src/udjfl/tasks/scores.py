"""Scores: the quantity whose distribution over clients is judged, and which direction is better.

A score is a function of labels and predictions, as numpy arrays: class probabilities [n, C], with
two classes the probability [n] of the second one, or the predicted numbers [n] of a regression.
Functions of scikit-learn with these arguments, such as `sklearn.metrics.roc_auc_score`, fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter
from torch import Tensor

from udjfl._ids import printable
from udjfl._spec import Registry
from udjfl.errors import DataError, SettingsError, quote_values
from udjfl.seeds import numpy_stream
from udjfl.tasks.criterion import TaskName
from udjfl.tasks.losses import prediction

Array = npt.NDArray[Any]
ScoreFunction = Callable[[Array, Array], float]
RESAMPLES = 200
TWO_SIDED = 1.959964
SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class ScoreKind:
    """The name, unit and direction of a score.

    title            in sentences
    better           1: higher is better; -1: lower is better
    percent          its values are percentages, and differences points
    is_share         it is the share of right predictions, with binomial noise
    lowest, highest  the ends of its scale; None where there is none

    Everything that is said or drawn of a score takes its words, units and direction from here.
    """

    name: str
    title: str
    better: int = 1
    percent: bool = True
    is_share: bool = False
    # Not compared: results of older versions do not have them.
    lowest: float | None = field(default=None, compare=False)
    highest: float | None = field(default=None, compare=False)

    @property
    def heading(self) -> str:
        """The title as the beginning of a heading or sentence."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def unit(self) -> str:
        """The unit of its values; empty for one that has none, or that of the labels."""
        return "%" if self.percent else ""

    @property
    def digits(self) -> int:
        """The number of decimals that tables show."""
        return 2 if self.percent else 4

    @property
    def with_unit(self) -> str:
        """The heading of a column or axis."""
        return f"{self.heading}, %" if self.percent else self.heading

    @property
    def difference_unit(self) -> str:
        """The unit of differences of its values."""
        return "points" if self.percent else self.title

    @property
    def gain_unit(self) -> str:
        """The unit of gains, losses and budgets: points, or hundredths of FedAvg's mean."""
        return "points" if self.percent else "%"

    @property
    def gain_basis(self) -> str:
        """The unit of gains in full."""
        return "points" if self.percent else f"% of FedAvg's mean {self.title}"

    @property
    def direction(self) -> str:
        """Which values are better, in words."""
        return "higher is better" if self.better > 0 else "lower is better"

    @property
    def largest_gain(self) -> float | None:
        """The length of its scale in the unit of gains; None without both ends."""
        if not self.percent or self.lowest is None or self.highest is None:
            return None
        return self.highest - self.lowest

    def points_factor(self, reference: Iterable[float]) -> float:
        """Return what turns its values into points: 1 for percentages.

        Else a point is a hundredth of the mean of these values, which are those of the reference.
        """
        values = list(reference)
        level = 0.0 if self.percent or not values else abs(math.fsum(values) / len(values))
        return 100 / level if level > 0 else 1.0

    def clip(self, value: float) -> float:
        """Return the nearest value on its scale."""
        value = value if self.lowest is None else max(self.lowest, value)
        return value if self.highest is None else min(self.highest, value)

    def say_gain(self, amount: str) -> str:
        """Return an amount of gain, written as a number, with its unit."""
        return f"{amount} points" if self.percent else f"{amount}%"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> ScoreKind:
        """Read what `as_dict` wrote, in this version or an older one."""
        kind = _stored_type().validate_python(kept)
        if kind.better not in (1, -1):
            raise ValueError(f"a score has no direction {kind.better!r}")
        known = SCORES.get(kind.name)
        if known is not None and known.kind == kind:
            return known.kind
        return replace(kind, name=printable(kind.name), title=printable(kind.title))


@functools.cache
def _stored_type() -> TypeAdapter[ScoreKind]:
    """Return what checks the types of a score in a folder, which may be somebody else's."""
    return TypeAdapter(ScoreKind)


ACCURACY = ScoreKind("accuracy", "accuracy", is_share=True, lowest=0.0, highest=100.0)
R2 = ScoreKind("r2", "R2", highest=100.0)


@dataclass(frozen=True)
class Score:
    """A score, and the function that computes it; percentages come from fractions."""

    kind: ScoreKind
    function: ScoreFunction
    for_numbers: bool | None = False

    def compute(self, labels: Array, predicted: Array) -> float:
        """Return the score; NaN where it is not defined, as AUROC for one class."""
        try:
            value = float(self.function(labels, predicted))
        except Exception as error:  # a user's code may raise anything
            if self.kind.name in SCORES:
                raise
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            why = quote_values(first_line)
            raise DataError(f"score: {self.kind.name} cannot be computed: {why}") from error
        return 100 * value if self.kind.percent else value

    def interval(
        self, labels: Array, predicted: Array, address: tuple[int, str]
    ) -> tuple[float, float] | None:
        """Return a 95% bootstrap interval over test examples; None if too few are defined."""
        stream = numpy_stream(address[0], "bootstrap", address[1])
        values = []
        for _ in range(RESAMPLES):
            rows = stream.integers(0, len(labels), len(labels))
            values.append(self.compute(labels[rows], predicted[rows]))
        known = [value for value in values if math.isfinite(value)]
        if len(known) < RESAMPLES // 2:
            return None
        low, high = np.quantile(known, [0.025, 0.975])
        return float(low), float(high)


def wilson_interval(percent: float, size: int) -> tuple[float, float]:
    """Return the 95% interval of a share of `size` examples, in percent (Wilson, 1927).

    >>> [round(end, 1) for end in wilson_interval(90.0, 50)]
    [78.6, 95.7]
    """
    p, z = percent / 100, TWO_SIDED
    centre = (p + z * z / (2 * size)) / (1 + z * z / size)
    half = z * math.sqrt(p * (1 - p) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def as_predictions(outputs: Tensor, is_regression: bool) -> Array:
    """Return what a score gets of a model's outputs or log-probabilities."""
    if is_regression:
        return np.asarray(prediction(outputs).to(torch.float64).cpu().numpy())
    probabilities = outputs.to(torch.float64).softmax(dim=1).cpu().numpy()
    return np.asarray(probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities)


def _columns(predicted: Array) -> Array:
    """Return a column of probabilities for each class."""
    return predicted if predicted.ndim == 2 else np.stack([1 - predicted, predicted], axis=1)


def accuracy(labels: Array, predicted: Array) -> float:
    """Return the share of right classes.

    >>> accuracy(np.array([0, 1, 1]), np.array([0.2, 0.7, 0.4]))
    0.6666666666666666
    """
    return float((_columns(predicted).argmax(axis=1) == labels).mean())


def balanced_accuracy(labels: Array, predicted: Array) -> float:
    """Return the mean over classes of the share of right answers; classes that occur count.

    >>> balanced_accuracy(np.array([0, 0, 0, 1]), np.array([0.2, 0.2, 0.7, 0.9]))  # (2/3 + 1) / 2
    0.8333333333333333
    """
    is_right = _columns(predicted).argmax(axis=1) == labels
    return float(np.mean([is_right[labels == c].mean() for c in np.unique(labels)]))


def f1(labels: Array, predicted: Array) -> float:
    """Return F1 of the second of two classes, or the mean of all classes that occur.

    >>> f1(np.array([0, 0, 1, 1]), np.array([0.2, 0.7, 0.9, 0.4]))  # 2 * 1 / (2 * 1 + 1 + 1)
    0.5
    """
    chosen = _columns(predicted).argmax(axis=1)
    classes = [1] if predicted.ndim == 1 else np.unique(labels)
    values = []
    for c in classes:
        right = np.sum((chosen == c) & (labels == c))
        total = np.sum(chosen == c) + np.sum(labels == c)
        values.append(2 * right / total if total else math.nan)
    return float(np.mean(values))


def auroc(labels: Array, predicted: Array) -> float:
    """Return the probability that a positive example is ranked above a negative one.

    With more than two classes the mean of each class against the rest. NaN with one class.

    >>> auroc(np.array([0, 0, 1, 1]), np.array([0.1, 0.6, 0.4, 0.9]))  # 3 of 4 pairs
    0.75
    """
    return _one_against_rest(labels, predicted, _auroc)


def auprc(labels: Array, predicted: Array) -> float:
    """Return the average precision: the mean precision at the rank of each positive example.

    With more than two classes the mean of each class against the rest. NaN with one class.

    >>> auprc(np.array([0, 0, 1, 1]), np.array([0.1, 0.6, 0.4, 0.9]))  # (1/1 + 2/3) / 2
    0.8333333333333333
    """
    return _one_against_rest(labels, predicted, _average_precision)


def _one_against_rest(
    labels: Array, predicted: Array, measure: Callable[[Array, Array], float]
) -> float:
    if predicted.ndim == 1:
        return measure(labels == 1, predicted)
    values = [measure(labels == c, predicted[:, c]) for c in range(predicted.shape[1])]
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def _auroc(is_positive: Array, scores: Array) -> float:
    positives = int(is_positive.sum())
    negatives = len(scores) - positives
    if not positives or not negatives:
        return math.nan
    _, number, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # equal scores share the mean of their ranks
    total = float(ranks[number][is_positive].sum())
    return (total - positives * (positives + 1) / 2) / (positives * negatives)


def _average_precision(is_positive: Array, scores: Array) -> float:
    positives = int(is_positive.sum())
    if not positives or positives == len(scores):
        return math.nan
    _, number = np.unique(-scores, return_inverse=True)  # equal scores are one threshold
    right = np.bincount(number, weights=is_positive)
    precision = np.cumsum(right) / np.cumsum(np.bincount(number))
    return float((right * precision).sum() / positives)


def log_loss(labels: Array, predicted: Array) -> float:
    """Return the mean of -ln p of the labels.

    >>> round(log_loss(np.array([1, 0]), np.array([0.5, 0.5])), 4)  # ln 2
    0.6931
    """
    at_label = _columns(predicted)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(at_label, SMALLEST_PROBABILITY)).mean())


def r2(labels: Array, predicted: Array) -> float:
    """Return 1 - mean squared error / variance of the labels; NaN if all labels are the same.

    >>> r2(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 3.0]))  # 1 - (1/3) / (2/3)
    0.5
    """
    variance = float(np.var(labels))
    return 1 - float(np.mean((labels - predicted) ** 2)) / variance if variance > 0 else math.nan


def rmse(labels: Array, predicted: Array) -> float:
    """Return the root of the mean squared error, in units of the labels.

    >>> rmse(np.array([1.0, 2.0]), np.array([1.0, 4.0]))  # sqrt(4 / 2)
    1.4142135623730951
    """
    return math.sqrt(float(np.mean((labels - predicted) ** 2)))


def _percentage(name: str, title: str) -> ScoreKind:
    return ScoreKind(name, title, lowest=0.0, highest=100.0)


def _error(name: str, title: str) -> ScoreKind:
    return ScoreKind(name, title, better=-1, percent=False, lowest=0.0)


SCORES: Registry[Score] = Registry("score", "udjfl.scores")
for _score in (
    Score(ACCURACY, accuracy),
    Score(_percentage("balanced-accuracy", "balanced accuracy"), balanced_accuracy),
    Score(_percentage("auroc", "AUROC"), auroc),
    Score(_percentage("auprc", "AUPRC"), auprc),
    Score(_percentage("f1", "F1"), f1),
    Score(_error("log-loss", "log loss"), log_loss),
    Score(R2, r2, for_numbers=True),
    Score(_error("rmse", "RMSE"), rmse, for_numbers=True),
):
    SCORES.register(_score.kind.name, _score)


def make_score(choice: str | ScoreFunction | Score, task: TaskName) -> Score:
    """Return the score that settings choose: a name, package.module:function, or a function.

    Of a function higher is better, unless it has an attribute `better` of -1.
    """
    is_regression = task == "regression"
    if choice == "auto":
        return SCORES["r2" if is_regression else "accuracy"]
    if isinstance(choice, str):
        found: Any = SCORES.find(choice)
        choice = found
    if isinstance(choice, Score):
        if choice.for_numbers is not None and choice.for_numbers != is_regression:
            kind = "numbers" if is_regression else "classes"
            fitting = [n for n, score in SCORES.items() if score.for_numbers == is_regression]
            raise SettingsError(
                f"score: {choice.kind.name} is not for labels that are {kind}; try "
                f"{', '.join(fitting)}"
            )
        return choice
    if not callable(choice):
        raise SettingsError(f"score: {choice!r} is not callable; name a function (y, scores)")
    name = getattr(choice, "__name__", type(choice).__name__)
    better = getattr(choice, "better", 1)
    if better not in (1, -1):
        raise SettingsError(f"score: {name}.better is {better!r}; 1: higher is better, or -1")
    return Score(ScoreKind(name, name, better, percent=False), choice, None)
