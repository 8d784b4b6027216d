"""The two large tables of a report: each client, and each measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udjfl._ids import printable
from udjfl.metrics import Metric
from udjfl.report.cells import doubt, format_number, interval_text, with_arrow
from udjfl.report.html.figure import method_name, number
from udjfl.report.html.material import ClientFacts, Material
from udjfl.report.html.score_text import ScoreText
from udjfl.report.judged_metrics import metrics_for, remark_on_direction
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import THEORY_METRIC, correct_tests
from udjfl.training.small_test_parts import describe_too_small
from udjfl.verdicts.evidence import compare_clients

MOST_CELLS = 6000  # above this, cells have no changes beside the scores
MOST_TESTED = 200  # clients; with more, those that level down are not looked for one by one


@dataclass(frozen=True)
class Cell:
    """One cell: text, smaller lines below it, the number to sort by, and a class for its style."""

    text: str
    below: tuple[str, ...] = ()
    value: float | None = None
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A table: headings, rows whose first cell names the row, and remarks below it."""

    headings: list[str]
    rows: list[list[Cell]]
    remarks: list[str]


def client_table(material: Material) -> Table:
    """Tabulate the clients: their data, their score alone and under each method, and flags."""
    rows, reference = material.rows, material.reference
    with_changes = len(material.client_ids) * len(rows) <= MOST_CELLS
    alone = rows[0].accuracy_alone if rows else None
    flags = _flags(material)
    lines = []
    for client in material.client_ids:
        facts = material.clients.get(client, ClientFacts())
        u = rows[0].uncertainty[client].mean
        cells = [
            Cell(printable(client)),
            Cell(number(u, 3), value=u),
        ]
        if alone is not None:
            mean = alone[client].mean
            cells.append(Cell(material.score.number(mean), value=mean))
        before = reference if with_changes else None
        cells += [_score(material.score, row, before, client) for row in rows]
        cells += [_count(size) for size in (facts.train_size, _test_size(material, client))]
        cells.append(Cell("; ".join(flags.get(client, []))))
        lines.append(cells)
    headings = ["Client", "Uncertainty", *(["Alone"] if alone is not None else [])]
    headings += [method_name(row) for row in rows]
    headings += ["Train examples", "Test examples", "Remarks"]
    return Table(headings, lines, _client_remarks(material))


def _count(value: int | None) -> Cell:
    return Cell("–" if value is None else str(value), value=value)


def _test_size(material: Material, client: str) -> int | None:
    sizes = material.rows[0].test_sizes
    if sizes is not None and client in sizes:
        return sizes[client]
    return material.clients.get(client, ClientFacts()).test_size


def _score(
    text: ScoreText, row: MethodSummary, reference: MethodSummary | None, client: str
) -> Cell:
    mean = row.client_scores[client].mean
    if reference is None or row is reference or mean is None:
        return Cell(text.number(mean), value=mean)
    before = reference.client_scores[client].mean
    change = None if before is None else mean - before
    style = "" if not change else ("gain" if change * text.kind.better > 0 else "loss")
    below = () if change is None else (text.number(change, "+"),)
    return Cell(text.number(mean), below, mean, style)


def _client_remarks(material: Material) -> list[str]:
    kind = material.score.kind
    unit = " in percent" if kind.percent else f" ({kind.direction})"
    remarks = [f"{kind.heading}{unit} on each client's own test data, means over seeds."]
    if material.reference is not None:
        remarks.append(
            f"Small numbers: change from FedAvg, in {kind.difference_unit}; blue: a gain, orange: "
            "a loss."
        )
    if material.rows and material.rows[0].accuracy_alone is not None:
        remarks.append(
            "Alone: a model trained on the client's own data only, scored on training examples "
            "that it did not see."
        )
    return remarks


def _flags(material: Material) -> dict[str, list[str]]:
    """Return the remarks on each client."""
    first = material.rows[0]
    too_small = set(first.too_small)
    flags: dict[str, list[str]] = {client: [] for client in material.client_ids}
    for client, found in flags.items():
        if client in too_small:
            width = first.interval_widths.get(client)
            found.append(describe_too_small(_test_size(material, client), width))
        found += material.clients.get(client, ClientFacts()).flags
        found += _better_alone(material, client)
    for client, methods in _levelled_down(material).items():
        flags[client].append(f"levelled down by {', '.join(methods)}")
    return flags


