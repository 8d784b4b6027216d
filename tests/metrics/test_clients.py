"""Metrics over clients, against hand-worked numbers and numpy; and metrics that others add."""

from __future__ import annotations

import doctest
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from small_runs import make_federation, train_briefly

import udjfl
from udjfl import _measures
from udjfl._measures import (
    corrected_std,
    fisher_z,
    gains_of,
    gap,
    least_advantaged,
    pearson_r,
    psi,
    slope,
    std,
)
from udjfl.errors import DataError, SettingsError
from udjfl.metrics import (
    METRICS,
    Metric,
    Outcome,
    compute_metrics,
    register_metric,
    table_metrics,
)
from udjfl.report.comparison_table import comparison_view, result_view
from udjfl.report.saved_runs import read_run

# Multiples of 1/100, as accuracies of a few thousand examples are, so that differences are far
# above rounding.
percent = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)
uncertainty = st.integers(1, 3_000).map(lambda thousandths: thousandths / 1000)


def clients(*columns: Any, min_size: int = 2) -> Any:
    return st.lists(st.tuples(*columns), min_size=min_size, max_size=8).map(
        lambda rows: list(zip(*rows, strict=True))
    )


def test_docstring_examples() -> None:
    result = doctest.testmod(_measures)
    assert result.failed == 0
    assert result.attempted >= 17  # every example there is


# --- by hand ---

ACCURACIES = [96.0, 94.0, 90.0, 88.0, 82.0]
# The fourth client is the most uncertain, the fifth has the lowest accuracy.
UNCERTAINTIES = [0.03, 0.06, 0.12, 0.23, 0.19]
REFERENCE = [97.0, 94.0, 91.0, 86.0, 84.0]


def test_every_metric_by_hand() -> None:
    values, reasons = compute_metrics(
        Outcome(
            ACCURACIES,
            UNCERTAINTIES,
            REFERENCE,
            93.5,
            [100, 100, 100, 100, 50],
            [90.0, 96.0, 90.0, 85.0, 84.0],
            [1.0, math.nan, 5.0, math.nan, math.nan],
            4.0,
        )
    )
    # Mean 450 / 5 = 90. Deviations 6, 4, 0, -2, -8: squares 36 + 16 + 0 + 4 + 64 = 120, over 5: 24.
    # Gains -1, 0, -1, 2, -2: 2 - (-1 + 0 - 1 - 2) / 4 = 3.
    # Uncertainties: mean 0.126, deviations -0.096, -0.066, -0.006, 0.104, 0.064.
    #   products with the accuracies' deviations: -0.576 - 0.264 - 0 - 0.208 - 0.512 = -1.56
    #   squares: 0.009216 + 0.004356 + 0.000036 + 0.010816 + 0.004096 = 0.02852
    # Test noise: (384 + 564 + 900 + 1056) / 100 + 82 * 18 / 50 = 29.04 + 29.52 = 58.56,
    #   over 5: 11.712.
    # A third of five clients, rounded down, is one: 96 - 88.
    assert values == {
        "global_accuracy": 93.5,
        "accuracy_most_uncertain": 88.0,
        "accuracy_least_uncertain": 96.0,
        "worst_accuracy": 82.0,
        "mean_accuracy": 90.0,
        "std": pytest.approx(math.sqrt(24)),
        "psi": pytest.approx(3.0),
        "pearson_r": pytest.approx(-1.56 / math.sqrt(0.02852 * 120)),
        "gain_least_advantaged": pytest.approx(2.0),
        "gain_others": pytest.approx(-1.0),
        "corrected_std": pytest.approx(math.sqrt(24 - 11.712)),
        "slope": pytest.approx(-1.56 / 0.02852),
        "gap": pytest.approx(8.0),
        # Jain: 450^2 / (5 * (450^2 / 5 + 120)) = 40500 / 40620; its square root is the cosine.
        "jain": pytest.approx(40500 / 40620),
        # Sorted 82, 88, 90, 94, 96: -4 * 82 - 2 * 88 + 2 * 94 + 4 * 96 = 68, over 5 * 450.
        "gini": pytest.approx(68 / 2250),
        "cv": pytest.approx(math.sqrt(24) / 90),
        "entropy": pytest.approx(-sum(a / 450 * math.log(a / 450) for a in ACCURACIES)),
        "cosine": pytest.approx(math.sqrt(40500 / 40620)),
        "worst_tenth": 82.0,
        "best_tenth": 96.0,
        "best_minus_worst": 14.0,
        # Minus what each has alone: 6, -2, 0, 3, -2.
        "gain_by_joining": pytest.approx(1.0),
        "least_gain_by_joining": -2.0,
        "share_better_alone": 40.0,
        "group_gap": 4.0,
        "mean_group_gap": 3.0,
        "largest_group_gap": 5.0,
    }
    assert {type(value) for value in values.values()} == {float}
    assert reasons == {}


