"""Charts for notebooks, from results in memory: the figures of a report side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from udjfl.report.html.change_charts import change_figures
from udjfl.report.html.curves import make_curves
from udjfl.report.html.figure import Figure, import_altair, name_method
from udjfl.report.html.material import Material
from udjfl.report.html.method_charts import tradeoff_figures
from udjfl.report.html.round_charts import round_figures
from udjfl.report.html.score_charts import score_figures
from udjfl.report.html.theme import chart_config
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import summarise_method
from udjfl.tasks import ACCURACY
from udjfl.tasks.scores import R2
from udjfl.training.result import Result

COLUMNS = 2


def plot_result(result: Result) -> Any:
    """Draw what each client has in the end, and the run over its rounds."""
    row = summarise_method(result.method, {result.seed: result}, {result.seed: result})
    material = Material("", (result.seed,), (row,), None, "")
    records = result.history.records
    rounds = max((record.round for record in records), default=0)
    label = name_method(result.method, result.service)
    is_regression = result.n_classes is None
    curves = make_curves(label, rounds, {result.seed: records}, R2 if is_regression else ACCURACY)
    return _arrange([*score_figures(material), *round_figures(curves, 0)])


def plot_clients(comparison: Comparison) -> Any:
    """Draw each client's score under every method."""
    return _arrange(score_figures(_material_of(comparison)))


def plot_changes(comparison: Comparison) -> Any:
    """Draw each client's gain or loss against FedAvg under every method."""
    return _arrange(change_figures(_material_of(comparison)))


def plot_frontier(comparison: Comparison) -> Any:
    """Draw the methods by pairs of measures: what one gives to some and takes from others."""
    return _arrange(tradeoff_figures(_material_of(comparison)))


def _material_of(comparison: Comparison) -> Material:
    return Material(comparison.data, comparison.seeds, comparison.rows, comparison, "")


def _arrange(figures: Sequence[Figure]) -> Any:
    alt = import_altair()
    charts = [figure.chart.properties(title=figure.title) for figure in figures]
    return (
        alt.concat(*charts, columns=COLUMNS)
        .resolve_scale(color="independent", shape="independent", strokeDash="independent")
        .configure(**chart_config())
    )