def _better_alone(material: Material, client: str) -> list[str]:
    if material.comparison is None:
        return []
    under = [
        method_name(row)
        for row, joined in zip(material.rows, material.comparison.joining, strict=True)
        if client in joined and joined[client].better_alone
    ]
    if not under:
        return []
    everywhere = len(under) == len(material.rows)
    return ["better off alone" if everywhere else f"better off alone than under {', '.join(under)}"]


def _levelled_down(material: Material) -> dict[str, list[str]]:
    """Return the clients that lose, not by chance, under methods that only level down."""
    comparison = material.comparison
    if comparison is None or len(material.client_ids) > MOST_TESTED:
        return {}
    losers: dict[str, list[str]] = {}
    for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True):
        if any(verdict.kind == "levelled down" for verdict in verdicts):
            changes = compare_clients(row.runs)
            corrected = correct_tests([change.test for change in changes.values()])
            for (client, change), p in zip(changes.items(), corrected, strict=True):
                if change.test.shows_fall(p):
                    losers.setdefault(client, []).append(method_name(row))
    return losers


def measure_table(material: Material, on_request: bool = False) -> Table:
    """Tabulate the measures of every method, with their differences from FedAvg.

    The usual measures, or those that tables have on request; without those that the runs lack.
    """
    kind = material.score.kind
    metrics = [
        metric
        for metric in metrics_for(kind).values()
        if metric.on_request == on_request
        and (material.reference or not metric.needs_reference)
        and any(row.metrics[metric.key].n or metric.key in row.undefined for row in material.rows)
    ]
    shown = [m for m in metrics if any(row.metrics[m.key].n for row in material.rows)]
    headings = ["Method", *(with_arrow(metric).replace("\n", " ") for metric in shown)]
    lines = [
        [_method_cell(row), *(_measure_cell(material, index, metric) for metric in shown)]
        for index, row in enumerate(material.rows)
    ]
    remarks = [f"{metric.title}: {metric.description}" for metric in shown]
    direction = remark_on_direction(kind)
    remarks += [direction] if direction else []
    return Table(headings, lines, [*remarks, *_list_undefined(material, metrics, shown)])


def _list_undefined(
    material: Material, metrics: Sequence[Metric], shown: Sequence[Metric]
) -> list[str]:
    """Say why measures have no value under any method; a column of dashes would say no more."""
    return [
        f"{metric.title}: no value. {reason}"
        for metric in metrics
        if metric not in shown
        for reason in dict.fromkeys(
            why for row in material.rows for why in row.undefined.get(metric.key, [])
        )
    ]


def _method_cell(row: MethodSummary) -> Cell:
    grade = doubt(row)
    return Cell(method_name(row), (grade,) if grade else ())


def _measure_cell(material: Material, index: int, metric: Metric) -> Cell:
    row = material.rows[index]
    summary = row.metrics[metric.key]
    if summary.mean is None:
        return Cell("–", tuple(row.undefined.get(metric.key, [])))
    if row is material.reference and metric.needs_reference:
        return Cell("0", (), 0.0)  # by definition
    own = any(THEORY_METRIC[theory] == metric.key for theory in row.theories)
    styles = ["own"] if own else []
    ends = interval_text(metric, summary)
    below = [ends] if ends else []
    test = row.against_fedavg.get(metric.key)
    if test is not None and test.difference is not None:
        p = _corrected(material.comparison, index, metric)
        differs = test.is_significant(p) and metric.better != 0
        if differs:
            styles.append("gain" if test.difference * metric.better > 0 else "loss")
        difference = number(test.difference, metric.digits, "+")
        below.append(f"{difference}{'*' if differs else ''}")
    shown = format_number(summary.mean, metric)
    return Cell(shown, tuple(below), summary.mean, " ".join(styles))


def _corrected(comparison: Comparison | None, index: int, metric: Metric) -> float | None:
    """Return the corrected p of a test; one that no table corrects is not called significant."""
    if comparison is None:
        return 1.0
    p = comparison.corrected_p.get((index, metric.key), 1.0)
    return 1.0 if p is None else p