@pytest.mark.parametrize(
    "wrap", [tuple, np.asarray, torch.tensor, lambda v: torch.tensor(v, dtype=torch.float64)]
)
def test_sequences_arrays_and_tensors_agree(wrap: Any) -> None:
    plain, _ = compute_metrics(Outcome(ACCURACIES, UNCERTAINTIES, REFERENCE, 93.5))
    wrapped, _ = compute_metrics(
        Outcome(wrap(ACCURACIES), wrap(UNCERTAINTIES), wrap(REFERENCE), 93.5)
    )
    assert wrapped == pytest.approx(plain, rel=1e-5)  # float32 tensors carry about seven digits


def test_ties_go_to_the_first_client() -> None:
    assert _measures.accuracy_of_most_uncertain([80.0, 90.0, 70.0], [0.1, 0.5, 0.5]) == 90.0
    assert _measures.accuracy_of_least_uncertain([80.0, 90.0, 70.0], [0.5, 0.1, 0.1]) == 90.0
    assert psi([1.0, 9.0, 4.0], [0.0, 0.0, 0.0], [0.1, 0.5, 0.5]) == pytest.approx(9 - 2.5)


def test_metrics_come_in_the_order_of_the_table() -> None:
    columns = ACCURACIES, [0.0] * 5, 0.0
    values, _ = compute_metrics(
        Outcome(ACCURACIES, UNCERTAINTIES, REFERENCE, 90.0, [9] * 5, *columns)
    )
    assert list(values) == list(METRICS)
    assert [m.key for m in table_metrics() if m.better == -1] == ["std", "pearson_r"]
    assert [m.key for m in table_metrics()] == list(METRICS)[:8]
    assert all(
        metric.key == key and metric.title and metric.description for key, metric in METRICS.items()
    )


# --- undefined ---


def test_undefined_metrics_are_none_and_have_a_reason() -> None:
    values, reasons = compute_metrics(Outcome([90.0], [0.1], [91.0]))
    assert [key for key, value in values.items() if value is None] == list(reasons)
    undefined = ["global_accuracy", "psi", "pearson_r", "gain_others", "slope", "gap"]
    assert list(reasons) == undefined
    assert "only one client" in reasons["psi"]
    assert reasons["pearson_r"] == "A correlation needs at least two clients."
    assert "no single model" in reasons["global_accuracy"]
    _, reasons = compute_metrics(Outcome([90.0, 80.0], [0.3, 0.1 + 0.2]))
    same = "All clients have the same {}, so nothing can correlate with it."
    assert reasons["pearson_r"] == reasons["slope"] == same.format("uncertainty")
    _, reasons = compute_metrics(Outcome([90.0, 90.0], [0.1, 0.2]))
    assert reasons["pearson_r"] == same.format("accuracy")


def test_without_a_reference_there_is_no_psi() -> None:
    values, reasons = compute_metrics(Outcome(ACCURACIES, UNCERTAINTIES))
    assert "psi" not in values
    assert "psi" not in reasons


def test_metrics_that_rank_clients_leave_out_those_without_an_uncertainty() -> None:
    outcome = Outcome(
        [*ACCURACIES, 10.0], [*UNCERTAINTIES, math.nan], [*REFERENCE, 50.0], global_accuracy=93.5
    )
    values, reasons = compute_metrics(outcome)
    known, _ = compute_metrics(Outcome(ACCURACIES, UNCERTAINTIES, REFERENCE, 93.5))
    ranking = (
        *("accuracy_most_uncertain", "accuracy_least_uncertain", "psi", "pearson_r"),
        *("gain_least_advantaged", "gain_others", "slope", "gap"),
    )
    assert {key: values[key] for key in ranking} == {key: known[key] for key in ranking}
    assert values["worst_accuracy"] == 10.0
    assert values["std"] == std([*ACCURACIES, 10.0])
    assert reasons == {}
    values, reasons = compute_metrics(Outcome([90.0, 80.0], [math.nan] * 2, [90.0, 80.0], 93.5))
    assert reasons == dict.fromkeys(ranking, "No client has an uncertainty.")
    assert values["mean_accuracy"] == 85.0


