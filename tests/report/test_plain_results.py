"""Results and comparisons as CSV, Markdown, LaTeX, frames, and for notebooks."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from paired_comparison import compare_gains
from small_runs import make_client_arrays, make_federation_of, train_briefly

import udjfl
from udjfl.errors import SettingsError
from udjfl.report.plain_results import chosen_format, format_comparison, format_result
from udjfl.simulation.comparison_records import RECORD_COLUMNS

HOSTILE = "=1+1|<b>&_%"


@pytest.fixture(scope="module")
def federation() -> udjfl.Federation:
    clients = {HOSTILE: make_client_arrays(12), "b": make_client_arrays(20)}
    return make_federation_of(**clients)


@pytest.fixture(scope="module")
def comparison(federation: udjfl.Federation) -> udjfl.Comparison:
    return udjfl.compare(
        federation, ["fedavg", "rawls:beta=2"], seeds=3, rounds=2, hidden=4, uncertainty_epochs=1
    )


@pytest.fixture(scope="module")
def result(federation: udjfl.Federation) -> udjfl.Result:
    return train_briefly(federation)


def test_csv_has_every_mean(comparison: udjfl.Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(format_comparison(comparison, "csv"))))
    assert tuple(rows[0]) == RECORD_COLUMNS
    assert len(rows) == sum(len(row.metrics) + 2 * 2 for row in comparison.rows)
    rawls = comparison.rows[1]
    (found,) = [
        row
        for row in rows
        if (row["method"], row["client"], row["metric"]) == (rawls.label, "", "mean_accuracy")
    ]
    assert float(found["mean"]) == rawls.metrics["mean_accuracy"].mean
    assert float(found["difference"]) == rawls.against_fedavg["mean_accuracy"].difference
    assert int(found["seeds"]) == 3
    assert {row["client"] for row in rows} == {"", "'" + HOSTILE, "b"}


def test_markdown_and_latex_have_a_row_for_each_method(comparison: udjfl.Comparison) -> None:
    metrics, _, clients, _ = format_comparison(comparison, "markdown").split("\n\n")
    assert len(metrics.splitlines()) == len(clients.splitlines()) == 4
    assert r"=1+1\|\<b\>\&\_%" in clients
    latex = format_comparison(comparison, "latex")
    assert latex.count(r"\begin{tabular}") == 2
    assert r"=1+1|\textless{}b\textgreater{}\&\_\%" in latex
    mean = comparison.rows[0].metrics["mean_accuracy"].mean
    assert f"{mean:.2f}" in metrics
    assert f"{mean:.2f}" in latex


@pytest.mark.parametrize(("format", "star"), [("markdown", r"\*"), ("latex", "*")])
def test_stars_and_changes_are_those_of_the_terminal(format: str, star: str) -> None:
    """Every client gains 3 points, up to 0.2 by seed: all but what cannot change has a star."""
    paired = compare_gains({udjfl.method("rawls"): [3.0] * 5})
    metrics, clients = format_comparison(paired, format).split("client-1")
    fedavg, rawls = (line for line in metrics.splitlines() if "82.00 " in line or "rawls" in line)
    assert star not in fedavg
    assert f"85.00{star} " in rawls  # the mean: (94 + 90 + 84 + 74 + 68) / 5 + 3
    differ = [p for (row, _), p in paired.corrected_p.items() if row == 1 and p is not None]
    assert rawls.count(star) == sum(p < 0.05 for p in differ) > 1
    assert f"{star} differs from FedAvg: paired t-test" in metrics
    assert "97.00 (+3.00)" in clients
    assert clients.count("(+3.00)") == 5


def test_few_seeds_have_no_star() -> None:
    paired = compare_gains({udjfl.method("rawls"): [3.0] * 5}, seeds=2)
    text = format_comparison(paired, "markdown")
    assert "Fewer than" in text
    assert "*" not in text


def test_one_run(result: udjfl.Result) -> None:
    rows = list(csv.reader(io.StringIO(format_result(result, "csv"))))
    assert ["b", "accuracy", str(result.client_scores["b"])] in rows
    assert ["", "mean_accuracy", str(result.metrics["mean_accuracy"])] in rows
    assert f"| b | {result.uncertainty['b']:.4f} |" in format_result(result, "markdown")
    assert r"\&" in format_result(result, "latex")


def test_formats_cannot_be_combined() -> None:
    assert chosen_format(json=False, csv=False) is None
    assert chosen_format(json=False, csv=True) == "csv"
    with pytest.raises(SettingsError, match="--json and --csv cannot be combined"):
        chosen_format(json=True, csv=True)


def test_client_rows_have_differences_and_are_named_by_the_score(
    federation: udjfl.Federation,
) -> None:
    comparison = udjfl.compare(
        federation, "afl", "logistic", seeds=3, rounds=2, score="log-loss", uncertainty_epochs=1
    )
    records = [r for r in comparison.to_records() if r["client"] == "b"]
    assert {r["metric"] for r in records} == {"log-loss", "uncertainty"}
    before, after = [r for r in records if r["metric"] == "log-loss"]
    assert before["difference"] is None
    assert after["difference"] == pytest.approx(after["mean"] - before["mean"])
    test = comparison.client_tests[1]["b"]
    assert (after["p"], test.n) == (test.p, 3)
    assert after["p"] <= after["p_holm"] <= 2 * after["p"]  # two clients, so two tests


def test_each_seed_has_a_row(comparison: udjfl.Comparison) -> None:
    records = comparison.to_records(seeds=True)
    label = comparison.rows[1].label
    found = [
        (record["seed"], record["value"])
        for record in records
        if (record["method"], record["client"], record["metric"]) == (label, "b", "accuracy")
    ]
    assert found == list(enumerate(comparison.rows[1].client_scores["b"].values))
    keys = [tuple(record.values())[:4] for record in records]
    assert len(set(keys)) == len(keys)
    pytest.importorskip("pandas")
    assert list(comparison.to_frame(seeds=True).columns) == list(records[0])


def test_frames(comparison: udjfl.Comparison, result: udjfl.Result) -> None:
    pytest.importorskip("pandas")
    frame = comparison.to_frame()
    assert len(frame) == len(comparison.to_records())
    history = result.history_frame()
    assert list(history.columns) == ["round", "client", "metric", "value"]
    assert len(history) == len(result.history.records)
    shown = history[(history["metric"] == "step_norm") & (history["round"] == 2)]
    assert shown["value"].tolist() == [result.history.series("step_norm")[2]]


def test_reprs_are_short(
    comparison: udjfl.Comparison, result: udjfl.Result, federation: udjfl.Federation
) -> None:
    assert repr(comparison).startswith("Comparison('own data', 3 seeds: FedAvg, ")
    assert repr(federation) == (
        "Federation('own data', 2 clients, 32 train and 8 test examples of shape [4], 3 classes)"
    )
    assert repr(udjfl.method("rawls:beta=2")) == "UDJ(theory='rawls', beta=2.0, gamma=1.0)"
    assert repr(udjfl.FedAvg()) == "FedAvg()"
    for value in (comparison, result, federation, udjfl.method("rawls")):
        assert len(repr(value)) < 1000
        html = value._repr_html_()  # type: ignore[attr-defined]
        assert html.startswith("<table><caption>")
        assert "<b>" not in html
    assert "=1+1|&lt;b&gt;&amp;_%" in federation._repr_html_()


def test_the_reprs_of_methods_build_them_again() -> None:
    from udjfl.methods import UDJ

    rule = UDJ(theory="desert", budget=2.0)
    assert eval(repr(rule), {"UDJ": UDJ}) == rule


def test_folders_are_reported_in_every_format(federation: udjfl.Federation, tmp_path: Path) -> None:
    from udjfl.report.saved_runs import compare_runs, find_runs

    for name in ("fedavg", "fedprox"):
        train_briefly(federation, name, out=tmp_path / name)
    saved = compare_runs(find_runs([tmp_path]))
    for format in ("csv", "markdown", "latex"):
        assert "FedProx" in format_comparison(saved, format)
