"""Results on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.metrics import METRICS, Metric
from udjfl.simulation.compare import Comparison, MethodSummary
from udjfl.statistics import THEORY_METRIC, Paired, Ranked, Summary, metric_of, ranked
from udjfl.training.result import Outcome

SHORT = {
    "global_accuracy": "Global",
    "accuracy_most_uncertain": "Most\nuncert.",
    "accuracy_least_uncertain": "Least\nuncert.",
    "worst_accuracy": "Worst",
    "mean_accuracy": "Mean",
    "std": "STD",
    "psi": "Psi",
    "pearson_r": "r",
}
ARROW = {1: "↑", -1: "↓", 0: ""}
SIGNIFICANT = 0.05
GRADES = "Methods are verified unless marked partial or recalled: how sure we are that they are the authors'."
MOST_COLUMNS = 7


def comparison_view(comparison: Comparison) -> RenderableType:
    """Methods by metric, methods by client, what each method did to the metric it is about, and who is best for whom."""
    parts: list[RenderableType] = [
        _heading(
            f"{comparison.data}: mean over {_seeds(len(comparison.seeds))}, below it ± the 95% interval"
        ),
        _metric_table(comparison),
        Text(
            "* differs from FedAvg: paired t-test over seeds, p < 0.05. Accuracies in percent, STD and Psi in points.",
            style="dim",
        ),
        Text(GRADES, style="dim"),
        Text(""),
        _heading(
            "Accuracy of each client on its own test data, below it the change from FedAvg (u: uncertainty)"
        ),
        _client_table(comparison),
    ]
    verdicts = _verdict_table(comparison)
    if verdicts.row_count:
        parts += [
            Text(""),
            _heading("Each method by the measure of its theory, against FedAvg"),
            verdicts,
        ]
    if len(comparison.rows) > 2:
        parts += [
            Text(""),
            _heading("Ranked for each theory by its measure: mean ± 95% interval"),
            _ranking_table(comparison),
        ]
        parts.append(
            Text(
                "• serves this theory. Ranks go by the mean; where intervals overlap they decide nothing.",
                style="dim",
            )
        )
    notes = sorted(
        {
            reason
            for row in comparison.rows
            for reasons in row.undefined.values()
            for reason in reasons
        }
    )
    notes += [note for row in comparison.rows for note in row.notes]
    failed = [
        (row.method.label, seed, why) for row in comparison.rows for seed, why in row.failed.items()
    ]
    notes += [f"{label} failed on seed {seed}: {why}" for label, seed, why in failed]
    parts += [Text(f"– {note}", style="dim") for note in notes]
    return Group(*parts)


def result_view(result: Outcome) -> RenderableType:
    """One run: its metrics, then its clients."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("Grade of the method", Text(result.method.grade, justify="right"))
    for metric in METRICS:
        if metric.key in result.metrics:
            value = result.metrics[metric.key]
            shown = (
                _number(value, metric)
                if value is not None
                else f"– ({result.undefined[metric.key]})"
            )
            table.add_row(metric.title, Text(shown, justify="right"))
    columns = ["Client", "Uncertainty", *(["Epistemic"] if result.epistemic else []), "Accuracy"]
    clients = Table(*columns, box=None, pad_edge=False)
    for column in clients.columns[1:]:
        column.justify = "right"
    for client, accuracy in result.client_accuracy.items():
        measured = [
            f"{column[client]:.4f}" for column in (result.uncertainty, result.epistemic) if column
        ]
        clients.add_row(Text(client), *measured, f"{accuracy:.2f}")
    title = f"{result.method.label}, seed {result.seed}"
    notes = [Text(f"– {note}", style="dim") for note in result.notes]
    return Group(_heading(title), table, Text(""), clients, *notes)


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _metric_table(comparison: Comparison) -> Table:
    table = Table("Method", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for metric in METRICS:
        table.add_column(
            f"{SHORT[metric.key]} {ARROW[metric.better]}".strip(), justify="right", no_wrap=True
        )
    for row in comparison.rows:
        cells = [_metric_cell(metric, row) for metric in METRICS]
        table.add_row(_name(row), *cells)
    return table


def _name(row: MethodSummary) -> Text:
    """The short name, and below it the family, the parameters that differ from the usual, and the grade unless verified."""
    method = row.method
    family = method.title if method.short != method.title else ""
    below = " ".join(part for part in (family, method.changed_text, _doubt(row)) if part)
    first = Text(method.short)
    return Text("\n").join([first, Text(below, style="dim")]) if below else first


def _doubt(row: MethodSummary) -> str:
    return "" if row.method.grade == "verified" else row.method.grade


def _metric_cell(metric: Metric, row: MethodSummary) -> Text:
    summary, test = row.metrics[metric.key], row.against_fedavg.get(metric.key)
    if summary.mean is None:
        return Text("–", style="dim")
    mark, style = "", ""
    if (
        test is not None
        and test.p is not None
        and test.p < SIGNIFICANT
        and test.difference is not None
    ):
        mark = "*"
        style = "green" if test.difference * metric.better > 0 else "red"
    return Text.assemble(
        (_number(summary.mean, metric) + mark, style), (f"\n{_half_width(summary)}", "dim")
    )


def _number(value: float, metric: Metric) -> str:
    sign = "+" if metric.key in ("psi", "pearson_r") else ""
    # Adding zero turns -0.00 into 0.00.
    return f"{round(value, 2) + 0.0:{sign}.2f}"


def _half_width(summary: Summary) -> str:
    return f"±{(summary.ci95[1] - summary.ci95[0]) / 2:.2f}" if summary.ci95 else ""


def _client_table(comparison: Comparison) -> RenderableType:
    """Methods by clients, or clients by methods: whichever is narrower. Too wide both ways, it is left to --json."""
    reference = comparison.rows[0]
    clients = [
        Text(f"{client}\nu = {u.mean:.3f}" if u.mean is not None else f"{client}\nu unknown")
        for client, u in reference.uncertainty.items()
    ]
    methods = [_name(row) for row in comparison.rows]
    cells = [
        [_client_cell(row, reference, client) for client in row.client_accuracy]
        for row in comparison.rows
    ]
    if min(len(clients), len(methods)) > MOST_COLUMNS:
        return Text(
            "Too many clients and methods to show here; `--json` has them all.", style="dim"
        )
    if len(clients) > MOST_COLUMNS:
        return _grid(
            "Client", methods, clients, [list(column) for column in zip(*cells, strict=True)]
        )
    return _grid("Method", clients, methods, cells)


def _grid(corner: str, above: list[Text], beside: list[Text], cells: list[list[Text]]) -> Table:
    table = Table(corner, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in above:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in zip(beside, cells, strict=True):
        table.add_row(name, *row)
    return table


def _client_cell(row: MethodSummary, reference: MethodSummary, client: str) -> Text:
    mean, before = row.client_accuracy[client].mean, reference.client_accuracy[client].mean
    if mean is None or before is None:
        return Text("–", style="dim")
    below = "" if row is reference else f"\n{round(mean - before, 2) + 0.0:+.2f}"
    return Text.assemble(f"{mean:.2f}", (below, "dim"))


def _verdict_table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    by_key = {metric.key: metric for metric in METRICS}
    for row in comparison.rows:
        for theory in row.method.theories:
            key = THEORY_METRIC[theory]
            if key in row.against_fedavg:
                table.add_row(Text(_labelled(row)), *_verdict(by_key[key], row.against_fedavg[key]))
    return table


def _labelled(row: MethodSummary) -> str:
    return f"{row.method.label} ({_doubt(row)})" if _doubt(row) else row.method.label


def _ranking_table(comparison: Comparison) -> Table:
    """A column for each theory, the best at the top; two lines to a method, as four columns are wide."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = []
    for theory in THEORY_METRIC:
        metric = metric_of(theory)
        table.add_column(f"{theory.capitalize()}\n{SHORT[metric.key]} {ARROW[metric.better]}")
        order = ranked(theory, [row.metrics for row in comparison.rows])
        seeds = len(comparison.seeds)
        columns.append(
            [
                _ranking_cell(theory, metric, place, comparison.rows[place.entry], seeds)
                for place in order
            ]
        )
    for cells in zip(*columns, strict=True):
        table.add_row(*cells)
    return table


def _ranking_cell(
    theory: str, metric: Metric, place: Ranked, row: MethodSummary, seeds: int
) -> Text:
    serves = theory in row.method.theories
    name = f"{row.method.short} {row.method.changed_text}".strip()
    rank = "–" if place.rank is None else str(place.rank)
    first = f"{rank:>2} {'• ' if serves else ''}{name}{f' ({_doubt(row)})' if _doubt(row) else ''}"
    shown = (
        "no value"
        if place.value.mean is None
        else f"{_number(place.value.mean, metric)} {_half_width(place.value)}".strip()
    )
    if 0 < place.value.n < seeds:
        shown += f" ({place.value.n} of {seeds} seeds)"
    return Text.assemble((first, "bold" if serves else ""), (f"\n   {shown}", "dim"))


def _verdict(metric: Metric, test: Paired) -> tuple[str, str, Text]:
    goal = f"{SHORT[metric.key]} should {'rise' if metric.better > 0 else 'fall'}"
    if test.difference is None:
        return goal, "", Text("undefined", style="dim")
    interval = f" [{test.ci95[0]:+.2f}, {test.ci95[1]:+.2f}]" if test.ci95 else ""
    shown = f"{test.difference:+.2f}{interval}"
    if test.p is None:
        return (
            goal,
            shown,
            Text(
                "no test: " + ("no difference" if not test.difference else "one seed"), style="dim"
            ),
        )
    p = f"p = {test.p:.3f}" if test.p >= 0.001 else "p < 0.001"
    if test.p >= SIGNIFICANT:
        return goal, shown, Text(f"{p}: not decided at this number of seeds", style="yellow")
    if test.difference * metric.better > 0:
        return goal, shown, Text(f"{p}: it does", style="green")
    return goal, shown, Text(f"{p}: it does the opposite", style="red")