@given(
    st.one_of(st.none(), percent),
    clients(st.sampled_from([10.0, 20.0, 30.0]), st.sampled_from([0.1, 0.2]), min_size=1),
    st.booleans(),
)
def test_a_reason_is_given_exactly_when_a_value_is_missing(
    global_accuracy: float | None, columns: Any, with_reference: bool
) -> None:
    reference = columns[0] if with_reference else None
    values, reasons = compute_metrics(Outcome(columns[0], columns[1], reference, global_accuracy))
    assert {key for key, value in values.items() if value is None} == set(reasons)
    unknown = {
        key
        for key, metric in METRICS.items()
        if metric.needs_test_sizes or metric.needs_alone or metric.needs_groups
    }
    compared = {"psi", "gain_least_advantaged", "gain_others"}
    assert set(METRICS) - set(values) == (unknown if with_reference else unknown | compared)


def test_unusable_input_is_named() -> None:
    with pytest.raises(DataError, match=r"accuracies\[1\] is nan"):
        std([90.0, math.nan])
    with pytest.raises(DataError, match="accuracies has 2, uncertainties has 1"):
        _measures.accuracy_of_most_uncertain([90.0, 80.0], [0.1])
    with pytest.raises(DataError, match="reference_accuracies has 1"):
        psi([90.0, 80.0], [90.0], [0.1, 0.2])
    with pytest.raises(DataError, match="accuracies has 0"):
        _measures.worst([])
    with pytest.raises(DataError, match="row of plain numbers"):
        _measures.mean(torch.ones(2, 2))
    with pytest.raises(SettingsError, match="Did you mean 'psi'"):
        METRICS.find("psy")


def test_without_test_sizes_there_is_no_corrected_std() -> None:
    values, reasons = compute_metrics(Outcome(ACCURACIES, UNCERTAINTIES))
    assert "corrected_std" not in values | reasons
    value, reason = METRICS["corrected_std"].evaluate(Outcome(ACCURACIES, UNCERTAINTIES))
    assert (value, reason) == (None, "The sizes of the clients' test parts are not known.")
    with pytest.raises(DataError, match="at least one test example"):
        corrected_std([90.0, 80.0], [10, 0])


def test_the_least_advantaged_are_one_client_or_a_tenth() -> None:
    assert least_advantaged([0.1, 0.5, 0.5]) == [1]
    assert least_advantaged([0.0] * 20) == [0]
    rising = [float(number) for number in range(21)]
    assert least_advantaged(rising) == [19, 20]  # 21 // 10 = 2
    assert least_advantaged([float(number) for number in range(30)]) == [27, 28, 29]
    outcome = Outcome([number + 1 for number in rising], rising, rising, 50.0)
    assert METRICS["gain_least_advantaged"].evaluate(outcome) == (1.0, None)


def test_gains_of_everybody_leave_no_others() -> None:
    assert gains_of([0, 1], [91.0, 80.0], [90.0, 83.0]) == (-1.0, None)


def test_the_gap_is_between_thirds() -> None:
    # Six clients: two on each side. (90 + 88) / 2 - (60 + 50) / 2.
    accuracies = [50.0, 90.0, 70.0, 60.0, 71.0, 88.0]
    assert gap([0.6, 0.1, 0.3, 0.5, 0.4, 0.2], accuracies) == 34.0
    assert gap([0.6, 0.1], [50.0, 90.0]) == 40.0
    assert gap([0.6], [50.0]) is None


def test_equal_accuracies_have_no_slope_at_all() -> None:
    # The deviations of these uncertainties add up to 1.4e-16, which large values would show.
    assert slope([0.1, 0.2, 0.4], [1e9, 1e9, 1e9]) == 0.0


def test_intervals_are_clipped_to_the_scale() -> None:
    assert METRICS["mean_accuracy"].clip((95.0, 103.0)) == (95.0, 100.0)
    assert METRICS["pearson_r"].clip((-1.1, -0.9)) == (-1.0, -0.9)
    assert METRICS["std"].clip((-2.0, 4.0)) == (0.0, 4.0)
    assert METRICS["psi"].clip((-20.0, 40.0)) == (-20.0, 40.0)


# --- properties ---


@given(clients(uncertainty, percent))
def test_slope_against_numpy(columns: Any) -> None:
    uncertainties, accuracies = columns
    assume(len(set(uncertainties)) > 1)
    expected = np.polyfit(uncertainties, accuracies, 1)[0]
    assert slope(uncertainties, accuracies) == pytest.approx(expected, rel=1e-6, abs=1e-5)


