"""Tables of one run, and of several methods compared."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.metrics import METRICS, Metric
from udjfl.report.output import NARROW, FitWidth, make_blocks, pack_columns, stack, text_width
from udjfl.simulation.comparison import Comparison, MethodSummary
from udjfl.statistics import (
    THEORY_METRIC,
    PairedTest,
    RankedMethod,
    Summary,
    metric_of,
    rank_methods,
)
from udjfl.training.result import FinishedRun

ARROW = {1: "↑", -1: "↓", 0: ""}
SIGNIFICANT = 0.05
MOST_COLUMNS = 7
MARKS = (
    "* differs from FedAvg: paired t-test over seeds, p < 0.05. "
    "Accuracies in percent, STD and Psi in points."
)
GRADES = (
    '"partial" and "recalled" mark methods we could only partly check against the authors\' '
    "code or paper."
)
RANKS = (
    "• serves this theory. Ranks go by the mean; where intervals overlap, the order means nothing."
)


def comparison_view(comparison: Comparison) -> RenderableType:
    """Show methods by metric and by client, by the metric of their theory, and ranked."""
    return FitWidth(lambda width: Group(*_comparison_parts(comparison, width)))


def _comparison_parts(comparison: Comparison, width: int) -> list[RenderableType]:
    seeds = "1 seed" if len(comparison.seeds) == 1 else f"{len(comparison.seeds)} seeds"
    parts: list[RenderableType] = [
        _heading(f"{comparison.data}: mean over {seeds}, below it ± the 95% interval"),
        _metric_tables(comparison, width),
        _footer(MARKS),
    ]
    if any(_doubt(row) for row in comparison.rows):
        parts.append(_footer(GRADES))
    parts += [
        Text(""),
        _heading(
            "Accuracy of each client on its own test data, below it the change from FedAvg "
            "(u: uncertainty)"
        ),
        _client_tables(comparison, width),
    ]
    verdicts = _verdict_table(comparison, width)
    if verdicts.row_count:
        heading = _heading("Each method by the metric of its theory, against FedAvg")
        parts += [Text(""), heading, verdicts]
    if len(comparison.rows) > 2:
        heading = _heading("Ranked for each theory by its metric: mean ± 95% interval")
        parts += [Text(""), heading, _ranking_tables(comparison, width), _footer(RANKS)]
    return [*parts, *(_footer(f"– {note}") for note in _notes(comparison))]


def result_view(result: FinishedRun) -> RenderableType:
    """Show one run: its metrics, then its clients."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("Grade of the method", Text(result.method.grade, justify="right"))
    for key, metric in METRICS.items():
        if key in result.metrics:
            value = result.metrics[key]
            shown = f"– ({result.undefined[key]})" if value is None else _number(value, key)
            table.add_row(metric.title, Text(shown, justify="right"))
    columns = ["Client", "Uncertainty", *(["Epistemic"] if result.epistemic else []), "Accuracy"]
    clients = Table(*columns, box=None, pad_edge=False)
    for column in clients.columns[1:]:
        column.justify = "right"
    for client, accuracy in result.client_accuracy.items():
        measured = [
            f"{values[client]:.4f}" for values in (result.uncertainty, result.epistemic) if values
        ]
        clients.add_row(Text(client), *measured, f"{accuracy:.2f}")
    heading = _heading(f"{result.method.label}, seed {result.seed}")
    notes = [_footer(f"– {note}") for note in result.notes]
    return Group(heading, table, Text(""), clients, *notes)


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _footer(text: str) -> Text:
    return Text(text, style="dim")


def _notes(comparison: Comparison) -> list[str]:
    """Return why metrics have no value, what the methods note, and why runs failed."""
    undefined = {
        reason
        for row in comparison.rows
        for reasons in row.undefined.values()
        for reason in reasons
    }
    return [
        *sorted(undefined),
        *(note for row in comparison.rows for note in row.notes),
        *(
            f"{row.method.label} failed on seed {seed}: {reason}"
            for row in comparison.rows
            for seed, reason in row.failed.items()
        ),
    ]


def _metric_tables(comparison: Comparison, width: int) -> RenderableType:
    metrics = METRICS.values()
    headings = [Text(_with_arrow(metric)) for metric in metrics]
    cells = [[_metric_cell(metric, row) for metric in metrics] for row in comparison.rows]
    return make_blocks(width, "Method", headings, [_name(row) for row in comparison.rows], cells)


def _with_arrow(metric: Metric) -> str:
    return f"{metric.heading} {ARROW[metric.better]}".strip()


def _name(row: MethodSummary) -> Text:
    """Return the short name; below it family, changed parameters, and the grade if doubtful."""
    method = row.method
    family = method.title if method.short != method.title else ""
    below = " ".join(part for part in (family, method.changed_text, _doubt(row)) if part)
    return Text.assemble(method.short, (f"\n{below}" if below else "", "dim"))


def _doubt(row: MethodSummary) -> str:
    return "" if row.method.grade == "verified" else row.method.grade


def _metric_cell(metric: Metric, row: MethodSummary) -> Text:
    summary, test = row.metrics[metric.key], row.against_fedavg.get(metric.key)
    if summary.mean is None:
        return Text("–", style="dim")
    mark, style = "", ""
    if test and test.difference is not None and test.p is not None and test.p < SIGNIFICANT:
        mark = "*"
        style = "green" if test.difference * metric.better > 0 else "red"
    value = _number(summary.mean, metric.key) + mark
    return Text.assemble((value, style), (f"\n{_half_width(summary)}", "dim"))


