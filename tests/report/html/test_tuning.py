"""A tuning on the page, in figures and on the terminal, read from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import make_federation
from typer.testing import CliRunner

from udjfl.cli.app import app
from udjfl.errors import StorageError
from udjfl.methods import method
from udjfl.report.html.figures import write_figures
from udjfl.report.html.material import read_material
from udjfl.report.html.page import render_page
from udjfl.report.html.tuning_charts import _mark_label, tuning_figures
from udjfl.report.tuned_runs import read_tuned
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import HeldOutChoice, Tuned, tune

SMALL: dict[str, Any] = {"rounds": 3, "hidden": 8, "uncertainty_epochs": 2, "seeds": [0, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned") / "tune"


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Tuned:
    first = make_federation().ids[0]
    limits = {"budget": 50.0, "cost": 14.0, "floor": {first: 1.0}}
    settings = TuneSettings(**{"theory": "desert", "workers": 1, **limits, **SMALL})
    return tune(settings, data=lambda seed: make_federation(seed=seed), out=folder)


def test_a_choice_is_read_as_it_was_written(folder: Path, tuned: Tuned) -> None:
    assert HeldOutChoice.load(folder).as_dict() == tuned.choice.as_dict()
    choice, again = read_tuned(folder)
    assert again is not None
    assert again.test.margin == tuned.test.margin == choice.limits.budget
    assert {row.label for row in again.test.rows} == {row.label for row in tuned.test.rows}


def test_the_page_shows_the_choice_the_search_and_the_test(folder: Path, tuned: Tuned) -> None:
    page = render_page(read_material([folder]))
    assert "Not in this report" not in page
    for section in ("tuning", "glance", "clients"):
        assert f'<section id="{section}"' in page
    assert "for the desert theory" in page
    assert "a budget of 50 points and floors of" in page
    assert f"Cost: {tuned.choice.cost:.1f} trainings" in page
    assert f"as many points: {tuned.choice.grid_cost:.0f}" in page
    for rung in tuned.choice.rungs:
        assert f'<th scope="row">{rung.rounds}</th>' in page


def test_every_point_is_in_the_figures(folder: Path, tuned: Tuned, tmp_path: Path) -> None:
    search, points, clients, cost = tuning_figures(tuned.choice)
    assert len(search.rows) == sum(len(rung.scores) for rung in tuned.choice.rungs)
    assert points.rows[0][0].startswith("chosen")
    assert len(clients.rows) == len(tuned.choice.chosen.clients or {})
    assert cost.rows[1] == ["a plain grid", f"{tuned.choice.grid_cost:.1f}"]
    for figure in (search, points, clients, cost):
        assert figure.chart.to_dict(validate=True)
    written = write_figures(read_material([folder]), tmp_path, ["svg"])
    assert {"tuning-search", "tuning-cost"} <= {path.stem for path in written}


def test_labels_say_what_differs(tuned: Tuned) -> None:
    _, points, *_ = tuning_figures(tuned.choice)
    # Which point is chosen is up to the search: its own label has what its neighbours leave out.
    labels = [record["label"] for record in points.chart.to_dict()["data"]["values"]]
    neighbours = [label for label in labels if label.startswith("neighbour: ")]
    assert len(set(neighbours)) == len(neighbours) == len(tuned.choice.neighbours)
    assert all(label.count("=") == 1 for label in neighbours)
    rows = [row[0] for row in points.rows]
    assert rows[0] in labels
    assert not set(rows) & set(neighbours)
    plain, within = method("rawls"), method("rawls", budget=2)
    defaults = (_mark_label("default", rule) for rule in (plain, within))
    assert list(defaults) == ["default", "default: budget=2"]
    assert _mark_label("chosen", within) == "chosen"


def test_the_terminal_shows_it_too(folder: Path, tuned: Tuned) -> None:
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "Chosen for the desert theory" in result.output
    assert "The test, on test data" in result.output
    document = json.loads(CliRunner().invoke(app, ["report", str(folder), "--json"]).output)
    assert document["cost"] == tuned.choice.cost


def copy_choice(folder: Path, to: Path, change: dict[str, Any]) -> Path:
    to.mkdir()
    choice = json.loads((folder / "choice.json").read_text()) | change
    (to / "choice.json").write_text(json.dumps(choice))
    return to


def test_before_its_test_a_choice_is_shown_alone(
    folder: Path, tuned: Tuned, tmp_path: Path
) -> None:
    alone = copy_choice(folder, tmp_path / "alone", {})
    assert read_tuned(alone)[1] is None
    assert '<section id="tuning"' in render_page(read_material([alone]))
    assert "not finished" in CliRunner().invoke(app, ["report", str(alone)]).output


@pytest.mark.parametrize(
    "change", [{"chosen": {}}, {"rungs": 3}, {"floor": None}, {"cost": "<script>"}]
)
def test_a_damaged_choice_is_told(
    folder: Path, tuned: Tuned, tmp_path: Path, change: dict[str, Any]
) -> None:
    damaged = copy_choice(folder, tmp_path / "damaged", change)
    with pytest.raises(StorageError, match="damaged"):
        HeldOutChoice.load(damaged)
    page = render_page(read_material([damaged]))
    assert "Not in this report" in page
    assert "<script>&lt;" not in page


def test_code_that_a_choice_names_is_not_imported(
    folder: Path, tuned: Tuned, tmp_path: Path
) -> None:
    chosen = {**tuned.choice.chosen.as_dict(), "method": "no_such_package:Rule"}
    with pytest.raises(StorageError, match="cannot be a searched method"):
        HeldOutChoice.load(copy_choice(folder, tmp_path / "code", {"chosen": chosen}))
