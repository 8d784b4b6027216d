"""Tables of one run, and of several methods compared."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl._ids import printable
from udjfl.metrics import METRICS, Metric
from udjfl.report.cells import (
    doubt,
    footer,
    format_change,
    format_number,
    heading,
    interval_text,
    served,
    warning_lines,
    with_arrow,
)
from udjfl.report.joining import ALONE, MOST_NAMES, alone_cells, joining_lines, joining_of_run
from udjfl.report.judged_metrics import for_score, metrics_for
from udjfl.report.marks import explain_marks, significance_mark
from udjfl.report.notes import join_notes, note_equal_rows
from udjfl.report.output import FitWidth, make_blocks
from udjfl.report.ranking_table import ranking_parts
from udjfl.report.verdict_lines import verdict_parts
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import Summary
from udjfl.tasks import ACCURACY
from udjfl.training.result import FinishedRun
from udjfl.training.small_test_parts import RULE

MOST_COLUMNS = 7
SMALL_TEST_PART = 200  # with fewer test examples one of them is more than half a point
CLIENTS = "of each client on its own test data, below it the change from FedAvg (u: uncertainty)"
EXPECTED = "In brackets: ambiguous test examples scored by all their labels, not by the one drawn."
GRADES = (
    '"partial" and "recalled" mark methods whose formula we could only partly check; the defaults '
    "may be ours."
)


def comparison_view(comparison: Comparison) -> RenderableType:
    """Show methods by metric and by client, whether they delivered their theory, and ranked."""
    return FitWidth(lambda width: Group(*_comparison_parts(comparison, width)))


def _comparison_parts(comparison: Comparison, width: int) -> list[RenderableType]:
    seeds = "1 seed" if len(comparison.seeds) == 1 else f"{len(comparison.seeds)} seeds"
    parts: list[RenderableType] = [
        *([] if comparison.unfinished is None else [Text(comparison.unfinished, "bold red")]),
        *warning_lines(comparison.warning),
        heading(f"{comparison.data}: mean over {seeds}, below it the 95% interval"),
        _metric_tables(comparison, width),
        footer(explain_marks(comparison)),
    ]
    if any(doubt(row) for row in comparison.rows):
        parts.append(footer(GRADES))
    parts += [Text(""), heading(_clients_heading(comparison)), _client_tables(comparison, width)]
    if any(map(_expected_scores, comparison.rows)):
        parts.append(footer(EXPECTED))
    parts += [footer(line) for line in _small_test_parts(comparison)]
    parts += [footer(line) for line in joining_lines(comparison)]
    parts += verdict_parts(comparison, width)
    if comparison.warning is None:
        parts += ranking_parts(comparison, width)
    return [*parts, *(footer(f"– {note}") for note in _notes(comparison))]


def _clients_heading(comparison: Comparison) -> str:
    return f"{comparison.score.heading} {CLIENTS}"


def _small_test_parts(comparison: Comparison) -> list[str]:
    """Say how much one test example weighs where test parts are small, and which are too small."""
    lines = []
    sizes = comparison.rows[0].test_sizes or {}
    small = [client for client, size in sizes.items() if size < SMALL_TEST_PART]
    if small:
        smallest = min(small, key=lambda client: sizes[client])
        size, all_alike = sizes[smallest], len(set(sizes.values())) == 1 < len(sizes)
        text = f"{'each client' if all_alike else printable(smallest)}: {size} test example"
        text += "" if size == 1 else "s"
        if comparison.score.is_share:
            text += f", one example is {100 / size:.2f} points"
        if len(small) > 1 and not all_alike:
            text += f"; {len(small)} of {len(sizes)} clients have fewer than {SMALL_TEST_PART}"
        lines.append(f"{text}.")
    too_small = comparison.rows[0].too_small
    if too_small:
        named = ", ".join(map(printable, too_small[:MOST_NAMES]))
        left = len(too_small) - MOST_NAMES
        rest = f" and {left} more" if left > 0 else ""
        lines.append(f"Too small to tell much from one run ({RULE}): {named}{rest}.")
    return lines


def result_view(result: FinishedRun, columns: tuple[str, ...] | None = None) -> RenderableType:
    """Show one run: its metrics, or those with the given keys, then its clients."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("Grade of the method", Text(result.method.grade, justify="right"))
    usual = [key for key, metric in METRICS.items() if not metric.on_request]
    for key, metric in metrics_for(result.score, usual if columns is None else columns).items():
        if key in result.metrics:
            value = result.metrics[key]
            missing = f"– ({result.undefined.get(key, '')})"
            shown = missing if value is None else format_number(value, metric)
            table.add_row(metric.title, Text(shown, justify="right"))
    service = "" if result.service == "none" else f", served {result.service}"
    title = heading(f"{result.method.label}{service}, seed {result.seed}")
    remarks = [f"– {note}" for note in result.notes]
    notes = [*_explain_mark(result), *joining_of_run(result), *remarks]
    table_of_clients = _clients_of_run(result)
    warning = warning_lines(result.warning)
    return Group(*warning, title, table, Text(""), table_of_clients, *map(footer, notes))


