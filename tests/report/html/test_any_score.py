"""Pages and figures of scores that are no accuracies: signs of gains, order, wording."""

from __future__ import annotations

import json
import re

import pytest
from paired_comparison import compare_gains

from udjfl.methods import method
from udjfl.metrics.clients import NOT_A_SHARE
from udjfl.report.html.change_charts import change_figures
from udjfl.report.html.equality_charts import desert_figures, lorenz_figures
from udjfl.report.html.figure_list import make_figures
from udjfl.report.html.glance import glance_table
from udjfl.report.html.material import Material
from udjfl.report.html.page import render_page
from udjfl.report.html.plots import plot_changes, plot_clients, plot_frontier
from udjfl.report.html.score_charts import score_figures
from udjfl.report.html.tables import client_table, measure_table
from udjfl.report.html.words import write_accounts
from udjfl.simulation.comparison import Comparison
from udjfl.tasks import SCORES, ScoreKind

# The last client gains 4 points, or hundredths; under AFL all lose.
GAINS = {method("rawls"): (-1, -1, -1, 0, 4), method("afl"): (-4, -4, -4, -4, -1)}
KINDS = [SCORES[name].kind for name in ("auroc", "log-loss", "rmse")]
KINDS.append(ScoreKind("own", "own score", better=-1, percent=False))
each_score = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def compare(kind: ScoreKind) -> Comparison:
    return compare_gains(GAINS, score=kind)


def material_of(kind: ScoreKind) -> Material:
    comparison = compare(kind)
    return Material("by hand", comparison.seeds, comparison.rows, comparison, "")


@each_score
def test_a_gain_is_an_improvement_whichever_way_the_score_goes(kind: ScoreKind) -> None:
    material = material_of(kind)
    rawls, afl = change_figures(material)
    assert [row[2][0] for row in rawls.rows] == ["-", "-", "-", "+", "+"]
    assert [row[2][0] for row in afl.rows] == ["-"] * 5
    table = glance_table(material)
    assert table is not None
    assert [cell.style[:2] for cell in table.rows[0][1:6]] == ["do", "do", "do", "ch", "up"]
    accounts = write_accounts(material)
    assert accounts[0].gained.startswith("client-5 +")
    assert accounts[0].paid.startswith("client-")
    assert "client-1 -" in accounts[0].paid


@each_score
def test_cells_show_the_score_and_colour_the_gain(kind: ScoreKind) -> None:
    table = client_table(material_of(kind))
    first, last = table.rows[0], table.rows[-1]
    rawls = table.headings.index("Rawls")
    assert (first[rawls].style, last[rawls].style) == ("loss", "gain")
    sign = "+" if kind.better > 0 else "-"
    assert last[rawls].below[0].startswith(sign)
    measures = measure_table(material_of(kind))
    mean = next(h for h in measures.headings if h.startswith("Mean"))
    assert mean == ("Mean ↑" if kind.better > 0 else "Mean ↓")
    cell = measures.rows[2][measures.headings.index(mean)]
    assert "loss" in cell.style


@each_score
def test_the_page_names_the_score_and_its_unit(kind: ScoreKind) -> None:
    page = render_page(material_of(kind))
    text = re.sub(r"<(style|script).*?</\\1>|<[^>]*>", " ", page, flags=re.S)
    before_guide = text[: text.index("Which theory to take")]
    assert "ccurac" not in before_guide.replace(NOT_A_SHARE, "")
    assert kind.heading in before_guide
    if not kind.percent:
        assert "points" not in re.sub(
            r"read its points|less equal shares, points", "", before_guide
        )
        assert f"% of FedAvg&#39;s mean {kind.title}" in before_guide


@each_score
def test_better_is_to_the_right(kind: ScoreKind) -> None:
    figure = score_figures(material_of(kind))[0]
    text = json.dumps(figure.chart.to_dict())
    turned = set(re.findall(r'"reverse": (true|false)', text))
    assert turned == {"true" if kind.better < 0 else "false"}


@each_score
def test_every_chart_is_valid_and_can_be_plotted(kind: ScoreKind) -> None:
    for figure in make_figures(material_of(kind)).flatten():
        assert figure.chart.to_dict(validate=True), figure.name
    for plot in (plot_clients, plot_changes, plot_frontier):
        assert plot(compare(kind)).to_dict()


def test_scores_below_zero_have_no_lorenz_curve() -> None:
    comparison = compare_gains({method("rawls"): (-95, 0, 0, 0, 0)}, score=SCORES["r2"].kind)
    material = Material("by hand", comparison.seeds, comparison.rows, comparison, "")
    assert lorenz_figures(material) == []
    assert desert_figures(material)