def _number(value: float, key: str) -> str:
    sign = "+" if key in ("psi", "pearson_r") else ""
    # Adding zero turns -0.00 into 0.00.
    return f"{round(value, 2) + 0.0:{sign}.2f}"


def _half_width(summary: Summary) -> str:
    return f"±{(summary.ci95[1] - summary.ci95[0]) / 2:.2f}" if summary.ci95 else ""


def _client_tables(comparison: Comparison, width: int) -> RenderableType:
    """Show methods by clients, or clients by methods if these are fewer columns."""
    reference = comparison.rows[0]
    clients = [
        Text(f"{client}\nu unknown" if u.mean is None else f"{client}\nu = {u.mean:.3f}")
        for client, u in reference.uncertainty.items()
    ]
    methods = [_name(row) for row in comparison.rows]
    if min(len(clients), len(methods)) > MOST_COLUMNS:
        return _footer("Too many clients and methods to show here; `--json` has them all.")
    cells = [
        [_client_cell(row, reference, client) for client in row.client_accuracy]
        for row in comparison.rows
    ]
    if len(clients) > MOST_COLUMNS:
        by_client = [list(column) for column in zip(*cells, strict=True)]
        return make_blocks(width, "Client", methods, clients, by_client)
    return make_blocks(width, "Method", clients, methods, cells)


def _client_cell(row: MethodSummary, reference: MethodSummary, client: str) -> Text:
    mean, before = row.client_accuracy[client].mean, reference.client_accuracy[client].mean
    if mean is None or before is None:
        return Text("–", style="dim")
    change = "" if row is reference else f"\n{round(mean - before, 2) + 0.0:+.2f}"
    return Text.assemble(f"{mean:.2f}", (change, "dim"))


def _verdict_table(comparison: Comparison, width: int) -> Table:
    """Show each method's difference from FedAvg; two lines to a method if there is little room."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for row in comparison.rows:
        for theory in row.method.theories:
            metric = metric_of(theory)
            if metric.key in row.against_fedavg:
                goal = Text(f"{metric.heading} should {'rise' if metric.better > 0 else 'fall'}")
                difference, verdict = _verdict(metric, row.against_fedavg[metric.key])
                if width < NARROW:
                    table.add_row(
                        Text("\n").join([_label(row), goal]),
                        Text("\n").join(part for part in (difference, verdict) if part),
                    )
                else:
                    table.add_row(_label(row), goal, difference, verdict)
    return table


def _label(row: MethodSummary) -> Text:
    return Text(f"{row.method.label} ({_doubt(row)})" if _doubt(row) else row.method.label)


def _verdict(metric: Metric, test: PairedTest) -> tuple[Text, Text]:
    """Return the difference from FedAvg with its interval, and what the test says of it."""
    if test.difference is None:
        return Text(""), Text("undefined", style="dim")
    interval = f" [{test.ci95[0]:+.2f}, {test.ci95[1]:+.2f}]" if test.ci95 else ""
    difference = Text(f"{test.difference:+.2f}{interval}")
    if test.p is None:
        reason = "one seed" if test.difference else "no difference"
        return difference, Text(f"no test: {reason}", style="dim")
    p = f"p = {test.p:.3f}" if test.p >= 0.001 else "p < 0.001"
    if test.p >= SIGNIFICANT:
        return difference, Text(f"{p}: undecided with {test.n} seeds", style="yellow")
    if test.difference * metric.better > 0:
        return difference, Text(f"{p}: it does", style="green")
    return difference, Text(f"{p}: it does the opposite", style="red")


def _ranking_tables(comparison: Comparison, width: int) -> RenderableType:
    """Show a column for each theory, best first, two lines to a method."""
    gap = 2
    summaries = [row.metrics for row in comparison.rows]
    columns = [
        [
            Text(f"{theory.capitalize()}\n{_with_arrow(metric_of(theory))}"),
            *(_ranking_cell(theory, rank, comparison) for rank in rank_methods(theory, summaries)),
        ]
        for theory in THEORY_METRIC
    ]
    tables = []
    for block in pack_columns([max(map(text_width, cells)) + gap for cells in columns], width):
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        for column in block:
            table.add_column(columns[column][0])
        for cells in zip(*(columns[column][1:] for column in block), strict=True):
            table.add_row(*cells)
        tables.append(table)
    return stack(tables)


def _ranking_cell(theory: str, ranked: RankedMethod, comparison: Comparison) -> Text:
    row, value, seeds = comparison.rows[ranked.index], ranked.value, len(comparison.seeds)
    serves = theory in row.method.theories
    name = f"{row.method.short} {row.method.changed_text}".strip()
    if _doubt(row):
        name += f" ({_doubt(row)})"
    rank = "–" if ranked.rank is None else str(ranked.rank)
    shown = "no value"
    if value.mean is not None:
        shown = f"{_number(value.mean, THEORY_METRIC[theory])} {_half_width(value)}".strip()
    if 0 < value.n < seeds:
        shown += f" ({value.n} of {seeds} seeds)"
    first = f"{rank:>2} {'• ' if serves else ''}{name}"
    return Text.assemble((first, "bold" if serves else ""), (f"\n   {shown}", "dim"))
