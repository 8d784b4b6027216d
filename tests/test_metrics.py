"""Metrics over clients, against hand-worked numbers and numpy."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from udjfl import metrics
from udjfl.errors import DataError
from udjfl.metrics import METRICS, evaluate, pearson_r, psi, std, undefined_reason

# Multiples of 1/100, as accuracies of a few thousand examples are, so differences are far above rounding.
percent = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)
uncertainty = st.integers(1, 3_000).map(lambda thousandths: thousandths / 1000)


def clients(*columns, min_size=2):
    return st.lists(st.tuples(*columns), min_size=min_size, max_size=8).map(
        lambda rows: list(zip(*rows, strict=True))
    )


def test_docstring_examples():
    result = doctest.testmod(metrics)
    assert result.failed == 0
    assert result.attempted >= 9  # every example there is


# --- by hand ---

ACCURACIES = [96.0, 94.0, 90.0, 88.0, 82.0]
UNCERTAINTIES = [
    0.03,
    0.06,
    0.12,
    0.23,
    0.19,
]  # the fourth client is the most uncertain, the fifth the worst
REFERENCE = [97.0, 94.0, 91.0, 86.0, 84.0]


def test_every_metric_by_hand():
    found = evaluate(93.5, ACCURACIES, UNCERTAINTIES, REFERENCE)
    # Mean 450 / 5 = 90. Deviations 6, 4, 0, -2, -8: squares 36 + 16 + 0 + 4 + 64 = 120; 120 / 5 = 24.
    # Gains -1, 0, -1, 2, -2: 2 - (-1 + 0 - 1 - 2) / 4 = 3.
    # Uncertainties: mean 0.126, deviations -0.096, -0.066, -0.006, 0.104, 0.064.
    #   products with the accuracies' deviations: -0.576 - 0.264 - 0 - 0.208 - 0.512 = -1.56
    #   squares: 0.009216 + 0.004356 + 0.000036 + 0.010816 + 0.004096 = 0.02852
    assert found == {
        "global_accuracy": 93.5,
        "accuracy_most_uncertain": 88.0,
        "accuracy_least_uncertain": 96.0,
        "worst_accuracy": 82.0,
        "mean_accuracy": 90.0,
        "std": pytest.approx(math.sqrt(24)),
        "psi": pytest.approx(3.0),
        "pearson_r": pytest.approx(-1.56 / math.sqrt(0.02852 * 120)),
    }
    assert {type(value) for value in found.values()} == {float}


@pytest.mark.parametrize(
    "wrap", [tuple, np.asarray, torch.tensor, lambda v: torch.tensor(v, dtype=torch.float64)]
)
def test_sequences_arrays_and_tensors_agree(wrap):
    plain = evaluate(93.5, ACCURACIES, UNCERTAINTIES, REFERENCE)
    wrapped = evaluate(93.5, wrap(ACCURACIES), wrap(UNCERTAINTIES), wrap(REFERENCE))
    assert wrapped == pytest.approx(plain, rel=1e-5)  # float32 tensors carry about seven digits


def test_ties_go_to_the_first_client():
    assert metrics.accuracy_of_most_uncertain([80.0, 90.0, 70.0], [0.1, 0.5, 0.5]) == 90.0
    assert metrics.accuracy_of_least_uncertain([80.0, 90.0, 70.0], [0.5, 0.1, 0.1]) == 90.0
    assert psi([1.0, 9.0, 4.0], [0.0, 0.0, 0.0], [0.1, 0.5, 0.5]) == pytest.approx(9 - 2.5)


def test_table_and_evaluate_agree():
    assert list(evaluate(90.0, ACCURACIES, UNCERTAINTIES)) == [metric.key for metric in METRICS]
    assert [metric.key for metric in METRICS if metric.better == -1] == ["std", "pearson_r"]
    assert all(metric.title and metric.description for metric in METRICS)


# --- undefined ---


def test_undefined_metrics_are_none_and_say_why():
    one = (None, [90.0], [0.1], [91.0])
    found = evaluate(*one)
    assert [key for key, value in found.items() if value is None] == [
        "global_accuracy",
        "psi",
        "pearson_r",
    ]
    assert "only one client" in undefined_reason("psi", *one)
    assert "two clients" in undefined_reason("pearson_r", *one)
    assert "no single model" in undefined_reason("global_accuracy", *one)
    assert "no reference" in undefined_reason("psi", 90.0, ACCURACIES, UNCERTAINTIES)
    assert "same uncertainty" in undefined_reason("pearson_r", 90.0, [90.0, 80.0], [0.3, 0.1 + 0.2])
    assert "same accuracy" in undefined_reason("pearson_r", 90.0, [90.0, 90.0], [0.1, 0.2])


@given(
    st.one_of(st.none(), percent),
    clients(st.sampled_from([10.0, 20.0, 30.0]), st.sampled_from([0.1, 0.2]), min_size=1),
    st.booleans(),
)
def test_a_reason_is_given_exactly_when_a_value_is_missing(
    global_accuracy, columns, with_reference
):
    arguments = (global_accuracy, *columns, columns[0] if with_reference else None)
    for key, value in evaluate(*arguments).items():
        assert (value is None) == (undefined_reason(key, *arguments) is not None)


def test_unusable_input_is_named():
    with pytest.raises(DataError, match=r"accuracies\[1\] is nan"):
        std([90.0, math.nan])
    with pytest.raises(DataError, match="accuracies has 2, uncertainties has 1"):
        metrics.accuracy_of_most_uncertain([90.0, 80.0], [0.1])
    with pytest.raises(DataError, match="reference_accuracies has 1"):
        psi([90.0, 80.0], [90.0], [0.1, 0.2])
    with pytest.raises(DataError, match="accuracies has 0"):
        metrics.worst([])
    with pytest.raises(DataError, match="row of plain numbers"):
        metrics.mean(torch.ones(2, 2))
    with pytest.raises(DataError, match="Did you mean 'psi'"):
        undefined_reason("psy", 90.0, [90.0], [0.1])


# --- properties ---


@given(clients(percent, uncertainty))
def test_psi_is_zero_against_itself(columns):
    accuracies, uncertainties = columns
    assert psi(accuracies, accuracies, uncertainties) == 0.0


@given(clients(percent, percent, uncertainty), percent)
def test_psi_ignores_a_gain_everybody_has(columns, gain):
    accuracies, reference, uncertainties = columns
    shifted = [accuracy + gain for accuracy in accuracies]
    assert psi(shifted, reference, uncertainties) == pytest.approx(
        psi(accuracies, reference, uncertainties), abs=1e-9
    )


@given(clients(percent, percent, uncertainty))
def test_psi_against_numpy(columns):
    accuracies, reference, uncertainties = map(np.asarray, columns)
    gains, most = accuracies - reference, int(np.argmax(uncertainties))
    judge = gains[most] - np.delete(gains, most).mean()
    assert psi(accuracies, reference, uncertainties) == pytest.approx(judge, abs=1e-9)


@given(clients(uncertainty, percent))
def test_pearson_r_against_numpy(columns):
    uncertainties, accuracies = columns
    assume(len(set(uncertainties)) > 1 and len(set(accuracies)) > 1)
    r = pearson_r(uncertainties, accuracies)
    assert -1.0 <= r <= 1.0
    assert r == pytest.approx(np.corrcoef(uncertainties, accuracies)[0, 1], abs=1e-9)


@given(clients(uncertainty, percent), st.floats(0.1, 10.0), st.floats(-50.0, 50.0))
def test_pearson_r_ignores_scale_and_shift(columns, scale, shift):
    uncertainties, accuracies = columns
    assume(len(set(uncertainties)) > 1 and len(set(accuracies)) > 1)
    r = pearson_r(uncertainties, accuracies)
    mapped = [scale * accuracy + shift for accuracy in accuracies]
    assert pearson_r(uncertainties, mapped) == pytest.approx(r, abs=1e-6)
    assert pearson_r([scale * u + shift for u in uncertainties], accuracies) == pytest.approx(
        r, abs=1e-6
    )
    assert pearson_r(uncertainties, [-value for value in mapped]) == pytest.approx(-r, abs=1e-6)


def test_pearson_r_at_extreme_scales():
    for scale in (1e-300, 1e-200, 1e200):
        assert pearson_r([scale, 2 * scale, 3 * scale], [90.0, 88.0, 89.0]) == pytest.approx(-0.5)


@given(st.lists(percent, min_size=1, max_size=8), percent)
def test_std_against_numpy_and_under_a_shift(accuracies, shift):
    assert std(accuracies) == pytest.approx(np.std(accuracies), abs=1e-9)
    assert std([accuracy + shift for accuracy in accuracies]) == pytest.approx(
        std(accuracies), abs=1e-9
    )
    assert std([accuracies[0]] * len(accuracies)) == 0.0


@given(clients(percent, percent, uncertainty, min_size=1), st.randoms(use_true_random=False))
def test_client_order_changes_no_bit(columns, random):
    rows = list(zip(*columns, strict=True))
    assume(
        len(set(columns[2])) == len(rows)
    )  # a tie goes to the first client, so order matters there
    shuffled = random.sample(rows, len(rows))
    accuracies, reference, uncertainties = zip(*shuffled, strict=True)
    assert evaluate(90.0, accuracies, uncertainties, reference) == evaluate(
        90.0, columns[0], columns[2], columns[1]
    )