def _clients_of_run(result: FinishedRun) -> Table:
    columns: dict[str, tuple[Mapping[str, float] | None, int]] = {
        "Uncertainty": (result.uncertainty, 4),
        "Epistemic": (result.epistemic, 4),
        result.score.heading: (result.client_scores, result.score.digits),
        "Common model": (result.common_scores, result.score.digits),
        ALONE: (result.accuracy_alone, result.score.digits),
    }
    known = {title: column for title, column in columns.items() if column[0]}
    intervals = result.client_interval or {}
    interval = ["95% interval"] if intervals else []
    table = Table("Client", *known, *interval, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for client in result.client_scores:
        cells = [
            f"{values[client]:.{digits}f}" if values and client in values else "–"
            for values, digits in known.values()
        ]
        if intervals:
            ends = intervals.get(client)
            places = 1 if result.score.percent else result.score.digits
            mark = " !" if client in result.too_small else ""
            shown = "–" if ends is None else f"{ends[0]:.{places}f} to {ends[1]:.{places}f}"
            cells.append(f"{shown}{mark}")
        table.add_row(Text(printable(client)), *cells)
    return table


def _explain_mark(result: FinishedRun) -> list[str]:
    if not result.too_small:
        return []
    return [f"! Test part too small ({RULE}): smaller differences may be chance."]


def _notes(comparison: Comparison) -> list[str]:
    """Return why columns have no value, what the methods note, and why runs failed."""
    undefined = {
        reason
        for row in comparison.rows
        for metric in comparison.shown_metrics
        for reason in row.undefined.get(metric.key, [])
    }
    return [
        *sorted(undefined),
        *note_equal_rows(comparison.rows),
        *join_notes(comparison.rows),
        *(
            f"{row.label} failed on seed {seed}: {reason}"
            for row in comparison.rows
            for seed, reason in row.failed.items()
        ),
    ]


def _metric_tables(comparison: Comparison, width: int) -> RenderableType:
    metrics = [for_score(metric, comparison.score) for metric in comparison.shown_metrics]
    headings = [Text(with_arrow(metric)) for metric in metrics]
    cells = [
        [_metric_cell(metric, comparison, index) for metric in metrics]
        for index in range(len(comparison.rows))
    ]
    return make_blocks(width, "Method", headings, [_name(row) for row in comparison.rows], cells)


def _name(row: MethodSummary) -> Text:
    """Return the short name; below it family, changed parameters, grade if doubtful, service."""
    method = row.method
    family = method.title if method.short != method.title else ""
    parts = (family, method.changed_text, doubt(row), served(row))
    below = " ".join(part for part in parts if part)
    # Indented: it is no method of its own.
    return Text.assemble(method.short, (f"\n  {below}" if below else "", "dim"))


def _metric_cell(metric: Metric, comparison: Comparison, index: int) -> Text:
    row = comparison.rows[index]
    summary, test = row.metrics[metric.key], row.against_fedavg.get(metric.key)
    if summary.mean is None:
        return Text("–", style="dim")
    mark, style = significance_mark(comparison, index, metric.key), ""
    if mark and test is not None:
        style = "green" if (test.difference or 0.0) * metric.better > 0 else "red"
    value = format_number(summary.mean, metric) + mark
    return Text.assemble((value, style), (f"\n{interval_text(metric, summary)}", "dim"))


def _client_tables(comparison: Comparison, width: int) -> RenderableType:
    """Show methods by clients, or clients by methods if these are fewer columns."""
    reference = comparison.rows[0]
    clients = [
        Text(f"{client}\nu unknown" if u.mean is None else f"{client}\nu = {u.mean:.3f}")
        for client, u in reference.uncertainty.items()
    ]
    methods = [_name(row) for row in comparison.rows]
    if min(len(clients), len(methods)) > MOST_COLUMNS:
        return footer("Too many clients and methods to show here; `--json` has them all.")
    cells = [
        [_client_cell(row, reference, client) for client in row.client_scores]
        for row in comparison.rows
    ]
    if reference.accuracy_alone is not None:
        methods.append(Text(ALONE))
        cells.append(alone_cells(reference))
    if len(clients) > MOST_COLUMNS:
        by_client = [list(column) for column in zip(*cells, strict=True)]
        return make_blocks(width, "Client", methods, clients, by_client)
    return make_blocks(width, "Method", clients, methods, cells)


def _client_cell(row: MethodSummary, reference: MethodSummary, client: str) -> Text:
    mean, before = row.client_scores[client].mean, reference.client_scores[client].mean
    if mean is None or before is None:
        return Text("–", style="dim")
    n = row.score.digits
    change = "" if row is reference else f"\n{format_change(mean - before, n)}"
    scores = _expected_scores(row)
    expected = scores[client].mean if scores else None
    beside = "" if expected is None else f"\n({expected:.2f})"
    return Text.assemble(f"{mean:.{n}f}", (change + beside, "dim"))


def _expected_scores(row: MethodSummary) -> Mapping[str, Summary] | None:
    """Return the accuracies by all labels; beside another score they would be taken for it."""
    return row.expected_accuracy if row.score == ACCURACY else None