@given(clients(percent, st.integers(1, 5000)))
def test_corrected_std_is_never_above_std(columns: Any) -> None:
    accuracies, sizes = columns
    assert 0.0 <= corrected_std(accuracies, sizes) <= std(accuracies) + 1e-9
    # With enough test examples nothing is left to correct.
    assert corrected_std(accuracies, [10**15] * len(sizes)) == pytest.approx(
        std(accuracies), abs=1e-5
    )


@given(clients(percent, percent, uncertainty, min_size=2))
def test_psi_is_the_difference_of_its_two_numbers(columns: Any) -> None:
    values, _ = compute_metrics(Outcome(columns[0], columns[2], columns[1]))
    assert values["gain_least_advantaged"] is not None
    assert values["gain_others"] is not None
    assert values["gain_least_advantaged"] - values["gain_others"] == values["psi"]


@given(st.floats(-1.0, 1.0))
def test_fisher_z_is_finite_and_rises(r: float) -> None:
    assert math.isfinite(fisher_z(r))
    assert fisher_z(-r) == -fisher_z(r)
    assert math.tanh(fisher_z(r)) == pytest.approx(max(-0.999, min(0.999, r)))


@given(clients(percent, uncertainty))
def test_psi_is_zero_against_itself(columns: Any) -> None:
    accuracies, uncertainties = columns
    assert psi(accuracies, accuracies, uncertainties) == 0.0


@given(clients(percent, percent, uncertainty), percent)
def test_psi_ignores_a_gain_that_all_clients_have(columns: Any, gain: float) -> None:
    accuracies, reference, uncertainties = columns
    shifted = [accuracy + gain for accuracy in accuracies]
    assert psi(shifted, reference, uncertainties) == pytest.approx(
        psi(accuracies, reference, uncertainties), abs=1e-9
    )


@given(clients(percent, percent, uncertainty))
def test_psi_against_numpy(columns: Any) -> None:
    accuracies, reference, uncertainties = map(np.asarray, columns)
    gains, most = accuracies - reference, int(np.argmax(uncertainties))
    expected = gains[most] - np.delete(gains, most).mean()
    assert psi(accuracies, reference, uncertainties) == pytest.approx(expected, abs=1e-9)


@given(clients(uncertainty, percent))
def test_pearson_r_against_numpy(columns: Any) -> None:
    uncertainties, accuracies = columns
    assume(len(set(uncertainties)) > 1 and len(set(accuracies)) > 1)
    r = pearson_r(uncertainties, accuracies)
    assert r is not None
    assert -1.0 <= r <= 1.0
    assert r == pytest.approx(np.corrcoef(uncertainties, accuracies)[0, 1], abs=1e-9)


@given(clients(uncertainty, percent), st.floats(0.1, 10.0), st.floats(-50.0, 50.0))
def test_pearson_r_ignores_scale_and_shift(columns: Any, scale: float, shift: float) -> None:
    uncertainties, accuracies = columns
    assume(len(set(uncertainties)) > 1 and len(set(accuracies)) > 1)
    r = pearson_r(uncertainties, accuracies)
    assert r is not None
    mapped = [scale * accuracy + shift for accuracy in accuracies]
    assert pearson_r(uncertainties, mapped) == pytest.approx(r, abs=1e-6)
    assert pearson_r([scale * u + shift for u in uncertainties], accuracies) == pytest.approx(
        r, abs=1e-6
    )
    assert pearson_r(uncertainties, [-value for value in mapped]) == pytest.approx(-r, abs=1e-6)


def test_pearson_r_at_extreme_scales() -> None:
    for scale in (1e-300, 1e-200, 1e200):
        assert pearson_r([scale, 2 * scale, 3 * scale], [90.0, 88.0, 89.0]) == pytest.approx(-0.5)


@given(st.lists(percent, min_size=1, max_size=8), percent)
def test_std_against_numpy_and_under_a_shift(accuracies: list[float], shift: float) -> None:
    assert std(accuracies) == pytest.approx(np.std(accuracies), abs=1e-9)
    assert std([accuracy + shift for accuracy in accuracies]) == pytest.approx(
        std(accuracies), abs=1e-9
    )
    assert std([accuracies[0]] * len(accuracies)) == 0.0


