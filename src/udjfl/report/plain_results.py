"""Results and comparisons as CSV, Markdown or LaTeX, for spreadsheets, READMEs and papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from udjfl.errors import SettingsError
from udjfl.metrics import Metric
from udjfl.report.cells import ARROW, format_change, format_number, interval_text
from udjfl.report.judged_metrics import for_score, metrics_for
from udjfl.report.marks import explain_marks, significance_mark
from udjfl.report.plain_tables import latex_note, markdown_note, to_csv, to_latex, to_markdown
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.comparison_records import RECORD_COLUMNS
from udjfl.simulation.method_summary import MethodSummary
from udjfl.training.result import FinishedRun

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
WRITERS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
}
NOTES = {"markdown": markdown_note, "latex": latex_note}
_CLIENTS = "{score} of each client on its own test data, in brackets the change from FedAvg."


def chosen_format(**flags: bool) -> str | None:
    """Return the name of the one flag that is set, None without one; several are a mistake."""
    chosen = [name for name, is_set in flags.items() if is_set]
    if len(chosen) > 1:
        options = " and ".join(f"--{name}" for name in chosen)
        raise SettingsError(f"{options} cannot be combined; choose one")
    return chosen[0] if chosen else None


def format_comparison(comparison: Comparison, format: str) -> str:
    """Return a comparison as text: in CSV a line for each mean, else one table of each kind."""
    if format == "csv":
        records = comparison.to_records()
        return to_csv(RECORD_COLUMNS, [[_plain(r[c]) for c in RECORD_COLUMNS] for r in records])
    remarks = [explain_marks(comparison), _CLIENTS.format(score=comparison.score.heading)]
    tables = zip(_comparison_tables(comparison), remarks, strict=True)
    return "\n".join(WRITERS[format](*table) + NOTES[format](text) for table, text in tables)


def format_result(run: FinishedRun, format: str) -> str:
    """Return one run as text: in CSV a line for each number, else one table of each kind."""
    if format == "csv":
        metrics = [["", key, _plain(value)] for key, value in run.metrics.items()]
        columns = {run.score.name: run.client_scores, "uncertainty": run.uncertainty}
        clients = [
            [client, name, _plain(value)]
            for name, values in columns.items()
            for client, value in values.items()
        ]
        return to_csv(["client", "metric", "value"], [*metrics, *clients])
    return "\n".join(WRITERS[format](*table) for table in _result_tables(run))


def _comparison_tables(comparison: Comparison) -> list[Table]:
    metrics = [for_score(metric, comparison.score) for metric in comparison.shown_metrics]
    by_metric = [
        [row.label, *(_metric_cell(comparison, index, metric) for metric in metrics)]
        for index, row in enumerate(comparison.rows)
    ]
    reference = comparison.rows[0]
    clients = list(reference.client_scores)
    by_client = [
        [row.label, *(_client_cell(row, reference, client) for client in clients)]
        for row in comparison.rows
    ]
    titles = [f"{' '.join(metric.heading.split())} {ARROW[metric.better]}" for metric in metrics]
    return [(["Method", *titles], by_metric), (["Method", *clients], by_client)]


def _metric_cell(comparison: Comparison, index: int, metric: Metric) -> str:
    summary = comparison.rows[index].metrics[metric.key]
    if summary.mean is None:
        return "–"
    mark = significance_mark(comparison, index, metric.key)
    interval = interval_text(metric, summary)
    beside = f"({interval})" if " " in interval else interval
    return f"{format_number(summary.mean, metric)}{mark} {beside}".strip()


def _client_cell(row: MethodSummary, reference: MethodSummary, client: str) -> str:
    mean, before = row.client_scores[client].mean, reference.client_scores[client].mean
    digits = row.score.digits
    if mean is None or before is None or row is reference:
        return _short(mean, digits)
    return f"{mean:.{digits}f} ({format_change(mean - before, digits)})"


def _result_tables(run: FinishedRun) -> list[Table]:
    metrics = [
        [metric.title, "–" if value is None else format_number(value, metric)]
        for key, metric in metrics_for(run.score).items()
        if key in run.metrics
        for value in [run.metrics[key]]
    ]
    clients = [
        [client, f"{run.uncertainty[client]:.4f}", _short(accuracy, run.score.digits)]
        for client, accuracy in run.client_scores.items()
    ]
    return [
        (["Metric", run.method.label], metrics),
        (["Client", "Uncertainty", run.score.heading], clients),
    ]


def _short(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _plain(value: Any) -> str:
    return "" if value is None else str(value)
