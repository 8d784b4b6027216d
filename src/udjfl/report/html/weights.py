"""Equal weights and weights by size: what they gave, where they were run."""

from __future__ import annotations

from udjfl.report.html.figure import method_name
from udjfl.report.html.material import Material
from udjfl.report.html.score_text import ScoreText
from udjfl.report.html.tables import Cell, Table
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import Summary

KEYS = ("mean_accuracy", "worst_accuracy", "accuracy_most_uncertain", "std", "global_accuracy")
HEADINGS = ("Mean", "Worst client", "Most uncertain client", "STD", "Global")


def weights_of(row: MethodSummary) -> str | None:
    """Return which of the two plain choices a row is: "size", "uniform", or neither."""
    if row.method.name != "fedavg" or row.service != "none":
        return None
    weights: str = row.method.params["weights"]
    return weights


def _sizes_are_equal(material: Material) -> bool:
    sizes = {facts.train_size for facts in material.clients.values()}
    return len(sizes) == 1 and None not in sizes


def remark_on_weights(material: Material) -> str:
    """Say which of the two plain choices were run, and how to run the other."""
    run = {weights_of(row) for row in material.rows}
    if _sizes_are_equal(material):
        return "Here all clients have equally many examples, so that these two are the same."
    missing = [f"fedavg:weights={kind}" for kind in ("size", "uniform") if kind not in run]
    if not missing:
        return "Both were run, and the table shows what they gave."
    return (
        f"To see what they would have given, add {' and '.join(missing)} to the methods that are "
        "compared."
    )


def weight_table(material: Material) -> Table | None:
    """Tabulate what the methods' weights and the plain ones gave; None if none of these ran."""
    if not any(weights_of(row) for row in material.rows):
        return None
    lines = [
        [
            Cell(_describe(row, material)),
            *(_cell(row.metrics[key], material.score) for key in KEYS),
        ]
        for row in sorted(material.rows, key=lambda row: weights_of(row) is None)
    ]
    return Table(["Weights", *HEADINGS], lines, [])


def _describe(row: MethodSummary, material: Material) -> str:
    kind = weights_of(row)
    if kind == "size" and _sizes_are_equal(material):
        return f"equal, and by examples ({method_name(row)})"
    words = {"size": "by examples", "uniform": "equal"}
    return method_name(row) if kind is None else f"{words[kind]} ({method_name(row)})"


def _cell(summary: Summary, text: ScoreText) -> Cell:
    ends = text.interval(summary.ci95)
    return Cell(text.number(summary.mean), (ends,) if ends else (), summary.mean)