@given(clients(percent, percent, uncertainty, min_size=1), st.randoms(use_true_random=False))
def test_client_order_changes_no_bit(columns: Any, random: Any) -> None:
    rows = list(zip(*columns, strict=True))
    # Ties go to the first client, so the order of clients matters there.
    assume(len(set(columns[2])) == len(rows))
    shuffled = random.sample(rows, len(rows))
    accuracies, reference, uncertainties = zip(*shuffled, strict=True)
    assert compute_metrics(Outcome(accuracies, uncertainties, reference, 90.0)) == compute_metrics(
        Outcome(columns[0], columns[2], columns[1], 90.0)
    )


# --- metrics that others add ---


def accuracy_range(outcome: Outcome) -> float:
    return max(outcome.accuracies) - min(outcome.accuracies)


RANGE = Metric("range", "Range", accuracy_range, better=-1, unit="points", description="Spread.")


@pytest.fixture
def registered() -> Iterator[Metric]:
    yield register_metric(RANGE)
    del METRICS["range"]


def printed(view: Any) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.usefixtures("registered")
def test_a_registered_metric_is_in_results_tables_json_and_saved_runs(tmp_path: Path) -> None:
    federation = make_federation()
    result = train_briefly(federation, out=tmp_path / "run")
    accuracies = result.client_scores.values()
    assert result.metrics["range"] == max(accuracies) - min(accuracies)
    assert "Range" in printed(result_view(result))
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert saved["range"] == result.metrics["range"]
    assert read_run(tmp_path / "run").metrics == result.metrics

    comparison = udjfl.compare(
        federation, [udjfl.method("rawls")], seeds=2, rounds=3, hidden=5, uncertainty_epochs=2
    )
    assert comparison.rows[0].metrics["range"].values[0] == result.metrics["range"]
    assert comparison.rows[1].against_fedavg["range"].n == 2
    document = json.loads(json.dumps(comparison.as_dict()))
    assert [row["range"]["mean"] for row in document["methods"]] == [
        row.metrics["range"].mean for row in comparison.rows
    ]
    assert "Range ↓" in printed(comparison_view(comparison))


def test_a_run_saved_before_a_metric_existed_has_it(tmp_path: Path) -> None:
    result = train_briefly(make_federation(), out=tmp_path / "run")
    register_metric(RANGE)
    try:
        accuracies = result.client_scores.values()
        assert read_run(tmp_path / "run").metrics["range"] == max(accuracies) - min(accuracies)
    finally:
        del METRICS["range"]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_metric_without_a_finite_value_is_undefined(
    monkeypatch: pytest.MonkeyPatch, value: float | None
) -> None:
    odd = Metric("odd", "Odd", lambda outcome: value, better=0, unit="", description="Never.")
    monkeypatch.setitem(METRICS, "odd", odd)
    values, reasons = compute_metrics(Outcome(ACCURACIES, UNCERTAINTIES, REFERENCE, 93.5))
    assert values["odd"] is None
    assert reasons == {"odd": "Odd is not defined for this run."}


def test_a_metric_may_return_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = Metric("best", "Best", lambda o: torch.tensor(o.accuracies).max(), 1, "%", "Largest.")
    monkeypatch.setitem(METRICS, "best", largest)
    values, _ = compute_metrics(Outcome(ACCURACIES, UNCERTAINTIES))
    assert (values["best"], type(values["best"])) == (96.0, float)


@pytest.mark.usefixtures("registered")
def test_a_key_that_is_taken_is_refused() -> None:
    other = Metric("range", "Other", accuracy_range, better=0, unit="", description="Another.")
    with pytest.raises(SettingsError, match="'range' is taken"):
        register_metric(other)
    with pytest.raises(SettingsError, match="'seed' has another meaning in results"):
        register_metric(Metric("seed", "Seed", accuracy_range, 0, "", "In every result already."))


def test_an_installed_package_adds_a_metric_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "spread.py").write_text(
        "from udjfl.metrics import Metric\n"
        "RANGE = Metric('range', 'Range', lambda o: max(o.accuracies) - min(o.accuracies),\n"
        "               better=-1, unit='points', description='Spread.')\n"
    )
    information = tmp_path / "spread-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: spread\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[udjfl.metrics]\nrange = spread:RANGE\n")
    code = (
        "from udjfl.metrics import Outcome, compute_metrics;"
        "print(compute_metrics(Outcome([90.0, 80.0], [0.1, 0.2]))[0]['range'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "10.0\n"


def test_importing_metrics_does_not_import_scipy_or_torch() -> None:
    code = (
        "import sys, udjfl.metrics;"
        "sys.exit(any(name in sys.modules for name in ('scipy', 'torch', 'numpy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False
    )
    assert done.returncode == 0
