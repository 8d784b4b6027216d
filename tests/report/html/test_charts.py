"""All charts are valid Vega-Lite, and have a table with the numbers that they draw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from udjfl.report.html.change_charts import change_figures
from udjfl.report.html.curves import Curves
from udjfl.report.html.equality_charts import desert_figures, lorenz_figures
from udjfl.report.html.figure import Figure
from udjfl.report.html.figure_list import make_figures
from udjfl.report.html.material import Material
from udjfl.report.html.method_charts import tradeoff_figures
from udjfl.report.html.round_charts import round_figures
from udjfl.report.html.score_charts import score_figures
from udjfl.report.html.weight_charts import mean_shares, weight_figures


@pytest.fixture(scope="module")
def figures(material: Material) -> list[Figure]:
    return make_figures(material).flatten()


def test_every_chart_is_valid(figures: list[Figure]) -> None:
    for figure in figures:
        assert figure.chart.to_dict(validate=True), figure.name


def test_names_are_unique_and_every_figure_has_a_table(figures: list[Figure]) -> None:
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    for figure in figures:
        assert figure.title
        assert figure.caption
        assert figure.rows
        assert {len(row) for row in figure.rows} == {len(figure.columns)}


def test_each_client_has_a_figure_with_every_method(material: Material) -> None:
    for client, figure in zip(material.client_ids, score_figures(material), strict=True):
        assert figure.title == client
        means = [f"{row.client_scores[client].mean:.1f}" for row in material.rows]
        assert [row[1] for row in figure.rows] == means


def test_changes_have_one_scale(material: Material) -> None:
    domains = set()
    for figure in change_figures(material):
        spec = figure.chart.to_dict()
        domains.add(tuple(spec["layer"][0]["encoding"]["x"]["scale"]["domain"]))
    assert len(domains) == 1


def test_without_a_reference_there_are_no_changes(material: Material) -> None:
    assert change_figures(replace(material, comparison=None)) == []


def test_the_lorenz_table_is_the_share_of_the_lower_half(material: Material) -> None:
    """Five clients: the two lowest and half of the third."""
    scores = sorted(s.mean or 0.0 for s in material.rows[0].client_scores.values())
    share = 100 * (sum(scores[:2]) + scores[2] / 2) / sum(scores)
    [figure] = lorenz_figures(material)
    assert figure.rows[0] == ["FedAvg", f"{share:.1f}"]


def test_desert_needs_two_uncertainties(material: Material) -> None:
    row = material.rows[0]
    same = dict.fromkeys(material.client_ids, row.uncertainty[material.client_ids[0]])
    flat = replace(material, rows=(replace(row, uncertainty=same),), comparison=None)
    assert desert_figures(flat) == []
    assert len(desert_figures(material)) == len(material.rows)


def test_tradeoffs_without_values_are_left_out(material: Material) -> None:
    assert len(tradeoff_figures(material)) == 3
    empty = replace(material.rows[0].metrics["global_accuracy"], mean=None)
    rows = tuple(replace(r, metrics={**r.metrics, "global_accuracy": empty}) for r in material.rows)
    assert len(tradeoff_figures(replace(material, rows=rows))) == 2


def curves_of(n_clients: int) -> Curves:
    points = {f"c{i}": {1: i, 2: i + 1, 3: i + 2} for i in range(1, n_clients + 1)}
    return Curves("x", 3, 3, (0,), {"test_accuracy": points, "weight": points})


def test_many_clients_over_rounds_are_a_band() -> None:
    few, many = (round_figures(curves_of(n), 0)[0] for n in (3, 20))
    assert few.columns == ["Round", "c1", "c2", "c3"]
    assert many.columns == ["Round", "Lowest", "Median", "Highest"]
    assert many.rows[0] == ["1", "1.000", "10.500", "20.000"]


def test_shares_add_up_to_one() -> None:
    """Means 2 and 3 of 5."""
    assert mean_shares(curves_of(2)) == {"c1": 0.4, "c2": 0.6}
    assert mean_shares(Curves("x", 1, 1, (0,))) == {}


def test_weights_stand_beside_equal_ones_and_sizes() -> None:
    [figure] = weight_figures([curves_of(2)], {"c1": 30, "c2": 10})
    assert figure.rows == [["c1", "0.400", "0.500", "0.750"], ["c2", "0.600", "0.500", "0.250"]]
    assert weight_figures([Curves("x", 1, 1, (0,))], {}) == []


def test_the_weights_of_many_methods_are_one_map() -> None:
    [figure] = weight_figures([replace(curves_of(2), label=f"m{i}") for i in range(12)], {})
    assert figure.columns == ["Method", "c1", "c2"]
    assert figure.rows[3] == ["m3", "0.400", "0.600"]
    assert figure.chart.to_dict(validate=True)


def test_the_lines_of_many_methods_share_a_figure(material: Material) -> None:
    many = replace(material, rows=material.rows * 3)
    [figure] = desert_figures(many)
    assert len(figure.rows) == 12
    assert figure.chart.to_dict(validate=True)
